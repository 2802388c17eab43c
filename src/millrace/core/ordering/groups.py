"""Message groups: blocking and turns in the orders `group` and `fair`.

Rule 1: the waiting messages of a group are in its cell of kind TURN, and in further ones (GROUP)
when that is full. A group has a turn in the ring (RING) if and only if it has waiting messages and
its messages in flight are fewer than the order allows: `group` allows none, `fair` as many as the
queue's setting.
Rule 2: a delivered message counts until it has ended, released or not: so turns depend on cells
alone, and not on time.
Rule 3: a useless turn does no harm, and is dropped when it comes. After a crash it is unknown which
groups in flight have waiting messages: each of them gets a turn when it is free.
Rule 4: a group with released messages takes its turn with those, in the order of seqs.
Rule 5: in the order `group` the setting `group_blocking` is the scope of blocking. With `lease` the
group has no turn before all its delivered messages have ended or are ready again. With `message` a
lease call walks the group from its oldest message on and stops at the first invisible one (in
flight, or released with a delay): it gets the messages before that, released ones first and
undelivered ones behind them.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import GroupCell, Kind, RingCell, TurnCell
from millrace.core.needs import Need
from millrace.core.spec import QueueSpec
from millrace.core.state import cell_lookup
from millrace.core.state.draft import Draft
from millrace.core.state.group_state import NEVER_SEQ, GroupInFlight
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.ready_ring import Changed
from millrace.core.state.view import View
from millrace.errors import Invalid, Refused

_TWO = struct.Struct(">QQ")
_THREE = struct.Struct(">QQQ")
_TURN = Kind.TURN


def turn_name(view: View, group: int) -> cell_lookup.CellName:
    """Return the name of a group's cell."""
    return (_TURN, _TWO.pack(view.pointers.era, group))


def more_name(view: View, group: int, number: int) -> cell_lookup.CellName:
    """Return the name of one of a group's further cells."""
    return (Kind.GROUP, _THREE.pack(view.pointers.era, group, number))


def ring_key(era: int, turn: int) -> bytes:
    """Return the key of a turn."""
    return _TWO.pack(era, turn)


def turn_of(key: bytes) -> int:
    """Return the turn in a key of kind RING."""
    return int(_TWO.unpack(key)[1])


def bucket_key(era: int, due_ms: int, group: int) -> bytes:
    """Return the key of a group that waits for its rate."""
    return _THREE.pack(era, due_ms, group)


def bucket_due(key: bytes) -> int:
    """Return the time in a key of kind BUCKET."""
    return int(_THREE.unpack(key)[1])


def bound_of(spec: QueueSpec) -> int:
    """Return the number of messages in flight at which a group has no turn."""
    return 1 if spec.order == "group" else spec.group_in_flight or limits.IN_FLIGHT_MAX + 1


def need_cells(draft: Draft, groups: Iterable[int]) -> Need | None:
    """Return the Need of the cells of these groups, or None if all are known."""
    view = draft.view
    cached = view.groups.cells
    unknown = [turn_name(view, group) for group in groups if group not in cached]
    return cell_lookup.need(draft, unknown) if unknown else None


def unknown(view: View, groups: Iterable[int]) -> list[cell_lookup.CellName]:
    """Return the cells of these groups that only the store knows, outside of a decision."""
    cached = view.groups.cells
    names = [turn_name(view, group) for group in dict.fromkeys(groups) if group not in cached]
    for layer in view.layers if names else ():
        names = [name for name in names if name not in layer.points]
    return names


def turn_cell(draft: Draft, group: int) -> TurnCell | None:
    """Return the cell of a group's waiting messages, which must be known (`need_cells`); it is
    cached."""
    cells = draft.view.groups.cells
    if group in cells:
        return cells[group]
    cell = cell_lookup.look(draft, turn_name(draft.view, group))
    assert cell is None or isinstance(cell, TurnCell)
    cells[group] = cell
    return cell


def put_cell(draft: Draft, group: int, cell: TurnCell | None) -> None:
    """Put the cell of a group's waiting messages; None: the group has neither messages nor rate
    to remember."""
    view = draft.view
    draft.points[_TURN, _TWO.pack(view.pointers.era, group)] = cell
    view.groups.cells[group] = cell


def waits(cell: TurnCell | None) -> bool:
    """Return True if the group has waiting messages."""
    return cell is not None and bool(cell.seqs or cell.head < cell.tail)


