"""Cursors of followers, their snapshots, and pins.

Rule 1: a pin shows the shard as of its own batch, and always the same rows while it exists.
Rule 2: a cursor never skips. If rows it has not read are gone, it is refused until it is reset.
Rule 3: a cursor never moves back by itself, except when a takeover rolled back what it has read.
Rule 4: a position's snapshot start is the last boundary that was read up to. A cursor that lost its
pin in the middle of a snapshot goes on where it was, but keeps that start until it reaches the end
of another snapshot: only there does it hold a state that the shard ever had.
Rule 5: a cursor has one follower, the one that claimed it last. Snapshots and commits of all others
are refused (fencing); looking at a cursor claims nothing.
Rule 6: cursors whose next snapshot is the same share one pin. It is removed when the last of them
has left it, or by age.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import SnapshotRef
from millrace.core.cells import CursorCell, PinCell
from millrace.core.commands import (
    AwaitCursor,
    CommitCursor,
    Locate,
    NextSnapshot,
    OpenCursor,
    Pin,
    ResetCursor,
    Unpin,
)
from millrace.core.delivery.quarantine import refusal
from millrace.core.model import CursorPosition, StartPoint
from millrace.core.needs import Need
from millrace.core.state.draft import Draft
from millrace.core.state.histories import (
    locate,
    located,
    resume,
    shared_index,
    shared_seq,
)
from millrace.core.state.view import View
from millrace.errors import (
    CursorExpired,
    Exists,
    Fenced,
    Full,
    Invalid,
    NotFound,
    Refused,
    Retry,
    RolledBack,
    SnapshotExpired,
    Stale,
    TooLarge,
)

# --- Cursors -----------------------------------------------------------------------------------


def check_open_cursor(draft: Draft, command: OpenCursor) -> CursorCell | Refused | Need | None:
    """Check an open: None if the cursor has to be created or claimed; its cell if it exists."""
    view = draft.view
    cell = view.cursors.get(command.name)
    if isinstance(command.start, CursorPosition) and cell is not None and cell.dropped:
        return _dropped(command.name, cell)
    if command.cursor and (cell is None or cell.id != command.cursor):
        return _find_refused(view, command.name)
    if cell is not None:
        if cell.retain != command.retain:
            return Exists(
                f"cursor {command.name!r} is there with retain={cell.retain}; "
                "delete it first or open it so",
                field="retain",
            )
        if isinstance(command.start, CursorPosition):
            return _check_start(draft, command.start, cell, retain=cell.retain)
        return None if command.claims else cell
    if len(view.cursors) >= limits.CURSORS_MAX:
        return TooLarge(
            f"the queue has {limits.CURSORS_MAX} cursors; delete one first",
            field="name",
            limit=limits.CURSORS_MAX,
        )
    return _check_start(draft, command.start, None, retain=command.retain)


def _check_start(
    draft: Draft,
    start: StartPoint | int | CursorPosition,
    existing: CursorCell | None,
    *,
    retain: bool,
) -> Refused | Need | None:
    """Check the start of a cursor; `existing` is its present cell."""
    view = draft.view
    if isinstance(start, StartPoint):
        return None
    if isinstance(start, CursorPosition):
        refused = _check_position(view, start)
        if refused is not None or not retain:
            return refused
        return _check_whole(draft, int(_start_position(view, start).seq), existing)
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


def _check_position(view: View, position: CursorPosition) -> Refused | None:
    place = _locate(view, position)
    if isinstance(place, Refused):
        return place
    if place.seq < position.seq:
        return RolledBack(
            f"what was read after {place.seq} is not part of the queue any more, which was "
            f"restored or taken over: undo it, and go on from {place.seq}",
            field="position",
            limit=place.seq,
        )
    return None


def _check_whole(draft: Draft, after: int, existing: CursorCell | None) -> Refused | Need | None:
    """Check that all rows after a position still exist, for a cursor that retains.

    Rows that workers settled are kept only while a retaining cursor needs them, and a settle does
    not raise the purge floor. Rows after the cursor's own place were kept for it.
    """
    view = draft.view
    if view.spec.keyed or view.spec.retention == "log":
        # Rows that expire from a log raise its floor; deletes need no care, since of a key only the
        # newest row counts.
        return None
    is_kept = existing is not None and not existing.dropped
    upto = view.place_of(existing) if existing is not None and is_kept else int(view.last_seq)
    for low in range(after + 1, upto + 1, limits.WHOLE_ROWS_STEP):
        gone = _gone(draft, low, min(low + limits.WHOLE_ROWS_STEP - 1, upto))
        if isinstance(gone, Need):
            return gone
        if gone:
            return CursorExpired(
                f"rows after {after} were settled or expired while no cursor kept them, the first "
                f"of them {gone.min()}: start over, at the beginning",
                field="start",
                limit=upto,
            )
    return None


def _gone(draft: Draft, low: int, high: int) -> BitMap64 | Need:
    """Return the rows within [low, high] that are dead and not kept for retaining cursors."""
    view, part = draft.view, (low, high)
    gone, kept = BitMap64(), BitMap64()
    if low <= view.stored_seq and view.stored_index:
        if part not in view.facts.dead or part not in view.facts.ended:
            return Need(view.shard, dead=(part,), ended=(part,))
        gone |= view.facts.dead[part]
        kept |= view.facts.ended[part]
    for layer in view.layers:
        # In the order of changes: rows that retaining cursors passed were kept before the batch.
        gone |= kept & BitMap64(range(low, min(layer.passed, high) + 1))
        gone |= layer.died
        gone |= BitMap64(range(low, min(layer.purged, high) + 1))
        kept |= layer.kept
    gone |= kept & BitMap64(range(low, min(draft.changes.passed, high) + 1))
    gone |= draft.died()
    gone |= BitMap64(range(low, min(draft.ended_to, high) + 1))
    return gone & BitMap64(range(low, high + 1))


def _locate(view: View, position: CursorPosition) -> CursorPosition | Refused:
    return locate(view.takeovers, view.history, view.last_seq, view.pointers.floor, position)


def check_locate(draft: Draft, command: Locate) -> CursorPosition | Refused:
    view = draft.view
    if command.position is None:
        last = int(view.last_seq)
        return CursorPosition(view.history, last, last, last)
    return _locate(view, command.position)


def await_cursor(draft: Draft, command: AwaitCursor) -> bool | Refused | None:
    """Return True if the cursor's follower has committed all up to the position; None: not yet.

    It counts from the end of a snapshot on: in its middle, a newer revision of a row published at
    the position may still lie ahead of the follower.
    """
    view, wanted = draft.view, command.position
    cell = _find(view, command.name)
    if isinstance(cell, Refused):
        return cell
    shared = shared_seq(view.takeovers, wanted.history, view.history, view.last_seq)
    if wanted.seq > (shared or 0):
        if wanted.history == view.history:
            return _locate(view, wanted)  # type: ignore[return-value]
        return RolledBack(
            f"what was published after {shared or 0} is not part of the queue any more, which was "
            "restored or taken over: publish it again",
            field="position",
            limit=shared or 0,
        )
    stands = located(view.takeovers, view.history, view.last_seq, cell.position)
    return True if _boundary(stands) >= wanted.seq else None


def _start_position(view: View, start: StartPoint | int | CursorPosition) -> CursorPosition:
    if isinstance(start, CursorPosition):
        place = _locate(view, start)
        assert isinstance(place, CursorPosition)
        return place
    if isinstance(start, StartPoint):
        seq = 0 if start is StartPoint.BEGINNING else int(view.last_seq)
    else:
        seq = start - 1
    return CursorPosition(view.history, seq, seq, seq)


def do_open_cursor(draft: Draft, command: OpenCursor) -> CursorCell:
    view = draft.view
    existing = view.cursors.get(command.name)
    number = _take_number(draft)
    claim = b"" if existing is None else existing.claim
    if command.claims:
        claim = _claim(view, number)
    if existing is None:
        position = _start_position(view, command.start)
        cell = CursorCell(number, command.retain, position, draft.now, claim=claim)
    elif isinstance(command.start, CursorPosition) and not _is_at(view, existing, command.start):
        return _begin(draft, command.name, command.start, number, claim)
    else:
        cell = msgspec.structs.replace(existing, claim=claim)
    draft.put_cursor(command.name, cell)
    return cell


def _is_at(view: View, cell: CursorCell, start: CursorPosition) -> bool:
    """Return True if the cursor is at this position."""
    return _locate(view, cell.position) == _start_position(view, start)


def _begin(
    draft: Draft, name: str, start: StartPoint | int | CursorPosition, number: int, claim: bytes
) -> CursorCell:
    """Move the cursor to another place, under a new id."""
    view = draft.view
    cell = view.cursors[name]
    _leave(draft, cell)
    # A new id: readers of the old place must not commit it over the new one.
    new = CursorCell(number, cell.retain, _start_position(view, start), draft.now, claim=claim)
    draft.put_cursor(name, new)
    if cell.retain:
        draft.pass_to(view.retain_floor())
    return new


def _take_number(draft: Draft) -> int:
    """Return the next number of a cursor or a claim."""
    pointers = draft.view.pointers
    number = pointers.cursor + 1
    draft.put_pointers(msgspec.structs.replace(pointers, cursor=number))
    return number


def _claim(view: View, number: int) -> bytes:
    """Return a unique claim (fencing token): a restore may reuse the number, but under another
    history."""
    return view.history + number.to_bytes(8, "big")


def _fenced(name: str) -> Fenced:
    return Fenced(
        f"a later follower has opened cursor {name!r} and has it now: end this one, or open the "
        "cursor again to take it back",
        field="cursor",
    )


def _find_refused(view: View, name: str) -> NotFound:
    if name not in view.cursors:
        return NotFound(f"there is no cursor {name!r}", field="name")
    return NotFound(
        f"cursor {name!r} was deleted or reset, and made anew, since it was opened", field="name"
    )


def _find(view: View, name: str, cursor: int | None = None) -> CursorCell | Refused:
    cell = view.cursors.get(name)
    if cell is None or (cursor is not None and cell.id != cursor):
        return _find_refused(view, name)
    return _dropped(name, cell) if cell.dropped else cell


def _dropped(name: str, cell: CursorCell) -> CursorExpired:
    return CursorExpired(
        f"cursor {name!r} stood at {cell.position.seq} and held rows back for longer, or more "
        "of them, than the queue allows (retain_max, retain_max_bytes): it was dropped, and "
        "rows after that may be gone; reset it",
        field="name",
    )


class CursorState(NamedTuple):
    """The state of a cursor before it gets a snapshot."""

    cell: CursorCell
    position: CursorPosition
    after: int
    start: int
    pin: PinCell | None
    """The pin that it reads."""
    is_unread: bool
    """Its pin is to be offered again, unchanged."""
    has_rows: bool
    """There are rows after those that were read."""


def next_snapshot(draft: Draft, command: NextSnapshot) -> SnapshotRef | Refused | Retry | None:
    """Return the next pin to read; an unfinished one is offered again, unchanged."""
    state = look(draft, command)
    if isinstance(state, Refused):
        return state
    if not state.has_rows:
        return None
    if state.is_unread:
        return offer(draft, command, state)
    full = check_room(draft, state)
    if full is None:
        return take(draft, command, state)
    # Slightly older rows are better than none: newer ones are in the next snapshot.
    shared = _older_pin(draft, state)
    return full if shared is None else _share(draft, command, state, shared)


def look(draft: Draft, command: NextSnapshot) -> CursorState | Refused:
    """Determine where the cursor goes on; nothing is changed."""
    view = draft.view
    cell = refusal(view) or _find(view, command.name, command.cursor)
    if isinstance(cell, Refused):
        return cell
    if command.claim != cell.claim and not command.claims:
        return _fenced(command.name)
    position = _resume_position(view, command, cell.position)
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
    # Within a pin the floor of the pin counts, or a long first scan would restart for ever; beyond
    # it, the present floor counts. A pin with fewer rows than the reader has read, which only a
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
    return CursorState(cell, position, after, start, pin, is_unread, view.last_seq > after)


def offer(draft: Draft, command: NextSnapshot, state: CursorState) -> SnapshotRef:
    """Offer the cursor's pin again, with a new deadline; without a pin, return an empty
    snapshot."""
    view, pin, number = draft.view, state.pin, state.cell.pin
    cell = state.cell
    if command.claims:
        cell = msgspec.structs.replace(cell, claim=_claim(view, _take_number(draft)))
        draft.put_cursor(command.name, cell)
    if pin is None:
        nothing = PinCell(0, state.after, 0, 0, retain=cell.retain)
        return _ref(view, 0, nothing, state, cell.claim)
    if draft.is_new_pin(number):
        return draft.promise(_ref(view, number, pin, state, cell.claim))
    until = max(pin.deadline_ms, draft.now + command.pin_ms)
    renewed = msgspec.structs.replace(pin, deadline_ms=until)
    draft.renew_pin(number, renewed)
    return _ref(view, number, renewed, state, cell.claim)


def take(draft: Draft, command: NextSnapshot, state: CursorState, vector: int = 0) -> SnapshotRef:
    """Pin the present rows for the cursor, instead of the pin that it has."""
    shared = _present_pin(draft, state)
    if shared is not None:
        return _share(draft, command, state, shared, vector)
    _leave(draft, state.cell)
    number = _pin(draft, command.pin_ms, command.name, retain=state.cell.retain)
    return _read(draft, command, state, number, vector)


def _share(
    draft: Draft, command: NextSnapshot, state: CursorState, number: int, vector: int = 0
) -> SnapshotRef:
    """Let the cursor share a pin of others."""
    pin = draft.view.pins[number]
    until = draft.now + command.pin_ms
    if until > pin.deadline_ms:
        draft.renew_pin(number, msgspec.structs.replace(pin, deadline_ms=until))
    if state.cell.pin != number:
        _leave(draft, state.cell)
    return _read(draft, command, state, number, vector)


def _read(
    draft: Draft, command: NextSnapshot, state: CursorState, number: int, vector: int
) -> SnapshotRef:
    view, cell = draft.view, state.cell
    claim = _claim(view, _take_number(draft)) if command.claims else cell.claim
    moved = msgspec.structs.replace(
        cell, pin=number, position=state.position, vector=vector, torn=False, claim=claim
    )
    draft.put_cursor(command.name, moved)
    return draft.promise(_ref(view, number, view.pins[number], state, claim))


def _leave(draft: Draft, cell: CursorCell) -> None:
    """Detach the cursor from its pin; the caller writes the cursor's cell."""
    view = draft.view
    if cell.pin in view.pins and view.readers.get(cell.pin, 0) <= 1:
        draft.drop_pin(cell.pin)


