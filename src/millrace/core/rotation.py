"""How groups take turns: which messages a lease call gets in the orders `group` and `fair`.

Rule 1: the groups that are chosen give one message each, then another one each, until the call has
enough: what a group gets does not depend on how much of it waits.
Rule 2: choosing changes cells, not what anybody gets: turns of no use are dropped, and groups
without a share of their rate wait for it. That holds whatever becomes of the lease call.
Rule 3: what is done at once is bounded, whatever the number of groups and of messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import aside, failures, groups, points, rate
from millrace.core.codec import decode_cell
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.flight import Chosen
from millrace.core.group_cells import GroupCell, RingCell, TurnCell
from millrace.core.lease_state import LeaseState
from millrace.core.model import Kind
from millrace.core.view import View, number_key
from millrace.core.waiting import due_of

# --- Whose turn it is --------------------------------------------------------------------------


def choose(draft: Draft, count: int) -> list[Chosen] | Need:
    """The groups from which a lease call takes up to `count` messages, in the order of turns."""
    need = _fire(draft) or promote(draft)
    if need is not None:
        return need
    view = draft.view
    if aside.may_have_died(view):
        count = min(count, limits.LOOK_AT_ROWS_MAX)
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    while True:
        ring = view.groups.ring
        low = ring.wanted_from(count)
        if low is not None:
            key = groups.ring_key(view.pointers.era, low)
            return Need(view.shard, cells=(Kind.RING, key, limits.RING_TURNS))
        before = draft.passed
        found = [
            (turn, group, groups.turn_name(view, group))
            for turn, group in _in_turn(draft, count, min(count, room))
        ]
        need = _need_to_judge(draft, found)
        if need is not None:
            return need
        chosen = [one for ask in found if (one := _judge(draft, *ask)) is not None]
        need = _need_live(draft, chosen, count)
        if need is not None:
            return need
        if draft.passed == before and (found or ring.wanted_from(1) is None):
            return chosen
        if draft.passed >= limits.GROUPS_PASSED_MAX:
            return [] if aside.may_have_died(view) else chosen


def _in_turn(draft: Draft, count: int, fresh: int) -> Iterator[tuple[int, int]]:
    """Turns and groups, up to `count`; of those that nothing was given back to, up to `fresh`."""
    view = draft.view
    flights, bound = view.groups.flights, groups.bound_of(view.spec)
    again = list(islice(view.groups.again.items(), count))
    at = 0
    useless: list[int] = []
    later: dict[int, int] = {}
    seen: set[int] = set()
    for turn, group in view.groups.ring if fresh > 0 else ():
        while at < len(again) and again[at][1] < turn and count > 0:
            yield 0, again[at][0]
            at, count = at + 1, count - 1
        if count <= 0 or fresh <= 0:
            break
        flight = flights.get(group)
        if group in seen or (flight is not None and flight.count >= bound):
            useless.append(turn)
            continue
        if flight is not None and flight.returned and not flight.is_limited:
            # It takes its turn with what it was given back; for the rest it has another one.
            later[turn] = group
            continue
        seen.add(group)
        yield turn, group
        count, fresh = count - 1, fresh - 1
    known_to = view.groups.ring.known_to if fresh > 0 else None
    for group, turn in again[at : at + count]:
        # Before it there may be turns that are not known.
        if known_to is None or turn < known_to:
            yield 0, group
    groups.drop_turns(draft, (*useless, *later))
    groups.put_turns(draft, list(later.values()))
    draft.passed += len(useless)


def _need_to_judge(draft: Draft, found: Sequence[tuple[int, int, points.Name]]) -> Need | None:
    view = draft.view
    has_rate = bool(view.spec.group_rate_us)
    names = [name for turn, _, name in found if turn or has_rate]
    need = points.need(draft, names)
    if need is not None:
        return need
    nexts: list[points.Name] = []
    for turn, group, name in found:
        cell = groups.turn_cell(draft, name) if turn else None
        if cell is not None and not cell.seqs and cell.head < cell.tail:
            nexts.append(groups.more_name(view, group, cell.head))
    return points.need(draft, nexts) if nexts else None


def _judge(draft: Draft, turn: int, group: int, name: points.Name) -> Chosen | None:
    """What a group may give; None if its turn was of no use, and is over."""
    view, spec = draft.view, draft.view.spec
    flight = view.groups.flights.get(group)
    most = spec.group_in_flight or limits.IN_FLIGHT_MAX
    if spec.order == "fair" and turn and flight is not None:
        most -= flight.count
    has_rate = bool(spec.group_rate_us)
    cell = groups.turn_cell(draft, name) if turn or has_rate else None
    if has_rate:
        paid_us = cell.paid_us if cell is not None else 0
        most = min(most, rate.allowed(paid_us, draft.now, spec.group_rate_us, spec.group_burst))
        if most <= 0:
            _limit(draft, turn, group, cell)
            return None
    if not turn:
        assert flight is not None
        seqs = failures.take_again(draft, flight.returned, limits.LEASE_MESSAGES_MAX)
        if not seqs:
            draft.passed += 1
        return Chosen(0, group, list(islice(seqs, most)), cell, name) if seqs else None
    if cell is None or cell.due_ms or not groups.waits(cell):
        groups.drop_turns(draft, [turn])
        draft.passed += 1
        return None
    if not cell.seqs:
        cell = _next_part(draft, group, cell)
    return Chosen(turn, group, cell.seqs[:most], cell, name)


def _next_part(draft: Draft, group: int, cell: TurnCell) -> TurnCell:
    """Those that come next are named by the group's own cell."""
    name = groups.more_name(draft.view, group, cell.head)
    part = points.look(draft, name)
    assert isinstance(part, GroupCell)
    points.put(draft, name, None)
    cell = msgspec.structs.replace(cell, seqs=part.seqs, head=cell.head + 1)
    points.put(draft, groups.turn_name(draft.view, group), cell)
    return cell


