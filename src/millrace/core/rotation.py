"""How groups take turns: which messages a lease call gets in the orders `group` and `fair`.

Rule 1: the groups that are chosen give one message each, then another one each, until the call has
enough: what a group gets does not depend on how much of it waits. A call that wants what is of one
group together gets all that the first of them may give, then of the next.
Rule 2: choosing changes cells, not what anybody gets: turns of no use are dropped, and groups
without a share of their rate wait for it. That holds whatever becomes of the lease call.
Rule 3: what is done at once is bounded, whatever the number of groups and of messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import failures, group_rate, groups, points, rate, thinning
from millrace.core.codec import decode_cell
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.flight import Chosen
from millrace.core.group_cells import GroupCell, RingCell, TurnCell
from millrace.core.lease_state import LeaseState
from millrace.core.model import Kind
from millrace.core.ring import Page
from millrace.core.view import View, number_key
from millrace.core.waiting import due_of

Turn = tuple[int, int]
"""A turn, and whose it is. Turn 0 is taken with what was given back."""

# --- Whose turn it is --------------------------------------------------------------------------


def choose(draft: Draft, count: int, *, together: bool = False) -> list[Chosen] | Need:
    """The groups from which a lease call takes up to `count` messages, in the order of turns."""
    need = group_rate.fire(draft) or promote(draft)
    if need is not None:
        return need
    view = draft.view
    ring = view.groups.ring
    wanted = min(count, limits.RING_TURNS)
    most = max(wanted, thinning.ahead(view))
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    while True:
        low = ring.wanted_from(most)
        if low is not None:
            key = groups.ring_key(view.pointers.era, low)
            pages = -(-limits.RING_TURNS // limits.RING_PAGE_TURNS)
            return Need(view.shard, cells=(Kind.RING, key, pages))
        before = draft.passed
        found = _in_turn(draft, most, min(most, room))
        need = _need_to_judge(draft, found)
        if need is not None:
            return need
        chosen = _judge_all(draft, found, count)
        need = thinning.thin(draft, chosen, count, together=together)
        if need is not None:
            return need
        is_all = draft.passed == before and (bool(found) or ring.wanted_from(1) is None)
        if is_all or len(chosen) >= wanted or draft.passed >= limits.GROUPS_PASSED_MAX:
            return chosen[:wanted]


def _in_turn(draft: Draft, count: int, fresh: int) -> list[Turn]:
    """Turns and groups, up to `count`; of those that nothing was given back to, up to `fresh`."""
    view = draft.view
    flights, bound = view.groups.flights, groups.bound_of(view.spec)
    again = list(islice(view.groups.again.items(), count))
    if not again and fresh > 0:
        first = view.groups.ring.firsts(min(count, fresh))
        served = {group for _, group in first}
        if len(served) == len(first) and flights.keys().isdisjoint(served):
            return first
    found: list[Turn] = []
    at = 0
    over: list[int] = []
    later: list[int] = []
    seen: set[int] = set()
    for turn, group in view.groups.ring if fresh > 0 else ():
        while at < len(again) and again[at][1] < turn and len(found) < count:
            found.append((0, again[at][0]))
            at += 1
        if len(found) >= count or len(seen) >= fresh:
            break
        flight = flights.get(group)
        if group in seen or (flight is not None and flight.count >= bound):
            over.append(turn)
            draft.passed += 1
        elif flight is not None and flight.returned and not flight.is_limited:
            # It takes its turn with what it was given back; for the rest it has another one.
            over.append(turn)
            later.append(group)
        else:
            seen.add(group)
            found.append((turn, group))
    known_to = view.groups.ring.known_to if len(seen) < fresh else None
    for group, turn in again[at : at + count - len(found)]:
        # Before it there may be turns that are not known.
        if known_to is None or turn < known_to:
            found.append((0, group))
    groups.drop_turns(draft, over)
    groups.put_turns(draft, later)
    return found


def _need_to_judge(draft: Draft, found: Sequence[Turn]) -> Need | None:
    """The cells of these groups, and with them those of the ones that come next."""
    view = draft.view
    has_rate = bool(view.spec.group_rate_us)
    by_message = view.spec.blocking == "message"
    known = view.groups.cells
    asked = [group for turn, group in found if turn or has_rate or by_message]
    if not all(map(known.__contains__, asked)):
        asked += [group for _, group in view.groups.ring.firsts(limits.GROUPS_AHEAD)]
        need = groups.need_cells(draft, asked)
        if need is not None:
            return need
        for group in asked:
            groups.turn_cell(draft, group)
    nexts = [
        groups.more_name(view, group, cell.head)
        for turn, group in found
        if (turn or by_message)
        and (cell := known[group]) is not None
        and not cell.seqs
        and cell.head < cell.tail
    ]
    return points.need(draft, nexts) if nexts else None


def _judge_all(draft: Draft, found: Sequence[Turn], count: int) -> list[Chosen]:
    """What these groups may give to a call for `count`. A turn that is of no use is over."""
    view, spec = draft.view, draft.view.spec
    flights, cells = view.groups.flights, view.groups.cells
    usual = spec.group_in_flight or limits.IN_FLIGHT_MAX
    is_fair, has_rate = spec.order == "fair", bool(spec.group_rate_us)
    chosen: list[Chosen] = []
    over: list[int] = []
    for turn, group in found:
        most = usual
        cell = cells[group] if turn or has_rate else None
        if is_fair and turn and (flight := flights.get(group)) is not None:
            most -= flight.count
        if has_rate:
            paid_us = cell.paid_us if cell is not None else 0
            share = rate.allowed(paid_us, draft.now, spec.group_rate_us, spec.group_burst)
            if share <= 0:
                group_rate.limit(draft, group, cell, has_turn=turn > 0)
                if turn:
                    over.append(turn)
                continue
            most = min(most, share)
        if not turn:
            one = _judge_returned(draft, group, cells.get(group), min(most, count))
            if one is not None:
                chosen.append(one)
            else:
                draft.passed += 1
        elif cell is None or cell.due_ms or not groups.waits(cell):
            over.append(turn)
            draft.passed += 1
        else:
            cell = cell if cell.seqs else _next_part(draft, group, cell)
            chosen.append(Chosen(turn, group, cell.seqs[:most], cell))
    groups.drop_turns(draft, over)
    return chosen


def _judge_returned(draft: Draft, group: int, cell: TurnCell | None, most: int) -> Chosen | None:
    """What a group may give that was given messages back; None: nothing.

    Where messages block their group one by one, those that never were in flight follow if nothing
    in flight precedes them.
    """
    view = draft.view
    flight = view.groups.flights[group]
    back, is_whole = flight.returned, False
    if view.spec.blocking == "message":
        back, is_whole = flight.visible(view.overdue)
    # No more than the call could take: each is looked at one by one.
    most = min(most, limits.LEASE_MESSAGES_MAX)
    seqs = list(failures.take_again(draft, back, most))
    count = len(seqs)
    room = min(most - count, limits.IN_FLIGHT_MAX - len(view.holder))
    if is_whole and room > 0 and group in view.groups.flights:
        if cell is not None and groups.waits(cell):
            if not cell.due_ms:
                cell = cell if cell.seqs else _next_part(draft, group, cell)
                seqs += cell.seqs[:room]
            elif not count:
                groups.limited(draft, group)
        elif not count:
            # All that is in flight is overdue: nothing waits behind it.
            groups.nothing_waits(draft, group)
    return Chosen(0, group, seqs, cell, count) if seqs else None


def _next_part(draft: Draft, group: int, cell: TurnCell) -> TurnCell:
    """Those that come next are named by the group's own cell."""
    name = groups.more_name(draft.view, group, cell.head)
    part = points.look(draft, name)
    assert isinstance(part, GroupCell)
    points.put(draft, name, None)
    cell = TurnCell(part.seqs, cell.head + 1, cell.tail, cell.paid_us, cell.due_ms)
    groups.put_cell(draft, group, cell)
    return cell