def is_torn(view: View, cell: CursorCell) -> bool:
    """Return True if its pin of a snapshot over several shards was removed before it was read to
    its end."""
    return cell.torn or (cell.vector > 0 and cell.pin > 0 and cell.pin not in view.pins)


def _present_pin(draft: Draft, state: CursorState) -> int | None:
    """Return a pin of other cursors that shows the same as a new one would."""
    view = draft.view
    # Rows ended by this batch are not in `view.changed` yet. A pin from before the batch would show
    # them together with rows that the same transaction has published in another shard.
    is_changing = draft.changes_rows()
    for number in reversed(view.pins):
        pin = view.pins[number]
        is_new = draft.is_new_pin(number)
        if not is_new and (is_changing or pin.boundary < view.last_seq or pin.index < view.changed):
            return None
        if _may_share(state, number, pin) and (is_new or pin.floor == view.pointers.floor):
            return number
    return None


def _older_pin(draft: Draft, state: CursorState) -> int | None:
    """Return the newest pin of other cursors with rows after those that this cursor has read."""
    view = draft.view
    for number in reversed(view.pins):
        pin = view.pins[number]
        if not draft.is_new_pin(number) and pin.boundary <= state.after:
            return None
        if _may_share(state, number, pin):
            return number
    return None


def _may_share(state: CursorState, number: int, pin: PinCell) -> bool:
    cell = state.cell
    return bool(pin.cursor) and pin.retain == cell.retain and number != cell.pin


