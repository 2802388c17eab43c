"""The rules of handing out: which messages a lease call gets.

Rule 1: check first, change after. A check that needs the store returns `Need`.
Rule 2: a message that was delivered and not ended is in exactly one lease: its latest.
"""

from __future__ import annotations

from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import aside, expiry, failures
from millrace.core.commands import Lease, Leased, Need
from millrace.core.draft import Draft
from millrace.core.model import Doom, LeaseId
from millrace.core.view import LeaseState, View
from millrace.errors import Full, Retry


def check_lease(draft: Draft, command: Lease) -> Retry | Need | None:
    view = draft.view
    need = expiry.check_all(draft)
    if need is not None:
        return need
    _return_due(draft)
    again = len(_judge_again(view, command.count)[0]) if view.returned else 0
    wanted = command.count - again
    if wanted <= 0:
        return None
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    if room <= 0:
        # What was given back is in flight already: it is handed out again at the limit too.
        return None if view.returned else _too_many_in_flight(view)
    wanted = min(wanted, room)
    return aside.check_lease(draft, wanted) or _need_hidden(draft, wanted)


def _too_many_in_flight(view: View) -> Full:
    return Full(
        f"{len(view.holder)} messages are in flight; settle some first",
        field="count",
        limit=limits.IN_FLIGHT_MAX,
    )


def do_lease(draft: Draft, command: Lease) -> Leased:
    """Messages that were given back come first: they are older than all that wait."""
    view = draft.view
    if expiry.tick_due(view, draft.now):
        # More is over than one step ends: nobody is given what may be among it.
        return Leased(LeaseId(0), BitMap64(), draft.now + command.lease_ms, {})
    again = _take_again(draft, command.count) if view.returned else BitMap64()
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    wanted = min(command.count - len(again), room)
    turns: tuple[BitMap64, ...] = ()
    if view.pointers.aside:
        fresh, turns = _take_by_turns(draft, wanted)
        seqs = BitMap64().union(again, *turns)
        turns = (again, *turns) if again else turns
        turns = turns if len(turns) > 1 else ()
    else:
        fresh = _take_fresh(draft, wanted)
        seqs = again | fresh if again else fresh
    deadline = draft.now + command.lease_ms
    if not seqs:
        if view.first_fresh() > view.pointers.next:
            # Nothing but hidden rows so far: they are not looked at again.
            draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.first_fresh()))
        return Leased(LeaseId(0), seqs, deadline, {})
    lease = LeaseState(LeaseId(view.pointers.lease + 1), draft.index, seqs, deadline)
    if again:
        _overtake(draft, lease, again)
    view.holder.update(dict.fromkeys(seqs, lease.id))
    draft.put_lease(lease)
    draft.push_deadline(deadline, lease.id)
    upto = fresh.max() + 1 if fresh else view.first_fresh()
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=upto, lease=lease.id))
    return Leased(lease.id, seqs.copy(), deadline, dict(lease.counts), turns)


def _take_by_turns(draft: Draft, wanted: int) -> tuple[BitMap64, tuple[BitMap64, ...]]:
    """Those of higher priority, those whose delay is over, fresh ones, those of lower priority.

    Returns the fresh ones, and all of them in this order. There may be fewer than wanted although
    more are there, where it is not known yet which of them come first.
    """
    turns = aside.take(draft, wanted, least=aside.USUAL)
    fresh = BitMap64()
    left = wanted - sum(map(len, turns))
    if left > 0 and aside.may_go_on(draft):
        fresh = _take_fresh(draft, left)
        if fresh:
            turns.append(fresh)
        turns += aside.take(draft, left - len(fresh), least=0)
    return fresh, tuple(turns)


def _judge_again(view: View, count: int) -> tuple[BitMap64, dict[int, dict[int, Doom]]]:
    """The first messages that were given back, and those that nobody is to get again, by lease."""
    spec = view.spec
    if not (spec.max_failures or spec.max_deliveries or view.overdue):
        return BitMap64(islice(view.returned, count)), {}
    again = BitMap64()
    doomed: dict[int, dict[int, Doom]] = {}
    for seq in view.returned:
        lease = view.leases[view.holder[seq]]
        deliveries, failed = lease.counts_of(seq)
        # Nobody gave it back: its worker is taken for crashed.
        why = failures.doom_of(spec, deliveries, failed + (seq in lease.open))
        if seq in view.overdue:
            why = Doom.EXPIRED
        if why is not None:
            doomed.setdefault(lease.id, {})[seq] = why
            continue
        again.add(seq)
        if len(again) == count:
            break
    return again, doomed


def _take_again(draft: Draft, count: int) -> BitMap64:
    """The first messages that were given back; what turns out to be doomed is taken note of."""
    view = draft.view
    again, doomed = _judge_again(view, count)
    _doom_all(draft, doomed)
    return again


def expire_returned(draft: Draft) -> None:
    """End those that came back after their time to live was over."""
    view = draft.view
    if not view.overdue:
        return
    _return_due(draft)
    view.overdue &= BitMap64(view.holder)
    doomed: dict[int, dict[int, Doom]] = {}
    for seq in view.returned & view.overdue:
        doomed.setdefault(view.holder[seq], {})[seq] = Doom.EXPIRED
    _doom_all(draft, doomed)


def expire_due(view: View, now: int) -> bool:
    """Whether one of them may be back."""
    if not view.overdue:
        return False
    return view.returned.intersect(view.overdue) or bool(
        view.deadlines and view.deadlines[0][0] <= now
    )