# --- Newer revisions, and time, may have ended what waits -------------------------------------


def _need_live(draft: Draft, chosen: list[Chosen], count: int) -> Need | None:
    """Whether those that may be handed out are there; those that are not wait no longer.

    Of each group only so many are left to be chosen as were looked at.
    """
    view = draft.view
    fresh = [one for one in chosen if one.turn] if aside.may_have_died(view) else []
    if not fresh:
        return None
    depth = -(-count // len(fresh))
    chosen[:] = [one._replace(seqs=one.seqs[:depth]) if one.turn else one for one in chosen]
    fresh = [one for one in chosen if one.turn]
    seqs = BitMap64([seq for one in fresh for seq in one.seqs])
    facts = view.facts.rows
    unknown = [seq for seq in seqs if seq <= view.stored_seq and seq not in facts]
    if unknown:
        return Need(view.shard, rows=tuple(unknown))
    live = draft.still_live(seqs)
    dead = seqs - live | BitMap64([seq for seq in live if seq in facts and not facts[seq].live])
    dead |= seqs & view.doomed
    for one in fresh if dead else ():
        if not dead.isdisjoint(BitMap64(one.seqs)):
            _forget_dead(draft, one, dead)
    draft.passed += len(dead)
    return None


def _forget_dead(draft: Draft, one: Chosen, dead: BitMap64) -> None:
    cell = groups.turn_cell(draft, one.name)
    assert cell is not None
    left = msgspec.structs.replace(cell, seqs=tuple(seq for seq in cell.seqs if seq not in dead))
    if not groups.waits(left):
        groups.drop_turns(draft, [one.turn])
    _put(draft, one.group, one.name, left)


def _put(draft: Draft, group: int, name: points.Name, cell: TurnCell) -> None:
    """The cell of a group was changed; one that says nothing any more goes."""
    spec = draft.view.spec
    if groups.waits(cell):
        points.put(draft, name, cell)
        return
    if spec.group_rate_us and cell.paid_us > 1000 * draft.now:
        if not cell.due_ms:
            due_ms = -(-cell.paid_us // 1000)
            cell = msgspec.structs.replace(cell, due_ms=due_ms)
            _put_bucket(draft, due_ms, group)
        points.put(draft, name, cell)
        return
    points.put(draft, name, None)


# --- Rates -------------------------------------------------------------------------------------


def _limit(draft: Draft, turn: int, group: int, cell: TurnCell | None) -> None:
    """A group has had its share: it comes back when there is more."""
    view, spec = draft.view, draft.view.spec
    assert cell is not None
    rate_us, burst = spec.group_rate_us, spec.group_burst
    paid_us = rate.owed(cell.paid_us, draft.now, rate_us, burst)
    due_ms = min(rate.ready_ms(paid_us, rate_us, burst), draft.now + rate.WAIT_MS_MAX)
    draft.passed += 1
    _put_bucket(draft, due_ms, group)
    cell = msgspec.structs.replace(cell, paid_us=paid_us)
    if turn:
        groups.drop_turns(draft, [turn])
        cell = msgspec.structs.replace(cell, due_ms=due_ms)
    points.put(draft, groups.turn_name(view, group), cell)
    if turn:
        return
    flight = view.groups.flights[group]
    flight.is_limited = True
    groups.look(view, group, flight)


def _put_bucket(draft: Draft, due_ms: int, group: int) -> None:
    key = groups.bucket_key(draft.view.pointers.era, due_ms, group)
    draft.points[Kind.BUCKET, key] = RingCell(group)
    draft.view.groups.buckets.put(key, group)


def _fire(draft: Draft) -> Need | None:
    """Groups whose rate allows another message have a turn again."""
    view = draft.view
    buckets = view.groups.buckets
    while draft.promoted < limits.PROMOTE_CELLS_MAX:
        found = buckets.first()
        if found is None:
            low = buckets.wanted_from()
            if low is None:
                return None
            return Need(view.shard, cells=(Kind.BUCKET, low, limits.WINDOW_CELLS))
        key, group = found
        due_ms = groups.bucket_due(key)
        if due_ms > draft.now:
            return None
        name = groups.turn_name(view, group)
        need = points.need(draft, [name])
        if need is not None:
            return need
        draft.promoted += 1
        draft.points[Kind.BUCKET, key] = None
        buckets.drop(key)
        flight = view.groups.flights.get(group)
        if flight is not None and flight.is_limited:
            flight.is_limited = False
            groups.look(view, group, flight)
        cell = groups.turn_cell(draft, name)
        if cell is None or cell.due_ms != due_ms:
            continue
        _put(draft, group, name, msgspec.structs.replace(cell, due_ms=0))
        is_free = flight is None or flight.count < groups.bound_of(view.spec)
        if groups.waits(cell) and is_free:
            groups.put_turns(draft, [group])
    return None


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
        need = groups.need_to_enter(draft, cell.groups)
        if need is not None:
            return need
        draft.promoted += 1
        draft.put_waiting(Kind.DUE, key, None)
        groups.enter(draft, cell.seqs, cell.groups)
    return None


# --- Handing out ---------------------------------------------------------------------------------


class Taken(NamedTuple):
    """What a lease call gets."""

    seqs: list[int]
    """In the order in which they were taken from each group."""
    again: BitMap64
    """Those of them that were given back."""
    fresh: list[tuple[int, Sequence[int], bool]]
    """Groups, what is taken of each that never was in flight, and whether others wait."""


def take(draft: Draft, chosen: Sequence[Chosen], count: int) -> Taken:
    """Take up to `count` messages of these groups; their turns are over."""
    view, spec = draft.view, draft.view.spec
    seqs: list[int] = []
    again = BitMap64()
    fresh: list[tuple[int, Sequence[int], bool]] = []
    joining: list[int] = []
    over: list[int] = []
    bound, flights = groups.bound_of(spec), view.groups.flights
    for one, number in zip(chosen, _shares(chosen, count), strict=True):
        if not number:
            continue
        given = one.seqs[:number]
        seqs += given
        cell = one.cell
        if spec.group_rate_us:
            cell = cell if cell is not None else TurnCell(())
            paid_us = rate.paid_after(cell.paid_us, draft.now, spec.group_rate_us, number)
            cell = msgspec.structs.replace(cell, paid_us=paid_us)
        if not one.turn:
            again |= BitMap64(given)
            # It goes behind the others, if there is more of it.
            view.groups.again.pop(one.group)
        else:
            assert cell is not None
            over.append(one.turn)
            has_more = number < len(cell.seqs) or cell.head < cell.tail
            fresh.append((one.group, given, has_more))
            if has_more:
                flight = flights.get(one.group)
                if number + (flight.count if flight is not None else 0) < bound:
                    joining.append(one.group)
            cell = msgspec.structs.replace(cell, seqs=cell.seqs[number:])
        if cell is not None:
            _put(draft, one.group, one.name, cell)
    groups.drop_turns(draft, over)
    groups.put_turns(draft, joining)
    return Taken(seqs, again, fresh)


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
    pending: list[dict[bytes, int | None]] = [
        {
            key: cell.group if isinstance(cell, RingCell) else None
            for (of, key), cell in changed.items()
            if of is kind
        }
        for changed in (*(layer.points for layer in view.layers), draft.points)
    ]
    stored = [(key, _group_in(kind, value)) for key, value in found]
    is_all = len(found) < limit
    if kind is Kind.BUCKET:
        view.groups.buckets.learn(stored, pending, is_all=is_all)
        return
    low = view.groups.ring.known_to
    if low is None:
        return
    known_to = None if is_all else groups.turn_of(stored[-1][0]) + 1
    turns = {groups.turn_of(key): group for key, group in stored}
    era = number_key(view.pointers.era)
    for changed in pending:
        for key, group in changed.items():
            turn = groups.turn_of(key)
            if key[:8] != era or turn < low or (known_to is not None and turn >= known_to):
                continue
            if group is None:
                turns.pop(turn, None)
            else:
                turns[turn] = group
    view.groups.ring.learn(turns, known_to)


def _group_in(kind: Kind, value: bytes) -> int:
    cell = decode_cell(kind, value)
    assert isinstance(cell, RingCell)
    return cell.group
