"""Selection of messages for a lease call in the orders `group` and `fair`, round robin by group.

Rule 1: the selected groups give one message each, then another one each, until the call has enough:
the share of a group does not depend on its backlog. A call with `together` gets all deliverable
messages of the first group, then of the next.
Rule 2: the selection changes cells, but not which messages anybody gets: useless turns are dropped,
and groups without rate budget wait for it. These changes stay, whether or not the lease call
succeeds.
Rule 3: the work of one call is bounded, whatever the number of groups and of messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import token_bucket
from millrace.core.cells import GroupCell, Kind, RingCell, TurnCell
from millrace.core.delivery import redelivery
from millrace.core.format.codec import decode_cell
from millrace.core.needs import Need
from millrace.core.ordering import group_gc, group_rate, groups
from millrace.core.state import cell_lookup
from millrace.core.state.deferred_cells import due_of
from millrace.core.state.draft import Draft
from millrace.core.state.group_state import ChosenGroup
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.ready_ring import Page
from millrace.core.state.view import View, number_key

Turn = tuple[int, int]
"""(turn, group). Turn 0 is for released messages."""

# --- Turns -------------------------------------------------------------------------------------


def choose(draft: Draft, count: int, *, together: bool = False) -> list[ChosenGroup] | Need:
    """Return the groups from which a lease call takes up to `count` messages, in the order of
    turns."""
    need = group_rate.fire(draft) or promote(draft)
    if need is not None:
        return need
    view = draft.view
    ring = view.groups.ring
    wanted = min(count, limits.RING_TURNS)
    limit = max(wanted, group_gc.ahead(view))
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    while True:
        low = ring.wanted_from(limit)
        if low is not None:
            key = groups.ring_key(view.pointers.era, low)
            pages = -(-limits.RING_TURNS // limits.RING_PAGE_TURNS)
            return Need(view.shard, cells=(Kind.RING, key, pages))
        before = draft.passed
        turns = _in_turn(draft, limit, min(limit, room))
        need = _need_to_select(draft, turns)
        if need is not None:
            return need
        chosen = _select_groups(draft, turns, count)
        need = group_gc.collect_dead(draft, chosen, count, together=together)
        if need is not None:
            return need
        is_all = draft.passed == before and (bool(turns) or ring.wanted_from(1) is None)
        if is_all or len(chosen) >= wanted or draft.passed >= limits.GROUPS_PASSED_MAX:
            return chosen[:wanted]


def _in_turn(draft: Draft, count: int, fresh: int) -> list[Turn]:
    """Return up to `count` turns and groups; of groups without released messages, up to `fresh`."""
    view = draft.view
    flights, bound = view.groups.flights, groups.bound_of(view.spec)
    again = list(islice(view.groups.again.items(), count))
    if not again and fresh > 0:
        first = view.groups.ring.firsts(min(count, fresh))
        served = {group for _, group in first}
        if len(served) == len(first) and flights.keys().isdisjoint(served):
            return first
    turns: list[Turn] = []
    at = 0
    over: list[int] = []
    later: list[int] = []
    seen: set[int] = set()
    for turn, group in view.groups.ring if fresh > 0 else ():
        while at < len(again) and again[at][1] < turn and len(turns) < count:
            turns.append((0, again[at][0]))
            at += 1
        if len(turns) >= count or len(seen) >= fresh:
            break
        flight = flights.get(group)
        if group in seen or (flight is not None and flight.count >= bound):
            over.append(turn)
            draft.passed += 1
        elif flight is not None and flight.returned and not flight.is_limited:
            # It takes its turn with released messages; for the others it has another turn.
            over.append(turn)
            later.append(group)
        else:
            seen.add(group)
            turns.append((turn, group))
    known_to = view.groups.ring.known_to if len(seen) < fresh else None
    for group, turn in again[at : at + count - len(turns)]:
        # Before it there may be unknown turns.
        if known_to is None or turn < known_to:
            turns.append((0, group))
    groups.drop_turns(draft, over)
    groups.put_turns(draft, later)
    return turns


def _need_to_select(draft: Draft, turns: Sequence[Turn]) -> Need | None:
    """Return the Need of the cells of these groups and of further ones that are likely next, or
    None."""
    view = draft.view
    has_rate = bool(view.spec.group_rate_us)
    by_message = view.spec.blocking == "message"
    cached = view.groups.cells
    needed = [group for turn, group in turns if turn or has_rate or by_message]
    if not all(map(cached.__contains__, needed)):
        needed += [group for _, group in view.groups.ring.firsts(limits.GROUPS_AHEAD)]
        need = groups.need_cells(draft, needed)
        if need is not None:
            return need
        for group in needed:
            groups.turn_cell(draft, group)
    nexts = [
        groups.more_name(view, group, cell.head)
        for turn, group in turns
        if (turn or by_message)
        and (cell := cached[group]) is not None
        and not cell.seqs
        and cell.head < cell.tail
    ]
    return cell_lookup.need(draft, nexts) if nexts else None


def _select_groups(draft: Draft, turns: Sequence[Turn], count: int) -> list[ChosenGroup]:
    """Return the deliverable messages of these groups for a call of `count`. Useless turns are
    dropped."""
    view, spec = draft.view, draft.view.spec
    flights, cells = view.groups.flights, view.groups.cells
    usual = spec.group_in_flight or limits.IN_FLIGHT_MAX
    is_fair, has_rate = spec.order == "fair", bool(spec.group_rate_us)
    chosen: list[ChosenGroup] = []
    over: list[int] = []
    for turn, group in turns:
        limit = usual
        cell = cells[group] if turn or has_rate else None
        if is_fair and turn and (flight := flights.get(group)) is not None:
            limit -= flight.count
        if has_rate:
            paid_us = cell.paid_us if cell is not None else 0
            share = token_bucket.allowed(paid_us, draft.now, spec.group_rate_us, spec.group_burst)
            if share <= 0:
                group_rate.limit(draft, group, cell, has_turn=turn > 0)
                if turn:
                    over.append(turn)
                continue
            limit = min(limit, share)
        if not turn:
            candidate = _select_returned(draft, group, cells.get(group), min(limit, count))
            if candidate is not None:
                chosen.append(candidate)
            else:
                draft.passed += 1
        elif cell is None or cell.due_ms or not groups.waits(cell):
            over.append(turn)
            draft.passed += 1
        else:
            cell = cell if cell.seqs else _next_part(draft, group, cell)
            chosen.append(ChosenGroup(turn, group, cell.seqs[:limit], cell))
    groups.drop_turns(draft, over)
    return chosen


def _select_returned(
    draft: Draft, group: int, cell: TurnCell | None, limit: int
) -> ChosenGroup | None:
    """Return the deliverable messages of a group with released ones; None: there are none.

    Where messages block their group one by one, undelivered messages follow unless a message in
    flight precedes them.
    """
    view = draft.view
    flight = view.groups.flights[group]
    back, is_whole = flight.returned, False
    if view.spec.blocking == "message":
        back, is_whole = flight.visible(view.overdue)
    # No more than the call could take: each is checked one by one.
    limit = min(limit, limits.LEASE_MESSAGES_MAX)
    seqs = list(redelivery.take_returned(draft, back, limit))
    count = len(seqs)
    room = min(limit - count, limits.IN_FLIGHT_MAX - len(view.holder))
    if is_whole and room > 0 and group in view.groups.flights:
        if cell is not None and groups.waits(cell):
            if not cell.due_ms:
                cell = cell if cell.seqs else _next_part(draft, group, cell)
                seqs += cell.seqs[:room]
            elif not count:
                groups.limited(draft, group)
        elif not count:
            # All messages in flight are overdue: they block nothing.
            groups.nothing_waits(draft, group)
    return ChosenGroup(0, group, seqs, cell, count) if seqs else None


def _next_part(draft: Draft, group: int, cell: TurnCell) -> TurnCell:
    """Return the cell with the next messages moved into it from the group's further cells."""
    name = groups.more_name(draft.view, group, cell.head)
    part = cell_lookup.look(draft, name)
    assert isinstance(part, GroupCell)
    cell_lookup.put(draft, name, None)
    cell = TurnCell(part.seqs, cell.head + 1, cell.tail, cell.paid_us, cell.due_ms)
    groups.put_cell(draft, group, cell)
    return cell


