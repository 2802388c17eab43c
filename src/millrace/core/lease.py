"""The rules of handing out: which messages a lease call gets.

Rule 1: check first, change after. A check that needs the store returns `Need`.
Rule 2: a message that was delivered and not ended is in exactly one lease: its latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from pyroaring import BitMap64, FrozenBitMap64

from millrace import limits
from millrace.core import aside, expiry, failures, groups, lifetime, rate, rotation, serving
from millrace.core.answers import Leased
from millrace.core.commands import Lease, Need
from millrace.core.draft import Draft
from millrace.core.lease_state import LeaseState
from millrace.core.model import Doom, LeaseId
from millrace.core.view import View
from millrace.errors import Full, Retry


def find_none(view: View | None, command: Lease, now: int) -> Leased | None:
    """What a call is answered of a queue where plainly nothing is, so that nothing is changed.

    Thousands wait at as many queues and ask again and again. None: there is more to be looked at.
    """
    if view is None or view.pointers.next <= view.last_seq or view.quarantine:
        return None
    now = max(now, view.time_ms)
    if command.attempt or not view.spec.hands_out_in_order() or not _is_next_alone(view, now):
        return None
    return Leased(LeaseId(0), BitMap64(), now + command.lease_ms, {})


def lease_next(draft: Draft, command: Lease) -> Leased | None:
    """As `check_lease` and `do_lease`, where only the next ones can be it.

    The way of a single message, which must cost little. None: there is more to be looked at.
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
    """Whether nothing can be handed out but those from `next` on, by their seqs."""
    pointers = view.pointers
    return not (
        pointers.next <= view.skipped
        or pointers.next <= pointers.gaps
        or pointers.aside
        or view.returned
        or (view.deadlines and view.deadlines[0][0] <= now)
        or (view.expiry_ms is not None and view.expiry_ms <= now)
        or (view.spec.ttl_ms and lifetime.is_due(view, now))
    )


def check_lease(draft: Draft, command: Lease) -> Retry | Need | None:
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
    again = len(failures.judge_again(view, view.returned, count)[0]) if view.returned else 0
    wanted = count - again
    if wanted <= 0:
        return None
    room = limits.IN_FLIGHT_MAX - len(view.holder)
    if room <= 0:
        # What was given back is in flight already: it is handed out again at the limit too.
        return None if view.returned else _too_many_in_flight(view)
    wanted = min(wanted, room)
    return aside.check_lease(draft, wanted) or need_fresh(draft, wanted)


def _check_groups(draft: Draft, count: int, *, together: bool) -> Retry | Need | None:
    view = draft.view
    if len(view.holder) >= limits.IN_FLIGHT_MAX and not view.groups.again:
        return _too_many_in_flight(view)
    chosen = rotation.choose(draft, count, together=together)
    if isinstance(chosen, Need):
        return chosen
    draft.chosen = chosen
    return None


def _check_partitions(draft: Draft, count: int) -> Retry | Need | None:
    view = draft.view
    if len(view.holder) >= limits.IN_FLIGHT_MAX and not view.returned:
        return _too_many_in_flight(view)
    chosen = serving.choose(draft, count)
    if isinstance(chosen, Need):
        return chosen
    draft.chosen = chosen
    return None


def _allowed(draft: Draft, count: int) -> int:
    """How many of these the queue's order, maximum and rate allow now."""
    view, spec = draft.view, draft.view.spec
    if is_blocked(view):
        return 0
    if spec.max_in_flight:
        count = min(count, spec.max_in_flight - _held(view))
    if not spec.rate_us:
        return count
    most = rate.allowed(view.pointers.paid_us, draft.now, spec.rate_us, spec.rate_burst)
    return min(count, most)


def configured(draft: Draft) -> None:
    """Under another rate nobody waits for longer than a burst of it takes."""
    pointers, spec = draft.view.pointers, draft.view.spec
    paid_us = rate.owed(pointers.paid_us, draft.now, spec.rate_us, spec.rate_burst)
    if paid_us != pointers.paid_us:
        draft.put_pointers(msgspec.structs.replace(pointers, paid_us=paid_us))


def is_blocked(view: View) -> bool:
    """Whether a lease call is in flight of a queue that allows only one.

    It is so until each of its messages has ended or is ready again.
    """
    return view.spec.order == "strict" and _held(view) > 0


