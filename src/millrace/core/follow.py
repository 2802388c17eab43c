"""The rules of followers: cursors, pins.

Rule 1: a pin shows the shard as of its own batch, and always the same rows while it stands.
Rule 2: a cursor never skips. Where rows it has not read are gone, it is refused until it is reset.
Rule 3: a cursor never falls back by itself, except to where a takeover sends it.
Rule 4: a position's snapshot start is the last boundary that was read up to. A cursor that lost its
pin in the middle of a snapshot goes on where it was, but keeps that start until it reaches the
end of another snapshot: only there does it hold a state that the shard ever had.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millrace import limits
from millrace.core.answers import SnapshotRef
from millrace.core.commands import (
    CommitCursor,
    NextSnapshot,
    OpenCursor,
    Pin,
    ResetCursor,
    Unpin,
)
from millrace.core.draft import Draft
from millrace.core.model import CursorCell, PinCell, Position, Start
from millrace.core.takeover import resume, shared_index, shared_seq
from millrace.core.view import View
from millrace.errors import (
    CursorExpired,
    Exists,
    Full,
    Invalid,
    NotFound,
    Refused,
    Retry,
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
        return NotFound(
            f"cursor {name!r} was deleted or reset, and made anew, since it was opened",
            field="name",
        )
    if cell.dropped:
        return CursorExpired(
            f"cursor {name!r} stood at {cell.position.seq} and held rows back for longer, or more "
            "of them, than the queue allows (retain_max, retain_max_bytes): it was dropped, and "
            "rows after that may be gone; reset it",
            field="name",
        )
    return cell


class Look(NamedTuple):
    """Where a cursor stands before it is given a snapshot."""

    cell: CursorCell
    position: Position
    after: int
    start: int
    pin: PinCell | None
    """The one that it reads."""
    is_unread: bool
    """That one is to be offered again, unchanged."""
    has_rows: bool
    """There is something after what was read."""


def next_snapshot(draft: Draft, command: NextSnapshot) -> SnapshotRef | Refused | Retry | None:
    """The pin that the cursor reads next; an unfinished one is offered again, unchanged."""
    found = look(draft, command)
    if isinstance(found, Refused):
        return found
    if not found.has_rows:
        return None
    if found.is_unread:
        return offer(draft, command, found)
    full = check_pin(draft) if found.pin is None else None
    return full or take(draft, command, found)


def look(draft: Draft, command: NextSnapshot) -> Look | Refused:
    """Judge where the cursor goes on; nothing is changed."""
    view = draft.view
    cell = _find(view, command.name, command.cursor)
    if isinstance(cell, Refused):
        return cell
    position = _go_on(view, command, cell.position)
    if isinstance(position, Refused):
        return position
    pin = view.pins.get(cell.pin)
    is_new = pin is not None and draft.is_new_pin(cell.pin)
    after, start = position.seq, _boundary(position)
    read = max(after, command.after if command.after <= view.last_seq else 0)
    if after < read and command.history in (b"", view.history):
        # The reader is ahead of what it has committed.
        after = read
        if pin is not None and pin.boundary == after:
            start = after
    # Within a pin it is judged by what was gone then, or a long first scan would restart for ever;
    # beyond it, by what is gone now. A pin that shows less than the reader has read, which only a
    # takeover brings back, would set it back in time.
    goes_on = pin is not None and pin.boundary > after and pin.boundary >= read
    floor = pin.floor if pin is not None and goes_on else view.pointers.floor
    if 0 < read < floor:
        return CursorExpired(
            f"cursor {command.name!r} stands at {read}, behind rows that are gone "
            f"(up to {floor}); reset it to start over",
            field="name",
            limit=floor,
        )
    is_unread = is_new or (goes_on and position == cell.position)
    return Look(cell, position, after, start, pin, is_unread, view.last_seq > after)


def offer(draft: Draft, command: NextSnapshot, found: Look) -> SnapshotRef:
    """The cursor's pin once more, for as long again; without one, nothing to read."""
    view, pin, number = draft.view, found.pin, found.cell.pin
    if pin is None:
        nothing = PinCell(0, found.after, 0, 0, retain=found.cell.retain)
        return _ref(view, 0, nothing, found.after, found.start)
    if draft.is_new_pin(number):
        return draft.promise(_ref(view, number, pin, found.after, found.start))
    until = max(pin.deadline_ms, draft.now + command.pin_ms)
    renewed = msgspec.structs.replace(pin, deadline_ms=until)
    draft.renew_pin(number, renewed)
    return _ref(view, number, renewed, found.after, found.start)


def take(draft: Draft, command: NextSnapshot, found: Look, vector: int = 0) -> SnapshotRef:
    """A new pin, which the cursor reads instead of the one that it has."""
    view, cell = draft.view, found.cell
    if found.pin is not None:
        draft.drop_pin(cell.pin)
    number = _pin(draft, command.pin_ms, command.name, retain=cell.retain)
    moved = msgspec.structs.replace(
        cell, pin=number, position=found.position, vector=vector, torn=False
    )
    draft.put_cursor(command.name, moved)
    return draft.promise(_ref(view, number, view.pins[number], found.after, found.start))