def check_spec(spec: QueueSpec) -> Refused | None:
    """Check that the settings of orders fit together."""
    for field, rate_us, burst in (
        ("rate_burst", spec.rate_us, spec.rate_burst),
        ("group_burst", spec.group_rate_us, spec.group_burst),
    ):
        if rate_us and burst < 1:
            return Invalid(f"{field} is {burst}: nothing could ever be handed out", field=field)
    if spec.is_grouped and spec.retention == "log":
        return Invalid(
            f"a queue with retention 'log' is worked in the order of its seqs, and not in "
            f"order {spec.order!r}; take 'strict' or 'none'",
            field="order",
        )
    if spec.group_blocking == "message" and spec.order != "group":
        return Invalid(
            "group_blocking 'message' needs groups that block: make the queue with order 'group'",
            field="group_blocking",
        )
    if spec.is_grouped:
        return None
    if not (spec.group_in_flight or spec.group_rate_us):
        return None
    field = "group_in_flight" if spec.group_in_flight else "group_rate"
    return Invalid(
        f"{field} needs groups: make the queue with order 'group' or 'fair'", field=field
    )


# --- Enter -------------------------------------------------------------------------------------


def need_to_enter(draft: Draft, groups: Iterable[int]) -> Need | None:
    """Return the Need of everything that `enter` must know of these groups, or None."""
    view = draft.view
    names = dict.fromkeys(groups)
    need = need_cells(draft, names)
    if need is not None:
        return need
    last: list[cell_lookup.CellName] = []
    for group in names:
        cell = turn_cell(draft, group)
        if cell is not None and cell.head < cell.tail:
            last.append(more_name(view, group, cell.tail - 1))
    return cell_lookup.need(draft, last) if last else None


def enter(draft: Draft, seqs: Iterable[int], groups: Iterable[int]) -> None:
    """Append messages to their groups, where they wait from now on."""
    view = draft.view
    by_group: dict[int, list[int]] = {}
    for seq, group in zip(seqs, groups, strict=True):
        waiting = by_group.get(group)
        if waiting is None:
            by_group[group] = [seq]
        else:
            waiting.append(seq)
    bound = bound_of(view.spec)
    flights = view.groups.flights
    joining: list[int] = []
    known_cells, names = view.groups.cells, draft.points
    era = view.pointers.era
    for group, new in by_group.items():
        cell = turn_cell(draft, group)
        if cell is None and group not in flights and len(new) <= limits.TURN_SEQS_MAX:
            # The fast path of many new groups.
            joining.append(group)
            cell = TurnCell(tuple(new))
            names[_TURN, _TWO.pack(era, group)] = known_cells[group] = cell
            continue
        flight = flights.get(group)
        if not waits(cell) and (flight is None or flight.count < bound):
            joining.append(group)
        if flight is not None and flight.more is not True:
            flight.more = True
            look(view, group, flight)
        put_cell(draft, group, _behind(draft, group, cell, new))
    put_turns(draft, joining)


def _behind(draft: Draft, group: int, cell: TurnCell | None, new: list[int]) -> TurnCell:
    """Return the cell of the group with these messages appended."""
    if cell is None:
        if len(new) <= limits.TURN_SEQS_MAX:
            return TurnCell(tuple(new))
        cell = TurnCell(())
    elif not waits(cell):
        # The cell is no longer kept for its bucket.
        cell = msgspec.structs.replace(cell, due_ms=0)
    seqs, tail = cell.seqs, cell.tail
    if cell.head == tail:
        # The messages of a cell of kind GROUP may be more than this cell holds otherwise.
        room = max(limits.TURN_SEQS_MAX - len(seqs), 0)
        seqs, new = (*seqs, *new[:room]), new[room:]
    else:
        name = more_name(draft.view, group, tail - 1)
        last = cell_lookup.look(draft, name)
        assert isinstance(last, GroupCell)
        room = limits.GROUP_CELL_SEQS_MAX - len(last.seqs)
        if room > 0:
            cell_lookup.put(draft, name, GroupCell((*last.seqs, *new[:room])))
            new = new[room:]
    step = limits.GROUP_CELL_SEQS_MAX
    for at in range(0, len(new), step):
        cell_lookup.put(
            draft, more_name(draft.view, group, tail), GroupCell(tuple(new[at : at + step]))
        )
        tail += 1
    return TurnCell(seqs, cell.head, tail, cell.paid_us, cell.due_ms)


def put_turns(draft: Draft, groups: Sequence[int]) -> None:
    """Give each of these groups a turn, after all others."""
    if not groups:
        return
    view = draft.view
    turn = view.pointers.turn
    _put_pages(draft, view.groups.ring.put(turn + 1, groups))
    draft.put_pointers(msgspec.structs.replace(view.pointers, turn=turn + len(groups)))