def _resume_position(
    view: View, command: NextSnapshot, position: CursorPosition
) -> CursorPosition | CursorExpired:
    """Return the position from which the cursor goes on, after takeovers.

    It goes back to the start of its snapshot if that is not shared to its end: rows that were
    replaced within the snapshot may be needed again. A follower that has read rows which were
    rolled back must undo them itself, and gets an error.
    """
    read = [(position.history, position.seq)]
    if command.history:
        read.append((command.history, command.after))
    for history, seq in read:
        shared = shared_seq(view.takeovers, history, view.history, view.last_seq)
        if seq > (shared or 0):
            return RolledBack(
                f"cursor {command.name!r} has read up to {seq} in a history that the queue shares "
                f"up to {shared or 0}; undo what came after its committed place, and reset it",
                field="name",
                limit=shared or 0,
            )
    back = resume(view.takeovers, view.history, view.last_seq, 0, position)
    return position if back is None else CursorPosition(view.history, back, back, back)


def _boundary(position: CursorPosition) -> int:
    """Return the last boundary that was read up to."""
    return position.snapshot_start if position.seq < position.snapshot_end else position.seq


def _ref(view: View, number: int, pin: PinCell, state: CursorState, claim: bytes) -> SnapshotRef:
    after, retain = state.after, state.cell.retain
    index, boundary = pin.index, pin.boundary
    return SnapshotRef(number, view.history, after, retain, index, boundary, state.start, claim)