# --- Delays ------------------------------------------------------------------------------------


def promote(draft: Draft) -> Need | None:
    """Enter messages whose delay has expired into their groups."""
    view = draft.view
    if not view.pointers.aside:
        return None
    while draft.promoted < limits.PROMOTE_CELLS_MAX:
        first_cell = view.due.first()
        if first_cell is None:
            low = view.due.wanted_from()
            if low is None:
                return None
            return Need(view.shard, cells=(Kind.DUE, low, limits.WINDOW_CELLS))
        key, cell = first_cell
        if due_of(key) > draft.now:
            return None
        if not all(map(view.groups.cells.__contains__, cell.groups)):
            need = _need_due(draft)
            if need is not None:
                return need
        need = groups.need_to_enter(draft, cell.groups)
        if need is not None:
            return need
        # Each of them is written into the cell of its group.
        draft.promoted += len(cell.groups)
        draft.put_waiting(Kind.DUE, key, None)
        groups.enter(draft, cell.seqs, cell.groups)
    return None


def _need_due(draft: Draft) -> Need | None:
    """Return the Need of the cells of all groups whose messages become due first, or None."""
    due: list[int] = []
    for key, cell in draft.view.due.firsts(limits.GROUPS_AHEAD):
        if due_of(key) > draft.now or len(due) >= limits.GROUPS_AHEAD:
            break
        due += cell.groups
    need = groups.need_cells(draft, due)
    for group in due if need is None else ():
        groups.turn_cell(draft, group)
    return need