# --- Delays ------------------------------------------------------------------------------------


def promote(draft: Draft) -> Need | None:
    """Messages whose delay is over enter their groups."""
    view = draft.view
    if not view.pointers.aside:
        return None
    while draft.promoted < limits.PROMOTE_CELLS_MAX:
        found = view.due.first()
        if found is None:
            low = view.due.wanted_from()
            if low is None:
                return None
            return Need(view.shard, cells=(Kind.DUE, low, limits.WINDOW_CELLS))
        key, cell = found
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
    """The cells of the groups of those whose delay is over first, all at once."""
    due: list[int] = []
    for key, cell in draft.view.due.firsts(limits.GROUPS_AHEAD):
        if due_of(key) > draft.now or len(due) >= limits.GROUPS_AHEAD:
            break
        due += cell.groups
    need = groups.need_cells(draft, due)
    for group in due if need is None else ():
        groups.turn_cell(draft, group)
    return need


# --- Handing out ---------------------------------------------------------------------------------


class Taken(NamedTuple):
    """What a lease call gets."""

    seqs: list[int]
    """In the order in which they were taken from each group."""
    again: BitMap64
    """Those of them that were given back."""
    fresh: list[tuple[int, Sequence[int], bool]]
    """Groups, what is taken of each that never was in flight, and whether others wait."""


