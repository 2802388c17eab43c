"""The rules of followers: cursors, pins, stages, and what goes by age.

Rule 1: a pin shows the shard as of its own batch, and always the same rows while it stands.
Rule 2: a cursor never skips. Where rows it has not read are gone, it is refused until it is reset.
Rule 3: a cursor never falls back by itself, except to where a takeover or a lost pin sends it.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.commands import (
    CommitCursor,
    NextSnapshot,
    OpenCursor,
    Pin,
    ResetCursor,
    SnapshotRef,
    Stage,
)
from millrace.core.draft import Draft
from millrace.core.model import (
    CursorCell,
    Death,
    PinCell,
    Position,
    StageCell,
    Start,
)
from millrace.core.takeover import resume
from millrace.core.view import View
from millrace.errors import (
    CursorExpired,
    Exists,
    Invalid,
    NotFound,
    Refused,
    SnapshotExpired,
    Stale,
    TooLarge,
)

# --- Cursors -----------------------------------------------------------------------------------


def check_open_cursor(draft: Draft, command: OpenCursor) -> CursorCell | Refused | None:
    """None: it is to be made. A cell: it is there."""
    view = draft.view
    cell = view.cursors.get(command.name)
    if cell is not None:
        if cell.retain != command.retain:
            return Exists(
                f"cursor {command.name!r} is there with retain={cell.retain}; "
                "delete it first or open it so",
                field="retain",
            )
        return cell
    if len(view.cursors) >= limits.CURSORS_MAX:
        return TooLarge(
            f"the queue has {limits.CURSORS_MAX} cursors; delete one first",
            field="name",
            limit=limits.CURSORS_MAX,
        )
    return _check_start(view, command.start)


def _check_start(view: View, start: Start | int) -> Refused | None:
    if isinstance(start, Start):
        return None
    if start < 1 or start > view.last_seq + 1:
        return Invalid(
            f"start {start} is not within 1 and {view.last_seq + 1}",
            field="start",
            limit=view.last_seq + 1,
        )
    if 1 < start <= view.pointers.floor:
        return CursorExpired(
            f"rows up to {view.pointers.floor} were purged: start at the beginning or after them",
            field="start",
            limit=view.pointers.floor,
        )
    return None


def _start_position(view: View, start: Start | int) -> Position:
    if isinstance(start, Start):
        seq = 0 if start is Start.BEGINNING else int(view.last_seq)
    else:
        seq = start - 1
    return Position(view.history, seq, seq, seq)


def do_open_cursor(draft: Draft, command: OpenCursor) -> CursorCell:
    view = draft.view
    cell = CursorCell(
        view.pointers.cursor + 1,
        command.retain,
        _start_position(view, command.start),
        draft.now,
    )
    draft.put_pointers(msgspec.structs.replace(view.pointers, cursor=cell.id))
    draft.put_cursor(command.name, cell)
    return cell


def _find(view: View, name: str, cursor: int | None = None) -> CursorCell | Refused:
    cell = view.cursors.get(name)
    if cell is None:
        return NotFound(f"there is no cursor {name!r}", field="name")
    if cursor is not None and cell.id != cursor:
        return NotFound(f"cursor {name!r} was deleted and made anew since it was opened")
    if cell.dropped:
        return CursorExpired(
            f"cursor {name!r} retained rows for longer than allowed and was dropped; reset it"
        )
    return cell


def next_snapshot(draft: Draft, command: NextSnapshot) -> SnapshotRef | Refused | None:
    """The pin that the cursor reads next; an unfinished one is offered again, unchanged."""
    view = draft.view
    cell = _find(view, command.name, command.cursor)
    if isinstance(cell, Refused):
        return cell
    pin = view.pins.get(cell.pin)
    floor = pin.floor if pin is not None else view.pointers.floor
    back = resume(view.takeovers, view.history, view.last_seq, floor, cell.position)
    if back == 0:
        return CursorExpired(
            f"cursor {command.name!r} stands at {cell.position.seq}, behind rows that are gone "
            f"(up to {floor}); reset it to start over"
        )
    after = max(command.after, cell.position.seq)
    if back is not None:
        after = back
    elif pin is None and cell.position.seq < cell.position.snapshot_end:
        # It stopped in the middle of a snapshot whose pin has gone by age: rows before its place
        # may have been replaced by rows that only a new snapshot shows.
        after = max(command.after if command.after > cell.position.seq else 0, 0)
        after = after or cell.position.snapshot_start
    if pin is not None and pin.boundary > after and back is None:
        renewed = msgspec.structs.replace(pin, deadline_ms=draft.now + command.pin_ms)
        draft.renew_pin(cell.pin, renewed)
        return draft.promise(_ref(view, cell.pin, pin, after))
    if view.last_seq <= after:
        return None
    if len(view.pins) >= limits.PINS_MAX and pin is None:
        return _too_many_pins()
    if pin is not None:
        draft.drop_pin(cell.pin)
    number = _pin(draft, command.pin_ms, command.name, retain=cell.retain)
    draft.put_cursor(command.name, msgspec.structs.replace(cell, pin=number))
    return draft.promise(_ref(view, number, view.pins[number], after))


def _ref(view: View, number: int, pin: PinCell, after: int) -> SnapshotRef:
    return SnapshotRef(number, view.history, after, pin.retain, pin.index, pin.boundary)


def check_commit(draft: Draft, command: CommitCursor) -> Refused | None:
    view, new = draft.view, command.position
    cell = _find(view, command.name, command.cursor)
    if isinstance(cell, Refused):
        return cell
    if new.history != view.history:
        return Stale("the snapshot is of a history that was replaced; read again", field="position")
    if not new.snapshot_start <= new.seq <= new.snapshot_end <= view.last_seq:
        return Invalid(
            f"{new.seq} is not within the snapshot {new.snapshot_start}–{new.snapshot_end}",
            field="position",
        )
    if new.seq < cell.position.seq:
        return Stale(
            f"the cursor stands at {cell.position.seq} already; reset it to go back",
            field="position",
        )
    if new.seq < new.snapshot_end and cell.pin not in view.pins:
        return SnapshotExpired("the snapshot's pin was dropped; read it again from its start")
    return None


def do_commit(draft: Draft, command: CommitCursor) -> CursorCell:
    view, new = draft.view, command.position
    cell = view.cursors[command.name]
    pin = cell.pin
    if new.seq == new.snapshot_end:
        new = Position(new.history, new.seq, new.seq, new.seq)
        held = view.pins.get(pin)
        if held is not None and 0 < held.boundary <= new.seq:
            draft.drop_pin(pin)
            pin = 0
    moved = msgspec.structs.replace(cell, position=new, moved_ms=draft.now, pin=pin)
    draft.put_cursor(command.name, moved)
    if cell.retain:
        draft.pass_to(view.retain_floor())
    return moved


def do_reset(draft: Draft, command: ResetCursor) -> CursorCell | Refused:
    view = draft.view
    cell = view.cursors.get(command.name)
    if cell is None:
        return NotFound(f"there is no cursor {command.name!r}", field="name")
    refused = _check_start(view, command.start)
    if refused is not None:
        return refused
    if cell.pin in view.pins:
        draft.drop_pin(cell.pin)
    # A new id: whoever still reads through the old place must not commit it over the new one.
    new = CursorCell(
        view.pointers.cursor + 1,
        cell.retain,
        _start_position(view, command.start),
        draft.now,
    )
    draft.put_pointers(msgspec.structs.replace(view.pointers, cursor=new.id))
    draft.put_cursor(command.name, new)
    if cell.retain:
        draft.pass_to(view.retain_floor())
    return new


def do_delete_cursor(draft: Draft, name: str) -> bool:
    view = draft.view
    cell = view.cursors.get(name)
    if cell is None:
        return False
    if cell.pin in view.pins:
        draft.drop_pin(cell.pin)
    draft.put_cursor(name, None)
    if cell.retain and not cell.dropped:
        draft.pass_to(view.retain_floor())
    return True


# --- Pins --------------------------------------------------------------------------------------


def do_pin(draft: Draft, command: Pin) -> SnapshotRef | Refused:
    view = draft.view
    if len(view.pins) >= limits.PINS_MAX:
        return _too_many_pins()
    number = _pin(draft, command.pin_ms, "", retain=False)
    return draft.promise(_ref(view, number, view.pins[number], 0))


def _too_many_pins() -> TooLarge:
    return TooLarge(
        f"the queue has {limits.PINS_MAX} pins; unpin one first",
        field="pins",
        limit=limits.PINS_MAX,
    )


def _pin(draft: Draft, pin_ms: int, cursor: str, *, retain: bool) -> int:
    view = draft.view
    number = view.pointers.pin + 1
    draft.put_pointers(msgspec.structs.replace(view.pointers, pin=number))
    draft.put_pin(number, PinCell(0, 0, 0, draft.now + pin_ms, cursor, retain))
    return number


def do_unpin(draft: Draft, pin: int) -> bool:
    view = draft.view
    cell = view.pins.get(pin)
    if cell is None:
        return False
    cursor = view.cursors.get(cell.cursor)
    if cursor is not None and cursor.pin == pin:
        draft.put_cursor(cell.cursor, msgspec.structs.replace(cursor, pin=0))
    draft.drop_pin(pin)
    return True


# --- Stages ------------------------------------------------------------------------------------


def check_stage(draft: Draft, command: Stage) -> Refused | None:
    view = draft.view
    cell = view.stages.get(command.stage)
    if cell is None and len(view.stages) >= limits.STAGES_MAX:
        return TooLarge(
            f"the queue has {limits.STAGES_MAX} stages; publish or drop one first",
            field="stage",
            limit=limits.STAGES_MAX,
        )
    rows = command.rows.count + (cell.rows if cell else 0)
    if rows > limits.STAGE_ROWS_MAX:
        return TooLarge(
            f"a stage holds up to {limits.STAGE_ROWS_MAX} rows; use several, published together",
            field="stage",
            limit=limits.STAGE_ROWS_MAX,
        )
    if not view.spec.keyed and len(command.rows.bodies.validity):
        return Invalid("a message without a body deletes its key: the queue is not keyed")
    return None


def do_stage(draft: Draft, command: Stage) -> int:
    cell = draft.view.stages.get(command.stage) or StageCell(0, 0, 0)
    rows = cell.rows + command.rows.count
    draft.stage(command.stage, command.rows)
    draft.put_stage(command.stage, StageCell(rows, cell.bytes + command.rows.size(), draft.now))
    return rows


def do_drop_stage(draft: Draft, name: str) -> bool:
    if name not in draft.view.stages:
        return False
    draft.put_stage(name, None)
    draft.drop_stage(name)
    return True


# --- Age ---------------------------------------------------------------------------------------


def do_tick(draft: Draft) -> None:
    """Let go of what is older than its limit; bounded by what a shard may remember."""
    view, now = draft.view, draft.now
    for number, pin in sorted(view.pins.items()):
        if 0 < pin.deadline_ms <= now and pin.index:
            do_unpin(draft, number)
    for name, stage in sorted(view.stages.items()):
        if stage.time_ms + limits.STAGE_MS_MAX <= now:
            do_drop_stage(draft, name)
    for name, producer in sorted(view.producers.items()):
        if producer.time_ms + limits.PRODUCER_REMEMBERED_MS <= now:
            draft.put_producer(name, None)
    while view.ended and view.leases[view.ended[0]].ended_ms + limits.LEASE_REMEMBERED_MS <= now:
        draft.drop_lease(view.ended.popleft())
    _drop_retaining(draft)
    _expire_deletes(draft)


def _drop_retaining(draft: Draft) -> None:
    view = draft.view
    if not view.retained:
        return
    for name, cell in sorted(view.cursors.items()):
        if not cell.retain or cell.dropped:
            continue
        too_old = cell.moved_ms + limits.CURSOR_RETAIN_MS_MAX <= draft.now
        too_far = view.last_seq - cell.position.seq > limits.CURSOR_RETAIN_ROWS_MAX
        behind = view.last_seq > cell.position.seq
        if behind and (too_old or too_far):
            draft.put_cursor(name, msgspec.structs.replace(cell, dropped=True))
            draft.pass_to(view.retain_floor())


def _expire_deletes(draft: Draft) -> None:
    """A delete dies when it is old enough and every retaining cursor has seen it."""
    view = draft.view
    floor = view.retain_floor()
    died = BitMap64()
    for second in sorted(view.deletes):
        if (second + 1) * 1000 + view.spec.keep_deletes_ms > draft.now:
            break
        seen = view.deletes[second].copy()
        if seen.max() > floor:
            seen.remove_range(floor + 1, seen.max() + 1)
        died |= seen
    if died:
        draft.die(Death.EXPIRED, died)
        purged = max(view.pointers.floor, died.max())
        draft.put_pointers(msgspec.structs.replace(view.pointers, floor=purged))


def tick_due(view: View, now: int) -> bool:
    """Whether a tick at `now` would change anything; cheap enough to be asked every second."""
    if any(0 < pin.deadline_ms <= now for pin in view.pins.values()):
        return True
    if any(s.time_ms + limits.STAGE_MS_MAX <= now for s in view.stages.values()):
        return True
    if view.ended and view.leases[view.ended[0]].ended_ms + limits.LEASE_REMEMBERED_MS <= now:
        return True
    if any((second + 1) * 1000 + view.spec.keep_deletes_ms <= now for second in view.deletes):
        return True
    return any(
        p.time_ms + limits.PRODUCER_REMEMBERED_MS <= now for p in view.producers.values()
    ) or (view.retained > 0 and _retaining_due(view, now))


def _retaining_due(view: View, now: int) -> bool:
    return any(
        cell.retain
        and not cell.dropped
        and view.last_seq > cell.position.seq
        and (
            cell.moved_ms + limits.CURSOR_RETAIN_MS_MAX <= now
            or view.last_seq - cell.position.seq > limits.CURSOR_RETAIN_ROWS_MAX
        )
        for cell in view.cursors.values()
    )