# --- Taking messages -----------------------------------------------------------------------------


class TakenMessages(NamedTuple):
    """The messages for a lease call."""

    seqs: list[int]
    """In the order in which they were taken from each group."""
    again: BitMap64
    """The released messages among them."""
    fresh: list[tuple[int, Sequence[int], bool]]
    """Group, its undelivered messages that are taken, and True if others wait."""


def take(
    draft: Draft, chosen: Sequence[ChosenGroup], count: int, *, together: bool = False
) -> TakenMessages:
    """Take up to `count` messages of these groups, which use up their turns."""
    view, spec = draft.view, draft.view.spec
    seqs: list[int] = []
    again: list[int] = []
    fresh: list[tuple[int, Sequence[int], bool]] = []
    joining: list[int] = []
    over: list[int] = []
    bound, flights = groups.bound_of(spec), view.groups.flights
    rate_us, put_cell, put_left = spec.group_rate_us, groups.put_cell, group_rate.put_left
    shares = (_together if together else _shares)(chosen, count)
    for one, number in zip(chosen, shares, strict=True):
        if not number:
            continue
        turn, group, cell = one.turn, one.group, one.cell
        given = one.seqs[:number]
        seqs += given
        back, new = given[: one.again], given[one.again :]
        paid_us = cell.paid_us if cell is not None else 0
        if rate_us:
            paid_us = token_bucket.paid_after(paid_us, draft.now, rate_us, number)
        if turn:
            over.append(turn)
        else:
            again += back
            # The group goes to the end of the ring, if it has more messages.
            view.groups.again.pop(group)
        if not new:
            if rate_us:
                left = cell if cell is not None else TurnCell(())
                put_left(draft, group, msgspec.structs.replace(left, paid_us=paid_us))
            continue
        assert cell is not None
        rest = cell.seqs[len(new) :]
        has_more = bool(rest) or cell.head < cell.tail
        fresh.append((group, new, has_more))
        if has_more:
            put_cell(draft, group, TurnCell(rest, cell.head, cell.tail, paid_us, cell.due_ms))
            flight = flights.get(group)
            if number + (flight.count if flight is not None else 0) < bound:
                joining.append(group)
        elif rate_us:
            put_left(draft, group, msgspec.structs.replace(cell, seqs=(), paid_us=paid_us))
        else:
            put_cell(draft, group, None)
    groups.drop_turns(draft, over)
    groups.put_turns(draft, joining)
    return TakenMessages(seqs, BitMap64(again), fresh)