def check_commit(draft: Draft, command: CommitCursor) -> Refused | None:
    view, new = draft.view, command.position
    cell = _find(view, command.name, command.cursor)
    if isinstance(cell, Refused):
        return cell
    if command.claim != cell.claim:
        return _fenced(command.name)
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
    pin, old, torn = cell.pin, cell.position, is_torn(view, cell)
    if new.seq == new.snapshot_end:
        new = CursorPosition(new.history, new.seq, new.seq, new.seq)
        held = view.pins.get(pin)
        if held is not None and held.index and held.boundary <= new.seq:
            _leave(draft, cell)
            pin = 0
    elif old.seq < old.snapshot_end and new.snapshot_start < old.snapshot_end:
        # It left an earlier snapshot in the middle: no boundary was reached since that one began.
        start = min(old.snapshot_start, new.snapshot_start)
        new = msgspec.structs.replace(new, snapshot_start=start)
    moved = msgspec.structs.replace(cell, position=new, moved_ms=draft.now, pin=pin, torn=torn)
    draft.put_cursor(command.name, moved)
    if cell.retain:
        draft.pass_to(view.retain_floor())
    return moved


def check_reset(draft: Draft, command: ResetCursor) -> Refused | Need | None:
    cell = draft.view.cursors.get(command.name)
    if cell is None:
        return NotFound(f"there is no cursor {command.name!r}", field="name")
    return _check_start(draft, command.start, cell, retain=cell.retain)