def drop_turns(draft: Draft, turns: Sequence[int]) -> None:
    """Drop these turns, in rising order, which were taken or were useless."""
    if not turns:
        return
    view = draft.view
    ring = view.groups.ring
    _put_pages(draft, ring.drop(turns))
    if ring.front != view.pointers.front:
        draft.put_pointers(msgspec.structs.replace(view.pointers, front=ring.front))


def _put_pages(draft: Draft, changed: Changed) -> None:
    era = draft.view.pointers.era
    for first, page in changed.items():
        draft.points[Kind.RING, ring_key(era, first)] = None if page is None else RingCell(page)


# --- Messages in flight ------------------------------------------------------------------------


def add_in_flight(
    draft: Draft, lease: LeaseState, given: Iterable[tuple[int, Sequence[int], bool]]
) -> None:
    """Move undelivered messages of each group into a lease.

    The flag of each group is True if others of it wait.
    """
    view = draft.view
    flights, holds = view.groups.flights, lease.groups
    by_message = view.spec.blocking == "message"
    for group, seqs, has_more in given:
        flight = flights.get(group)
        if flight is None:
            flights[group] = GroupInFlight(
                len(seqs), has_more, BitMap64(seqs) if by_message else None
            )
        else:
            flight.add(seqs)
            flight.more = has_more
            look(view, group, flight)
        for seq in seqs:
            holds[seq] = group


def move_in_flight(draft: Draft, lease: LeaseState, old: LeaseState, seq: int) -> None:
    """Move a message from its earlier lease into this one."""
    group = old.groups.pop(seq, None)
    if group is None:
        return
    lease.groups[seq] = group
    flight = draft.view.groups.flights[group]
    flight.returned.discard(seq)
    look(draft.view, group, flight)


def leave_place(lease: LeaseState, seq: int) -> int | None:
    """Remove a message from the lease; its successor takes its place in the group (`take_place`).

    Returns the group, or None if the message has none.
    """
    return lease.groups.pop(seq, None)


def take_place(draft: Draft, lease: LeaseState, old: int, seq: int, group: int) -> None:
    """Add the successor of a message to its group, in flight in this lease."""
    lease.groups[seq] = group
    flight = draft.view.groups.flights[group]
    flight.remove(old)
    flight.add((seq,))
    look(draft.view, group, flight)


def return_due(draft: Draft) -> None:
    """Expire leases: their messages are ready again, their receipts stay valid."""
    view = draft.view
    while view.deadlines and view.deadlines[0][0] <= draft.now:
        _, lease_id = view.deadlines[0]
        draft.pop_deadline()
        lease = view.leases.get(lease_id)
        if lease is not None and not lease.ended_ms:
            due = lease.due(draft.now)
            view.returned |= due
            if view.postponed:
                view.postponed -= due
            returned(draft, lease, due)


def returned(draft: Draft, lease: LeaseState, seqs: BitMap64) -> None:
    """Mark messages of the lease as ready again."""
    _note(draft, lease, seqs, is_back=True)


def held(draft: Draft, lease: LeaseState, seqs: BitMap64) -> None:
    """Mark messages of the lease as held again, if they were ready."""
    _note(draft, lease, seqs, is_back=False)


def _note(draft: Draft, lease: LeaseState, seqs: BitMap64, *, is_back: bool) -> None:
    touched: dict[int, GroupInFlight] = {}
    for seq in seqs if lease.groups else ():
        group = lease.groups[seq]
        flight = touched[group] = draft.view.groups.flights[group]
        if is_back:
            flight.give_back(seq)
        else:
            flight.returned.discard(seq)
    for group, flight in touched.items():
        look(draft.view, group, flight)


def passed_on(draft: Draft, lease: LeaseState, seqs: BitMap64) -> BitMap64:
    """Return messages of the lease that are ready again while another call holds one that blocks
    them.

    In the order `group` a message is blocked by any message of its group, or any before it
    (`group_blocking`); in `strict` by any at all.
    """
    view = draft.view
    if view.spec.order not in ("strict", "group"):
        return BitMap64()
    return_due(draft)
    ready = seqs & view.returned
    if not ready:
        return BitMap64()
    own = (lease.open | lease.freed) - view.returned
    if view.spec.order == "strict":
        held = len(view.holder) - len(view.returned) - len(view.doomed)
        return ready if held > len(own) else BitMap64()
    flights = view.groups.flights
    if view.spec.blocking == "message":
        return _behind_others(view, lease, ready)
    owned = Counter(lease.groups[seq] for seq in own)
    return BitMap64(
        [
            seq
            for seq in ready
            if (flight := flights[group := lease.groups[seq]]).count - len(flight.returned)
            > owned[group]
        ]
    )