def _shares(chosen: Sequence[ChosenGroup], count: int) -> list[int]:
    """Return the number of messages of each group, one by one in turns."""
    shares = [1] * min(len(chosen), count) + [0] * (len(chosen) - count)
    left = count - len(chosen)
    open_ = [at for at, group in enumerate(chosen) if len(group.seqs) > 1] if left > 0 else []
    while left > 0 and open_:
        for at in open_[:left]:
            shares[at] += 1
        left -= len(open_)
        open_ = [at for at in open_ if len(chosen[at].seqs) > shares[at]]
    return shares


def _together(chosen: Sequence[ChosenGroup], count: int) -> list[int]:
    """Return the number of messages of each group if the first ones give all that they can."""
    shares: list[int] = []
    for group in chosen:
        shares.append(min(len(group.seqs), count))
        count -= shares[-1]
    return shares


def add_to_lease(draft: Draft, lease: LeaseState, taken: TakenMessages) -> None:
    """Add the taken messages to the lease; released ones were removed from their old leases
    before."""
    groups.add_in_flight(draft, lease, taken.fresh)


# --- Queries -----------------------------------------------------------------------------------


def next_ms(view: View) -> int | None:
    """Return when the next delay or rate limit ends; 0 if a group is ready; None if there is
    none."""
    if view.groups.again or view.groups.ring.may_have_one():
        return 0
    first: list[int] = []
    bucket = view.groups.buckets.first()
    if bucket is not None:
        first.append(groups.bucket_due(bucket[0]))
    elif view.groups.buckets.known_to is not None:
        return 0
    due = view.due.first() if view.pointers.aside else None
    if due is not None:
        first.append(due_of(due[0]))
    elif view.pointers.aside and view.due.known_to is not None:
        return 0
    return min(first, default=None)


def learn_cells(draft: Draft, kind: Kind, cells: Sequence[tuple[bytes, bytes]], limit: int) -> None:
    """Store the answer to a need for cells of kind RING or BUCKET."""
    view = draft.view
    pending: list[dict[bytes, Page | None]] = [
        {
            key: cell.groups if isinstance(cell, RingCell) else None
            for (of, key), cell in changed.items()
            if of is kind
        }
        for changed in (*(layer.points for layer in view.layers), draft.points)
    ]
    stored = {key: _groups_in(kind, value) for key, value in cells}
    if kind is Kind.BUCKET:
        view.groups.buckets.learn(
            [(key, page[0] or 0) for key, page in stored.items()],
            [{key: page[0] if page else None for key, page in one.items()} for one in pending],
            is_all=len(cells) < limit,
        )
        return
    low = view.groups.ring.known_to
    if low is not None:
        known_to = None if len(cells) < limit else groups.turn_of(cells[-1][0]) + 1
        _learn_ring(view, stored, pending, (low, known_to))


def _learn_ring(
    view: View,
    stored: Mapping[bytes, Page],
    pending: Sequence[Mapping[bytes, Page | None]],
    between: tuple[int, int | None],
) -> None:
    """Add the pages of the ring between two turns, with later changes applied."""
    low, known_to = between
    pages = {groups.turn_of(key): page for key, page in stored.items()}
    era = number_key(view.pointers.era)
    for changed in pending:
        for key, page in changed.items():
            turn = groups.turn_of(key)
            if key[:8] != era or turn < low or (known_to is not None and turn >= known_to):
                continue
            if page is None:
                pages.pop(turn, None)
            else:
                pages[turn] = page
    view.groups.ring.learn(dict(sorted(pages.items())), known_to)


def _groups_in(kind: Kind, value: bytes) -> Page:
    cell = decode_cell(kind, value)
    assert isinstance(cell, RingCell)
    return cell.groups