def do_reset(draft: Draft, command: ResetCursor) -> CursorCell:
    view = draft.view
    number = _take_number(draft)
    known = view.cursors[command.name].claim
    claim = _claim(view, number) if command.claims else known
    return _begin(draft, command.name, command.start, number, claim)


def do_delete_cursor(draft: Draft, name: str) -> bool:
    view = draft.view
    cell = view.cursors.get(name)
    if cell is None:
        return False
    _leave(draft, cell)
    draft.put_cursor(name, None)
    if cell.retain and not cell.dropped:
        draft.pass_to(view.retain_floor())
    return True


# --- Pins --------------------------------------------------------------------------------------


def check_pin(draft: Draft) -> Retry | None:
    """Check that there is room for one more pin; a retry helps: pins are removed, also by age."""
    if len(draft.view.pins) < limits.PINS_MAX:
        return None
    return Full(
        f"the queue has {limits.PINS_MAX} pins; ask again when one of them was let go",
        field="pins",
        limit=limits.PINS_MAX,
    )


def check_room(draft: Draft, state: CursorState) -> Retry | None:
    """Check that the cursor may get a new snapshot: on a shared pin, instead of its own, or on a
    new one."""
    view = draft.view
    is_own = state.pin is not None and view.readers.get(state.cell.pin, 0) <= 1
    if is_own or _present_pin(draft, state) is not None:
        return None
    return check_pin(draft)


def check_plain_pin(draft: Draft) -> Refused | Retry | None:
    """Check that there is room for a pin without a cursor: some room is reserved for followers."""
    refused = refusal(draft.view)
    if refused is not None:
        return refused
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
    pin = view.pins[number]
    return draft.promise(SnapshotRef(number, view.history, 0, pin.retain, pin.index, pin.boundary))


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
    if command.cursor:
        cursor = view.cursors.get(command.cursor)
        if cursor is None or cursor.claim != command.claim or cursor.pin != command.pin:
            # Its present follower may still read it.
            return False
        _leave(draft, cursor)
        _lose_pin(draft, command.cursor, cursor)
        return True
    if view.readers.get(command.pin, 0) > 1:
        return False
    unpin(draft, command.pin)
    return True


def _lose_pin(draft: Draft, name: str, cursor: CursorCell) -> None:
    """Record that the cursor lost its pin, perhaps in the middle of its snapshot."""
    left = msgspec.structs.replace(cursor, pin=0, torn=cursor.vector > 0)
    draft.put_cursor(name, left)


def unpin(draft: Draft, pin: int) -> None:
    """Remove a pin, even if it is read."""
    view = draft.view
    cell = view.pins[pin]
    cursor = view.cursors.get(cell.cursor)
    if cursor is not None and cursor.pin == pin:
        _lose_pin(draft, cell.cursor, cursor)
    draft.drop_pin(pin)