def _behind_others(view: View, lease: LeaseState, seqs: BitMap64) -> BitMap64:
    """Return the messages of the lease behind a message of their group that another call holds."""
    # Each group is evaluated once: one lease call may hold thousands of its messages.
    first: dict[int, int] = {}
    for group in sorted({lease.groups[seq] for seq in seqs}):
        flight = view.groups.flights[group]
        assert flight.seqs is not None
        hidden = flight.seqs - flight.returned
        hidden -= view.overdue
        first[group] = next((one for one in hidden if view.holder[one] != lease.id), NEVER_SEQ)
    return BitMap64([seq for seq in seqs if seq > first[lease.groups[seq]]])


def is_blocking(view: View, flight: GroupInFlight) -> bool:
    """Return True if messages in flight block the undelivered ones of their group."""
    if view.spec.blocking == "message":
        return not flight.visible(view.overdue)[1]
    return flight.count >= bound_of(view.spec)


def nothing_waits(draft: Draft, group: int) -> None:
    """Record that nothing of a group in flight waits: it has no turn."""
    flight = draft.view.groups.flights[group]
    flight.more = False
    look(draft.view, group, flight)


def limited(draft: Draft, group: int) -> None:
    """Move the turn of a group in flight to its bucket, which restores it in time."""
    flight = draft.view.groups.flights[group]
    flight.is_limited = True
    look(draft.view, group, flight)


def overdue(draft: Draft, lease: LeaseState, seq: int) -> None:
    """Note that the TTL of a message in flight has expired: it may no longer block its group."""
    view = draft.view
    if view.spec.blocking == "message" and seq in lease.groups:
        group = lease.groups[seq]
        look(view, group, view.groups.flights[group])


def ended(draft: Draft, lease: LeaseState, seqs: Iterable[int]) -> None:
    """Remove messages of the lease that are settled, dead letters, or replaced."""
    if not lease.groups:
        return
    view = draft.view
    flights, bound = view.groups.flights, bound_of(view.spec)
    free: list[int] = []
    for seq in seqs:
        group = lease.groups.pop(seq, None)
        if group is None:
            continue
        flight = flights[group]
        if flight.count == bound and flight.more is not False:
            free.append(group)
        flight.remove(seq)
        if flight.count:
            look(view, group, flight)
        else:
            del flights[group]
            view.groups.again.pop(group, None)
    put_turns(draft, free)


def revived(draft: Draft, lease: LeaseState, numbers: Mapping[int, int]) -> None:
    """Add ended messages of the lease, by seq with their groups, which are ready again."""
    flights = draft.view.groups.flights
    by_message = draft.view.spec.blocking == "message"
    for seq, group in numbers.items():
        lease.groups[seq] = group
        flight = flights.get(group)
        if flight is None:
            flight = flights[group] = GroupInFlight(seqs=BitMap64() if by_message else None)
        flight.add((seq,))
        flight.give_back(seq)
        look(draft.view, group, flight)


def look(view: View, group: int, flight: GroupInFlight) -> None:
    """Give a group a turn with its released messages, or take it away."""
    blocking, turn = view.spec.blocking, view.pointers.turn
    view.groups.look(group, flight, view.overdue, blocking=blocking, turn=turn)


def configured(draft: Draft, before: QueueSpec) -> None:
    """Apply changed settings: groups that may have more messages in flight, or sooner, get a
    turn."""
    view = draft.view
    if view.spec.blocking != before.blocking:
        _change_blocking(view)
    for group, flight in view.groups.flights.items():
        if flight.is_limited:
            # The rate may have been changed.
            flight.is_limited = False
            look(view, group, flight)
    least, bound = bound_of(before), bound_of(view.spec)
    put_turns(
        draft,
        [
            group
            for group, flight in view.groups.flights.items()
            if least <= flight.count < bound and flight.more is not False
        ],
    )


def _change_blocking(view: View) -> None:
    """Recompute blocking for all groups after a change of `group_blocking`."""
    by_group: dict[int, BitMap64] = {}
    if view.spec.blocking == "message":
        for lease in view.leases.values():
            for seq, group in lease.groups.items():
                by_group.setdefault(group, BitMap64()).add(seq)
    for group, flight in view.groups.flights.items():
        flight.seqs = by_group.get(group)
        look(view, group, flight)