def _held(view: View) -> int:
    """How many messages are with workers: neither ended, nor ready again, nor dead letters."""
    return len(view.holder) - len(view.returned) - len(view.doomed)


def is_full(view: View) -> bool:
    """Whether as many messages are with workers as the queue allows."""
    most = view.spec.max_in_flight
    return most > 0 and _held(view) >= most


def is_bounded(view: View, now: int) -> bool:
    """Whether that is why a lease call gets nothing: something else may be ready."""
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


def do_lease(draft: Draft, command: Lease) -> Leased:
    """Messages that were given back come first: they are older than all that wait."""
    view = draft.view
    if expiry.is_behind(draft):
        # More is over than could be let go: nobody is given what may be among it.
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
    again = failures.take_again(draft, view.returned, count) if view.returned else BitMap64()
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
            # Nothing but hidden rows so far: they are not looked at again.
            draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.first_fresh()))
        return Leased(LeaseId(0), seqs, deadline, {})
    upto = fresh.max() + 1 if fresh else view.first_fresh()
    lease = _make_lease(draft, seqs, again, command.lease_ms, upto)
    return Leased(lease.id, seqs, deadline, dict(lease.counts), turns, firsts=dict(lease.firsts))


def _make_lease(
    draft: Draft, seqs: BitMap64, again: BitMap64, lease_ms: int, upto: int = 0
) -> LeaseState:
    """`upto`: where the seqs begin that were never handed out."""
    view, spec = draft.view, draft.view.spec
    lease = draft.new_lease(seqs, lease_ms)
    if again:
        _overtake(draft, lease, again)
    view.holder.update(dict.fromkeys(seqs, lease.id))
    draft.add_lease(lease)
    paid_us = view.pointers.paid_us
    if spec.rate_us:
        paid_us = rate.paid_after(paid_us, draft.now, spec.rate_us, len(seqs))
    upto = upto or view.pointers.next
    pointers = msgspec.structs.replace(view.pointers, next=upto, lease=lease.id, paid_us=paid_us)
    draft.put_pointers(pointers)
    return lease


def _lease_groups(draft: Draft, command: Lease, count: int) -> Leased:
    """As the groups come to their turn."""
    deadline = draft.now + command.lease_ms
    taken = rotation.take(draft, draft.chosen, count, together=command.together)
    draft.chosen = []
    if not taken.seqs:
        return Leased(LeaseId(0), BitMap64(), deadline, {})
    seqs = BitMap64(taken.seqs)
    lease = _make_lease(draft, seqs, taken.again, command.lease_ms)
    rotation.hand_out(draft, lease, taken)
    # By groups, where messages block them one by one; else by seqs, but in the order of each group.
    several = [given for _, given, _ in taken.fresh if len(given) > 1]
    if draft.view.spec.blocking == "message":
        several = [taken.seqs]
    is_in_order = all(earlier < later for given in several for earlier, later in pairwise(given))
    turns = () if is_in_order else tuple(BitMap64([seq]) for seq in taken.seqs)
    return Leased(lease.id, seqs, deadline, dict(lease.counts), turns, firsts=dict(lease.firsts))


def _lease_partition(draft: Draft, command: Lease) -> Leased:
    """What the partition whose turn it is may give; it is locked then."""
    deadline = draft.now + command.lease_ms
    chosen, draft.chosen = draft.chosen, []
    if not chosen:
        return Leased(LeaseId(0), BitMap64(), deadline, {})
    [one] = chosen
    seqs = BitMap64(one.seqs)
    again = seqs & draft.view.returned
    lease = _make_lease(draft, seqs, again, command.lease_ms)
    serving.served(draft, one.group, lease, len(seqs) - len(again))
    return Leased(lease.id, seqs, deadline, dict(lease.counts))


def _take_by_turns(draft: Draft, wanted: int) -> tuple[BitMap64, tuple[BitMap64, ...]]:
    """Those of higher priority, those whose delay is over, fresh ones, those of lower priority.

    Returns the fresh ones, and all of them in this order. There may be fewer than wanted although
    more are there, where it is not known yet which of them come first.
    """
    turns = aside.take(draft, wanted, least=aside.USUAL)
    fresh = BitMap64()
    left = wanted - sum(map(len, turns))
    if left > 0 and aside.may_go_on(draft):
        fresh = take_fresh(draft, left)
        if fresh:
            turns.append(fresh)
        turns += aside.take(draft, left - len(fresh), least=0)
    return fresh, tuple(turns)