def _doom_all(draft: Draft, doomed: dict[int, dict[int, Doom]]) -> None:
    view = draft.view
    for number, seqs in doomed.items():
        lease = view.leases[number]
        gone = BitMap64(seqs)
        for seq in gone & lease.open:
            deliveries, failed = lease.counts_of(seq)
            lease.counts[seq] = (deliveries, failed + 1)
        lease.open -= gone
        lease.freed -= gone
        view.returned -= gone
        failures.doom(draft, lease, seqs)
        draft.put_lease(lease)


def may_have_work(view: View, now: int) -> bool:
    """Whether a lease call might be given something: cheap, and never wrong when it says no."""
    return (
        bool(view.returned)
        or view.first_fresh() <= view.last_seq
        or (bool(view.deadlines) and view.deadlines[0][0] <= now)
        or aside.may_have_work(view, now)
    )


def next_end(view: View | None) -> int | None:
    """When the next lease or delay ends, after which there may be work; None if there is none."""
    if view is None:
        return None
    due_ms = aside.next_due(view)
    if not view.deadlines:
        return due_ms
    return view.deadlines[0][0] if due_ms is None else min(view.deadlines[0][0], due_ms)


def is_empty(answer: object) -> bool:
    """Whether a lease call handed out nothing."""
    return isinstance(answer, Leased) and not answer.seqs


def _return_due(draft: Draft) -> None:
    """Leases whose time is over: their messages are ready again, their receipts still hold."""
    view = draft.view
    while view.deadlines and view.deadlines[0][0] <= draft.now:
        _, lease_id = view.deadlines[0]
        draft.pop_deadline()
        lease = view.leases.get(lease_id)
        if lease is not None and not lease.ended_ms:
            view.returned |= lease.due(draft.now)


def _need_hidden(draft: Draft, wanted: int) -> Need | None:
    """Whether the window of known rows holds `wanted` ready ones, or reaches the end."""
    view = draft.view
    if not _has_gaps(view):
        return None
    while view.scanned < view.last_seq:
        first = view.first_fresh()
        ready = view.scanned - first + 1
        if ready > 0:
            ready -= view.hidden.range_cardinality(first, view.scanned + 1)
            if not ready:
                _skip(view)
        if ready >= wanted:
            return None
        low = max(view.scanned + 1, first)
        high = min(low + limits.CHUNK_ROWS - 1, view.last_seq)
        if low <= view.stored_seq:
            return Need(view.shard, hidden=(low, min(high, view.stored_seq)))
        learn_hidden(draft, low, high, BitMap64())
    return None


def _has_gaps(view: View) -> bool:
    """Whether some are hidden: replaced, put aside, or ended before workers came back to them."""
    spec = view.spec
    marked = max(view.pointers.aside, view.pointers.gaps)
    return spec.keyed or spec.retention == "log" or view.first_fresh() <= marked


def _skip(view: View) -> None:
    """Nothing but hidden rows in the window; the pointer follows when a lease is done."""
    view.skipped = view.scanned
    view.hidden.clear()


def learn_hidden(draft: Draft, low: int, high: int, hidden: BitMap64) -> None:
    """The store's answer to a need; what was decided since, and is not folded, is added."""
    view = draft.view
    own = draft.hidden() | view.doomed
    purged = draft.ended_to
    for layer in view.layers:
        own |= layer.died
        own |= layer.deletes
        own |= layer.aside
        purged = max(purged, layer.purged)
    own &= BitMap64(range(low, high + 1))
    own |= BitMap64(range(low, min(purged, high) + 1))
    view.hidden |= hidden
    view.hidden |= own
    view.scanned = max(view.scanned, high)


def _take_fresh(draft: Draft, count: int) -> BitMap64:
    view = draft.view
    low = view.first_fresh()
    if count <= 0 or low > view.last_seq:
        return BitMap64()
    if not _has_gaps(view):
        return BitMap64(range(low, min(low + count, view.last_seq + 1)))
    taken = BitMap64()
    while low <= view.scanned and len(taken) < count:
        high = min(low + (count - len(taken)) - 1, view.scanned)
        taken |= BitMap64(range(low, high + 1)) - view.hidden
        low = high + 1
    if taken:
        view.hidden.remove_range(0, taken.max() + 1)
    elif view.scanned >= view.first_fresh():
        _skip(view)
    return taken


def _overtake(draft: Draft, lease: LeaseState, again: BitMap64) -> None:
    """The messages leave the leases of their earlier deliveries."""
    view = draft.view
    view.returned -= again
    touched: dict[int, LeaseState] = {}
    for seq in again:
        old = view.leases[view.holder[seq]]
        deliveries, failures = old.counts_of(seq)
        if seq in old.open:
            # Nobody gave it back: its worker is taken for crashed.
            failures += 1
        _take_out(old, seq)
        old.overtaken.add(seq)
        lease.counts[seq] = (deliveries + 1, failures)
        touched[old.id] = old
    for old in touched.values():
        draft.put_lease(old)


def _take_out(lease: LeaseState, seq: int) -> None:
    """The message is this lease's no longer."""
    lease.open.discard(seq)
    lease.freed.discard(seq)
    lease.counts.pop(seq, None)
    lease.deadlines.pop(seq, None)
    lease.doomed.pop(seq, None)


def supersede_leased(draft: Draft, died: BitMap64) -> None:
    """A newer revision replaced these messages: whoever holds one of them is told so."""
    view = draft.view
    holder = view.holder
    for seq in [seq for seq in died if seq in holder]:
        lease = view.leases[holder.pop(seq)]
        _take_out(lease, seq)
        lease.superseded.add(seq)
        view.returned.discard(seq)
        view.doomed.discard(seq)
        draft.put_lease(lease)
