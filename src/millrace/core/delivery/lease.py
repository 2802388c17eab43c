"""Decides lease calls: which messages a worker gets.

Rule 1: check first, change after. A check that needs the store returns `Need`.
Rule 2: a message that was delivered and not ended is in exactly one lease: its latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from pyroaring import BitMap64, FrozenBitMap64

from millrace import limits
from millrace.core import token_bucket
from millrace.core.answers import Leased
from millrace.core.commands import LeaseMessages
from millrace.core.delivery import group_lease, partition_lease, redelivery
from millrace.core.model import DeadLetterReason, LeaseId
from millrace.core.needs import Need
from millrace.core.ordering import deferred, groups
from millrace.core.retention import expiry, queue_ttl
from millrace.core.state.draft import Draft
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.view import View
from millrace.errors import Full, Retry


def find_empty(view: View | None, command: LeaseMessages, now: int) -> Leased | None:
    """Return the empty answer if the queue is plainly empty; nothing is changed then.

    This is the fast path for thousands of consumers that poll as many empty queues. None: the call
    has to be decided.
    """
    if view is None or view.pointers.next <= view.last_seq or view.quarantine:
        return None
    now = max(now, view.time_ms)
    if command.attempt or not view.spec.hands_out_in_order() or not _is_next_alone(view, now):
        return None
    return Leased(LeaseId(0), BitMap64(), now + command.lease_ms, {})


def lease_next(draft: Draft, command: LeaseMessages) -> Leased | None:
    """Decide a call as `check_lease` and `do_lease`, if only the next messages can be delivered.

    This is the fast path of single messages. None: the call needs the long way.
    """
    view, now = draft.view, draft.now
    if command.attempt or not draft.hands_out_in_order or not _is_next_alone(view, now):
        return None
    pointers = view.pointers
    seq = pointers.next
    deadline = now + command.lease_ms
    count = min(command.count, view.last_seq - seq + 1)
    if count <= 0 or len(view.holder) + count > (view.spec.max_in_flight or limits.IN_FLIGHT_MAX):
        return None
    number = LeaseId(pointers.lease + 1)
    if count == 1:
        seqs = BitMap64((seq,))
        view.holder[seq] = number
    else:
        seqs = BitMap64(range(seq, seq + count))
        view.holder.update(dict.fromkeys(seqs, number))
    lease = LeaseState(number, draft.index, FrozenBitMap64(seqs), deadline, command.lease_ms)
    draft.add_lease(lease)
    draft.put_pointers(msgspec.structs.replace(pointers, next=seq + count, lease=number))
    return Leased(number, seqs, deadline, {})


def _is_next_alone(view: View, now: int) -> bool:
    """Return True if only messages from `next` on can be delivered, in the order of seqs."""
    pointers = view.pointers
    return not (
        pointers.next <= view.skipped
        or pointers.next <= pointers.gaps
        or pointers.aside
        or view.returned
        or (view.deadlines and view.deadlines[0][0] <= now)
        or (view.expiry_ms is not None and view.expiry_ms <= now)
        or (view.spec.ttl_ms and queue_ttl.is_due(view, now))
    )


def check_lease(draft: Draft, command: LeaseMessages) -> Retry | Need | None:
    view = draft.view
    need = expiry.check_all(draft)
    if need is not None:
        return need
    groups.return_due(draft)
    count = _allowed(draft, command.count)
    if count <= 0:
        return None
    if view.spec.is_grouped:
        return _check_groups(draft, count, together=command.together)
    if view.spec.is_partitioned:
        return _check_partitions(draft, count)
    again = len(redelivery.select_returned(view, view.returned, count)[0]) if view.returned else 0
    wanted = count - again
    if wanted <= 0:
        return None
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    if room <= 0:
        # Released messages are in flight already: they are redelivered even at the limit.
        return None if view.returned else _too_many_in_flight(view)
    wanted = min(wanted, room)
    return deferred.check_lease(draft, wanted) or need_fresh(draft, wanted)


def _check_groups(draft: Draft, count: int, *, together: bool) -> Retry | Need | None:
    view = draft.view
    if len(view.holder) >= limits.IN_FLIGHT_MAX and not view.groups.again:
        return _too_many_in_flight(view)
    chosen = group_lease.choose(draft, count, together=together)
    if isinstance(chosen, Need):
        return chosen
    draft.chosen = chosen
    return None


def _check_partitions(draft: Draft, count: int) -> Retry | Need | None:
    view = draft.view
    if len(view.holder) >= limits.IN_FLIGHT_MAX and not view.returned:
        return _too_many_in_flight(view)
    chosen = partition_lease.choose(draft, count)
    if isinstance(chosen, Need):
        return chosen
    draft.chosen = chosen
    return None


def _allowed(draft: Draft, count: int) -> int:
    """Return how many of `count` messages ordering, `max_in_flight` and rate allow now."""
    view, spec = draft.view, draft.view.spec
    if is_blocked(view):
        return 0
    if spec.max_in_flight:
        count = min(count, spec.max_in_flight - _held(view))
    if not spec.rate_us:
        return count
    limit = token_bucket.allowed(view.pointers.paid_us, draft.now, spec.rate_us, spec.rate_burst)
    return min(count, limit)


def configured(draft: Draft) -> None:
    """Apply a changed rate: the wait is at most that of a burst."""
    pointers, spec = draft.view.pointers, draft.view.spec
    paid_us = token_bucket.owed(pointers.paid_us, draft.now, spec.rate_us, spec.rate_burst)
    if paid_us != pointers.paid_us:
        draft.put_pointers(msgspec.structs.replace(pointers, paid_us=paid_us))


def is_blocked(view: View) -> bool:
    """Return True if a lease call is in flight on a queue that allows only one.

    It counts until each of its messages has ended or is ready again.
    """
    return view.spec.order == "strict" and _held(view) > 0


def _held(view: View) -> int:
    """Return the number of messages in flight: neither ended, nor ready again, nor dead letters."""
    return len(view.holder) - len(view.returned) - len(view.doomed)


def is_full(view: View) -> bool:
    """Return True if `max_in_flight` is reached."""
    limit = view.spec.max_in_flight
    return limit > 0 and _held(view) >= limit


def is_bounded(view: View, now: int) -> bool:
    """Return True if a lease call gets nothing only because `max_in_flight` is reached."""
    if is_blocked(view) or not is_full(view):
        return False
    work_ms = _next_ready(view, is_ready=_is_ready(view))
    return work_ms is not None and work_ms <= now


def _too_many_in_flight(view: View) -> Full:
    return Full(
        f"{len(view.holder)} messages are in flight; settle some first",
        field="count",
        limit=limits.IN_FLIGHT_MAX,
    )


def do_lease(draft: Draft, command: LeaseMessages) -> Leased:
    """Lease messages. Released ones come first: they are older than all undelivered ones."""
    view = draft.view
    if expiry.is_behind(draft):
        # More messages have expired than one batch may end: no message that may be among them is
        # delivered.
        return Leased(LeaseId(0), BitMap64(), draft.now + command.lease_ms, {})
    count = _allowed(draft, command.count)
    if count <= 0:
        bounded = is_bounded(view, draft.now)
        deadline = draft.now + command.lease_ms
        return Leased(LeaseId(0), BitMap64(), deadline, {}, bounded=bounded)
    if view.spec.is_grouped:
        return _lease_groups(draft, command, count)
    if view.spec.is_partitioned:
        return _lease_partition(draft, command)
    again = redelivery.take_returned(draft, view.returned, count) if view.returned else BitMap64()
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    wanted = min(count - len(again), room)
    turns: tuple[BitMap64, ...] = ()
    if view.pointers.aside:
        fresh, turns = _take_by_turns(draft, wanted)
        seqs = BitMap64().union(again, *turns)
        turns = (again, *turns) if again else turns
        turns = turns if len(turns) > 1 else ()
    else:
        fresh = take_fresh(draft, wanted)
        seqs = again | fresh if again else fresh
    deadline = draft.now + command.lease_ms
    if not seqs:
        if view.first_fresh() > view.pointers.next:
            # Only hidden rows so far: they are not scanned again.
            draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.first_fresh()))
        return Leased(LeaseId(0), seqs, deadline, {})
    upto = fresh.max() + 1 if fresh else view.first_fresh()
    lease = _make_lease(draft, seqs, again, command.lease_ms, upto)
    return Leased(lease.id, seqs, deadline, dict(lease.counts), turns, firsts=dict(lease.firsts))


def _make_lease(
    draft: Draft, seqs: BitMap64, again: BitMap64, lease_ms: int, upto: int = 0
) -> LeaseState:
    """Create the lease of these messages; `upto`: undelivered seqs begin here."""
    view, spec = draft.view, draft.view.spec
    lease = draft.new_lease(seqs, lease_ms)
    if again:
        _overtake(draft, lease, again)
    view.holder.update(dict.fromkeys(seqs, lease.id))
    draft.add_lease(lease)
    paid_us = view.pointers.paid_us
    if spec.rate_us:
        paid_us = token_bucket.paid_after(paid_us, draft.now, spec.rate_us, len(seqs))
    upto = upto or view.pointers.next
    pointers = msgspec.structs.replace(view.pointers, next=upto, lease=lease.id, paid_us=paid_us)
    draft.put_pointers(pointers)
    return lease


def _lease_groups(draft: Draft, command: LeaseMessages, count: int) -> Leased:
    """Lease messages of the groups that have a turn."""
    deadline = draft.now + command.lease_ms
    taken = group_lease.take(draft, draft.chosen, count, together=command.together)
    draft.chosen = []
    if not taken.seqs:
        return Leased(LeaseId(0), BitMap64(), deadline, {})
    seqs = BitMap64(taken.seqs)
    lease = _make_lease(draft, seqs, taken.again, command.lease_ms)
    group_lease.add_to_lease(draft, lease, taken)
    # By groups, if messages block them one by one; else by seqs, but in the order of each group.
    several = [given for _, given, _ in taken.fresh if len(given) > 1]
    if draft.view.spec.blocking == "message":
        several = [taken.seqs]
    is_in_order = all(earlier < later for given in several for earlier, later in pairwise(given))
    turns = () if is_in_order else tuple(BitMap64([seq]) for seq in taken.seqs)
    return Leased(lease.id, seqs, deadline, dict(lease.counts), turns, firsts=dict(lease.firsts))


def _lease_partition(draft: Draft, command: LeaseMessages) -> Leased:
    """Lease messages of the least recently served partition, which locks it."""
    deadline = draft.now + command.lease_ms
    chosen, draft.chosen = draft.chosen, []
    if not chosen:
        return Leased(LeaseId(0), BitMap64(), deadline, {})
    [partition] = chosen
    seqs = BitMap64(partition.seqs)
    again = seqs & draft.view.returned
    lease = _make_lease(draft, seqs, again, command.lease_ms)
    partition_lease.served(draft, partition.group, lease, len(seqs) - len(again))
    return Leased(lease.id, seqs, deadline, dict(lease.counts))


def _take_by_turns(draft: Draft, wanted: int) -> tuple[BitMap64, tuple[BitMap64, ...]]:
    """Take up to `wanted` messages: high priority, expired delay, undelivered, low priority.

    Returns the undelivered ones, and all of them in this order. There may be fewer than wanted
    although more exist, if it is not known yet which of them come first.
    """
    turns = deferred.take(draft, wanted, least=deferred.USUAL)
    fresh = BitMap64()
    left = wanted - sum(map(len, turns))
    if left > 0 and deferred.may_go_on(draft):
        fresh = take_fresh(draft, left)
        if fresh:
            turns.append(fresh)
        turns += deferred.take(draft, left - len(fresh), least=0)
    return fresh, tuple(turns)


def expire_returned(draft: Draft) -> None:
    """End released messages whose TTL has expired."""
    view = draft.view
    if not view.overdue:
        return
    groups.return_due(draft)
    view.overdue &= BitMap64(view.holder)
    doomed: dict[int, dict[int, DeadLetterReason]] = {}
    for seq in view.returned & view.overdue:
        doomed.setdefault(view.holder[seq], {})[seq] = DeadLetterReason.EXPIRED
    redelivery.mark_all_dead_letters(draft, doomed)


def expire_due(view: View, now: int) -> bool:
    """Return True if a message with an expired TTL may have been released."""
    if not view.overdue:
        return False
    return view.returned.intersect(view.overdue) or bool(
        view.deadlines and view.deadlines[0][0] <= now
    )


def may_have_work(view: View, now: int) -> bool:
    """Return True if a lease call may get messages: cheap, and False is always right."""
    if view.deadlines and view.deadlines[0][0] <= now:
        return True
    work_ms = _next_work(view, is_ready=_is_ready(view))
    return work_ms is not None and work_ms <= now


def _is_ready(view: View) -> bool:
    if view.partition is not None:
        return bool(view.returned) or view.partition.waiting > 0
    return bool(view.returned) or view.first_fresh() <= view.last_seq


def _next_work(view: View, *, is_ready: bool) -> int | None:
    """Return when there may be something to deliver, unless a lease ends before; 0: now.

    `is_ready`: undelivered messages may wait in the order of seqs.
    """
    if is_blocked(view) or is_full(view):
        return None
    return _next_ready(view, is_ready=is_ready)


def _next_ready(view: View, *, is_ready: bool) -> int | None:
    """Return the same as `_next_work`, ignoring limits of messages in flight."""
    spec = view.spec
    if spec.is_grouped:
        work_ms = group_lease.next_ms(view)
    elif is_ready:
        work_ms = 0
    else:
        work_ms = deferred.next_due(view)
    if work_ms is None or not spec.rate_us:
        return work_ms
    return max(work_ms, token_bucket.ready_ms(view.pointers.paid_us, spec.rate_us, spec.rate_burst))


def next_end(view: View | None) -> int | None:
    """Return when the next lease or delay ends, after which there may be work; None: there is
    none."""
    if view is None:
        return None
    spec, work_ms = view.spec, None
    if spec.rate_us or view.pointers.aside or spec.is_grouped:
        # Messages that wait although one is ready wait for the queue's rate limit.
        work_ms = _next_work(view, is_ready=bool(spec.rate_us) and _is_ready(view))
    if not view.deadlines:
        return work_ms
    return view.deadlines[0][0] if work_ms is None else min(view.deadlines[0][0], work_ms)


def is_empty(answer: object) -> bool:
    """Return True if a lease call delivered nothing."""
    return isinstance(answer, Leased) and not answer.seqs


def need_fresh(draft: Draft, wanted: int) -> Need | None:
    """Return the Need of more rows, unless the window has `wanted` ready ones or reaches the
    end."""
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


def count_fresh(view: View) -> int:
    """Return the number of undelivered messages, as far as `need_fresh` has read them."""
    first = view.first_fresh()
    if not _has_gaps(view):
        return view.last_seq - first + 1
    ready = max(view.scanned - first + 1, 0)
    return ready - view.hidden.range_cardinality(first, first + ready)


def _has_gaps(view: View) -> bool:
    """Return True if some rows are hidden: replaced, deferred, or ended before their first
    delivery."""
    spec = view.spec
    marked = max(view.pointers.aside, view.pointers.gaps)
    return spec.keyed or spec.retention == "log" or view.first_fresh() <= marked


def _skip(view: View) -> None:
    """Skip a window of hidden rows only; the pointer follows with the next lease."""
    view.skipped = view.scanned
    view.hidden.clear()


def learn_hidden(draft: Draft, low: int, high: int, hidden: BitMap64) -> None:
    """Store the answer to a need, with decisions that are not folded yet added."""
    view = draft.view
    own = draft.hidden() | view.doomed
    purged = draft.ended_to
    for layer in view.layers:
        own |= layer.died
        own |= layer.kept
        own |= layer.deletes
        own |= layer.aside
        purged = max(purged, layer.purged)
    own &= BitMap64(range(low, high + 1))
    own |= BitMap64(range(low, min(purged, high) + 1))
    view.hidden |= hidden
    view.hidden |= own
    view.scanned = max(view.scanned, high)


def take_fresh(draft: Draft, count: int) -> BitMap64:
    """Take the first undelivered messages, as far as they are known (`need_fresh`)."""
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
    """Remove the messages from the leases of their earlier deliveries."""
    view = draft.view
    view.returned -= again
    touched: dict[int, list[int]] = {}
    for seq in again:
        old = view.leases[view.holder[seq]]
        deliveries, failures = old.counts_of(seq)
        if seq in old.open:
            # It was not released: its worker is assumed to have crashed.
            failures += 1
        groups.move_in_flight(draft, lease, old, seq)
        lease.counts[seq] = (deliveries + 1, failures)
        first_ms = old.first_of(seq)
        if first_ms:
            lease.firsts[seq] = first_ms
        touched.setdefault(old.id, []).append(seq)
    for number, seqs in touched.items():
        old = view.leases[number]
        old.overtaken |= take_out(old, seqs)
        draft.put_lease(old)


def take_out(lease: LeaseState, seqs: Sequence[int]) -> BitMap64:
    """Remove these messages from the lease; returns those that it had."""
    gone = BitMap64(seqs)
    lease.open -= gone
    lease.freed -= gone
    for seq in seqs:
        lease.forget_counts(seq)
        lease.deadlines.pop(seq, None)
        lease.doomed.pop(seq, None)
    return gone


def supersede_leased(draft: Draft, died: BitMap64) -> None:
    """End messages that a newer revision replaced; late receipts of them are told so."""
    view = draft.view
    holder = view.holder
    for seq in [seq for seq in died if seq in holder]:
        lease = view.leases[holder.pop(seq)]
        groups.ended(draft, lease, (seq,))
        lease.superseded |= take_out(lease, (seq,))
        view.returned.discard(seq)
        view.postponed.discard(seq)
        view.doomed.discard(seq)
        draft.put_lease(lease)