def take(draft: Draft, chosen: Sequence[Chosen], count: int, *, together: bool = False) -> Taken:
    """Take up to `count` messages of these groups; their turns are over."""
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
            paid_us = rate.paid_after(paid_us, draft.now, rate_us, number)
        if turn:
            over.append(turn)
        else:
            again += back
            # It goes behind the others, if there is more of it.
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
    return Taken(seqs, BitMap64(again), fresh)


def _shares(chosen: Sequence[Chosen], count: int) -> list[int]:
    """How many each gives: one after the other, as often as it takes."""
    shares = [1] * min(len(chosen), count) + [0] * (len(chosen) - count)
    left = count - len(chosen)
    open_ = [at for at, one in enumerate(chosen) if len(one.seqs) > 1] if left > 0 else []
    while left > 0 and open_:
        for at in open_[:left]:
            shares[at] += 1
        left -= len(open_)
        open_ = [at for at in open_ if len(chosen[at].seqs) > shares[at]]
    return shares


def _together(chosen: Sequence[Chosen], count: int) -> list[int]:
    """How many each gives where the first give all that they may."""
    shares: list[int] = []
    for one in chosen:
        shares.append(min(len(one.seqs), count))
        count -= shares[-1]
    return shares


def hand_out(draft: Draft, lease: LeaseState, taken: Taken) -> None:
    """The lease has what was taken; what was given back was handed on already."""
    groups.hand_out(draft, lease, taken.fresh)


# --- Questions -----------------------------------------------------------------------------------


def next_ms(view: View) -> int | None:
    """When the next delay or limit is over; 0 if a group's turn has come; None if there is none."""
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


def learn_cells(draft: Draft, kind: Kind, found: Sequence[tuple[bytes, bytes]], limit: int) -> None:
    """The store's answer to a need for cells of RING or BUCKET."""
    view = draft.view
    pending: list[dict[bytes, Page | None]] = [
        {
            key: cell.groups if isinstance(cell, RingCell) else None
            for (of, key), cell in changed.items()
            if of is kind
        }
        for changed in (*(layer.points for layer in view.layers), draft.points)
    ]
    stored = {key: _groups_in(kind, value) for key, value in found}
    if kind is Kind.BUCKET:
        view.groups.buckets.learn(
            [(key, page[0] or 0) for key, page in stored.items()],
            [{key: page[0] if page else None for key, page in one.items()} for one in pending],
            is_all=len(found) < limit,
        )
        return
    low = view.groups.ring.known_to
    if low is not None:
        known_to = None if len(found) < limit else groups.turn_of(found[-1][0]) + 1
        _learn_ring(view, stored, pending, (low, known_to))


def _learn_ring(
    view: View,
    stored: Mapping[bytes, Page],
    pending: Sequence[Mapping[bytes, Page | None]],
    between: tuple[int, int | None],
) -> None:
    """Take in the pages of the ring between two turns, as they were changed since."""
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