def _go_on(view: View, command: NextSnapshot, position: Position) -> Position | CursorExpired:
    """Where the cursor goes on: where it is, or where a takeover sends it.

    It is sent to the start of its snapshot if that is not shared to its end: rows that were
    replaced within the snapshot may be needed again. Where a follower has read what is not shared
    at all, it must undo that itself, and so it is told.
    """
    read = [(position.history, position.seq)]
    if command.history:
        read.append((command.history, command.after))
    for history, seq in read:
        shared = shared_seq(view.takeovers, history, view.history, view.last_seq)
        if seq > (shared or 0):
            return CursorExpired(
                f"cursor {command.name!r} has read up to {seq} in a history that the queue shares "
                f"up to {shared or 0}; undo what came after that, and reset it",
                field="name",
                limit=shared or 0,
            )
    back = resume(view.takeovers, view.history, view.last_seq, 0, position)
    return position if back is None else Position(view.history, back, back, back)


def _boundary(position: Position) -> int:
    """The last boundary that was read up to."""
    return position.snapshot_start if position.seq < position.snapshot_end else position.seq


def _ref(view: View, number: int, pin: PinCell, after: int, start: int) -> SnapshotRef:
    return SnapshotRef(number, view.history, after, pin.retain, pin.index, pin.boundary, start)


def check_commit(draft: Draft, command: CommitCursor) -> Refused | None:
    view, new = draft.view, command.position
    cell = _find(view, command.name, command.cursor)
    if isinstance(cell, Refused):
        return cell
    if new.history != view.history:
        return Stale("the snapshot is of a history that was replaced; read again", field="position")
    if not 0 <= new.snapshot_start <= new.seq <= new.snapshot_end <= view.last_seq:
        return Invalid(
            f"{new.seq} is not within the snapshot {new.snapshot_start}–{new.snapshot_end}",
            field="position",
        )
    place = view.place_of(cell)
    if new.seq < place:
        return Stale(f"the cursor stands at {place} already; reset it to go back", field="position")
    if new.seq < new.snapshot_end:
        pin = view.pins.get(cell.pin)
        if pin is None or pin.boundary != new.snapshot_end:
            return SnapshotExpired(
                "the snapshot's pin was dropped; read on in a new one, and commit that",
                field="position",
            )
    return None


def do_commit(draft: Draft, command: CommitCursor) -> CursorCell:
    view, new = draft.view, command.position
    cell = view.cursors[command.name]
    pin, old = cell.pin, cell.position
    if new.seq == new.snapshot_end:
        new = Position(new.history, new.seq, new.seq, new.seq)
        held = view.pins.get(pin)
        if held is not None and held.index and held.boundary <= new.seq:
            draft.drop_pin(pin)
            pin = 0
    elif old.seq < old.snapshot_end and new.snapshot_start < old.snapshot_end:
        # It left an earlier snapshot in the middle: no boundary was reached since that one began.
        start = min(old.snapshot_start, new.snapshot_start)
        new = msgspec.structs.replace(new, snapshot_start=start)
    moved = msgspec.structs.replace(cell, position=new, moved_ms=draft.now, pin=pin)
    draft.put_cursor(command.name, moved)
    if cell.retain:
        draft.pass_to(view.retain_floor())
    return moved


def check_reset(draft: Draft, command: ResetCursor) -> Refused | None:
    if command.name not in draft.view.cursors:
        return NotFound(f"there is no cursor {command.name!r}", field="name")
    return _check_start(draft.view, command.start)


def do_reset(draft: Draft, command: ResetCursor) -> CursorCell:
    view = draft.view
    cell = view.cursors[command.name]
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


def check_pin(draft: Draft) -> Retry | None:
    """Whether there is room for one more pin; it passes: pins are let go, and go by age."""
    if len(draft.view.pins) < limits.PINS_MAX:
        return None
    return Full(
        f"the queue has {limits.PINS_MAX} pins; ask again when one of them was let go",
        field="pins",
        limit=limits.PINS_MAX,
    )


def check_plain_pin(draft: Draft) -> Retry | None:
    """The same for a pin that no cursor reads: some room is left for those who follow."""
    plain = sum(not pin.cursor for pin in draft.view.pins.values())
    if plain < limits.PLAIN_PINS_MAX:
        return check_pin(draft)
    return Full(
        f"the queue has {limits.PLAIN_PINS_MAX} pins that no cursor reads; ask again when one of "
        "them was let go, and pin for no longer than need be",
        field="pins",
        limit=limits.PLAIN_PINS_MAX,
    )


def do_pin(draft: Draft, command: Pin) -> SnapshotRef:
    view = draft.view
    number = _pin(draft, command.pin_ms, "", retain=False)
    return draft.promise(_ref(view, number, view.pins[number], 0, 0))


def _pin(draft: Draft, pin_ms: int, cursor: str, *, retain: bool) -> int:
    view = draft.view
    number = view.pointers.pin + 1
    draft.put_pointers(msgspec.structs.replace(view.pointers, pin=number))
    view.scale.pinned[number] = view.weighed_from()
    draft.put_pin(number, PinCell(0, 0, 0, draft.now + pin_ms, cursor, retain, draft.now))
    return number


def do_unpin(draft: Draft, command: Unpin) -> bool:
    view = draft.view
    cell = view.pins.get(command.pin)
    if cell is None or cell.index != command.index:
        return False
    shared = shared_index(view.takeovers, command.history, view.history, draft.index)
    if shared is None or command.index > shared:
        return False
    unpin(draft, command.pin)
    return True


def unpin(draft: Draft, pin: int) -> None:
    """Let a pin go, whoever reads it."""
    view = draft.view
    cell = view.pins[pin]
    cursor = view.cursors.get(cell.cursor)
    if cursor is not None and cursor.pin == pin:
        left = msgspec.structs.replace(cursor, pin=0, torn=cursor.vector > 0)
        draft.put_cursor(cell.cursor, left)
    draft.drop_pin(pin)