def expire_returned(draft: Draft) -> None:
    """End those that came back after their time to live was over."""
    view = draft.view
    if not view.overdue:
        return
    groups.return_due(draft)
    view.overdue &= BitMap64(view.holder)
    doomed: dict[int, dict[int, Doom]] = {}
    for seq in view.returned & view.overdue:
        doomed.setdefault(view.holder[seq], {})[seq] = Doom.EXPIRED
    failures.doom_all(draft, doomed)


def expire_due(view: View, now: int) -> bool:
    """Whether one of them may be back."""
    if not view.overdue:
        return False
    return view.returned.intersect(view.overdue) or bool(
        view.deadlines and view.deadlines[0][0] <= now
    )


def may_have_work(view: View, now: int) -> bool:
    """Whether a lease call might be given something: cheap, and never wrong when it says no."""
    if view.deadlines and view.deadlines[0][0] <= now:
        return True
    work_ms = _next_work(view, is_ready=_is_ready(view))
    return work_ms is not None and work_ms <= now


def _is_ready(view: View) -> bool:
    if view.partition is not None:
        return bool(view.returned) or view.partition.waiting > 0
    return bool(view.returned) or view.first_fresh() <= view.last_seq


def _next_work(view: View, *, is_ready: bool) -> int | None:
    """When there may be something to hand out, unless a lease ends before; 0: there may be now.

    `is_ready`: something may wait in the order of seqs.
    """
    if is_blocked(view) or is_full(view):
        return None
    return _next_ready(view, is_ready=is_ready)


def _next_ready(view: View, *, is_ready: bool) -> int | None:
    """As `_next_work`, whatever is with workers."""
    spec = view.spec
    if spec.is_grouped:
        work_ms = rotation.next_ms(view)
    elif is_ready:
        work_ms = 0
    else:
        work_ms = aside.next_due(view)
    if work_ms is None or not spec.rate_us:
        return work_ms
    return max(work_ms, rate.ready_ms(view.pointers.paid_us, spec.rate_us, spec.rate_burst))


def next_end(view: View | None) -> int | None:
    """When the next lease or delay ends, after which there may be work; None if there is none."""
    if view is None:
        return None
    spec, work_ms = view.spec, None
    if spec.rate_us or view.pointers.aside or spec.is_grouped:
        # Who waits although something is ready waits for the queue's rate.
        work_ms = _next_work(view, is_ready=bool(spec.rate_us) and _is_ready(view))
    if not view.deadlines:
        return work_ms
    return view.deadlines[0][0] if work_ms is None else min(view.deadlines[0][0], work_ms)


def is_empty(answer: object) -> bool:
    """Whether a lease call handed out nothing."""
    return isinstance(answer, Leased) and not answer.seqs


def need_fresh(draft: Draft, wanted: int) -> Need | None:
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


def count_fresh(view: View) -> int:
    """How many were never handed out, or a part of them that was asked for by `need_fresh`."""
    first = view.first_fresh()
    if not _has_gaps(view):
        return view.last_seq - first + 1
    ready = max(view.scanned - first + 1, 0)
    return ready - view.hidden.range_cardinality(first, first + ready)


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
    """The first that were never handed out, as far as they are known (`need_fresh`)."""
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
    touched: dict[int, list[int]] = {}
    for seq in again:
        old = view.leases[view.holder[seq]]
        deliveries, failures = old.counts_of(seq)
        if seq in old.open:
            # Nobody gave it back: its worker is taken for crashed.
            failures += 1
        groups.hand_on(draft, lease, old, seq)
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
    """These messages are this lease's no longer; returns them."""
    gone = BitMap64(seqs)
    lease.open -= gone
    lease.freed -= gone
    for seq in seqs:
        lease.forget_counts(seq)
        lease.deadlines.pop(seq, None)
        lease.doomed.pop(seq, None)
    return gone


def supersede_leased(draft: Draft, died: BitMap64) -> None:
    """A newer revision replaced these messages: whoever holds one of them is told so."""
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
