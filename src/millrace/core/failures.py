"""The rules of failure: delays before another attempt, and when a message is a dead letter.

Rule 1: a message that has failed or was handed out too often is never handed out again. It is
doomed in the batch that finds out, and stays so, in its lease, until it is buried (`bury.py`).
Rule 2: a queue that names no other for them drops its dead letters in that batch. Those that it
has when it names one no longer are dropped as well, but for those that would be none by now.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from pyroaring import BitMap64

from millrace.core import groups, partitions
from millrace.core.answers import Outcome
from millrace.core.commands import Discard, Release
from millrace.core.draft import Draft
from millrace.core.lease_state import LeaseState
from millrace.core.model import Death, Doom, QueueSpec
from millrace.core.view import View


def doom_of(spec: QueueSpec, deliveries: int, failures: int) -> Doom | None:
    """Why a message with these counters is a dead letter; None if it is not."""
    if spec.max_failures and failures >= spec.max_failures:
        return Doom.FAILURES
    if spec.max_deliveries and deliveries >= spec.max_deliveries:
        return Doom.DELIVERIES
    return None


def delay_after(spec: QueueSpec, failures: int) -> int:
    """How long a message that has just failed is left alone, in milliseconds."""
    delay = spec.retry_min_ms * failures
    return min(delay, spec.retry_max_ms) if spec.retry_max_ms else delay


def judge_again(
    view: View, returned: BitMap64, count: int
) -> tuple[BitMap64, dict[int, dict[int, Doom]]]:
    """The first of those that were given back, and those that nobody is to get again, by lease."""
    spec = view.spec
    if not (spec.max_failures or spec.max_deliveries or view.overdue):
        return BitMap64(islice(returned, count)), {}
    again = BitMap64()
    doomed: dict[int, dict[int, Doom]] = {}
    for seq in returned:
        lease = view.leases[view.holder[seq]]
        deliveries, failed = lease.counts_of(seq)
        # Nobody gave it back: its worker is taken for crashed.
        why = doom_of(spec, deliveries, failed + (seq in lease.open))
        if seq in view.overdue:
            why = Doom.EXPIRED
        if why is not None:
            doomed.setdefault(lease.id, {})[seq] = why
            continue
        again.add(seq)
        if len(again) == count:
            break
    return again, doomed


def take_again(draft: Draft, returned: BitMap64, count: int) -> BitMap64:
    """The first of those that were given back; what turns out to be doomed is taken note of."""
    again, doomed = judge_again(draft.view, returned, count)
    doom_all(draft, doomed)
    return again


def doom_all(draft: Draft, doomed: Mapping[int, Mapping[int, Doom]]) -> None:
    """These that came back are dead letters, by lease."""
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
        doom(draft, lease, seqs)
        draft.put_lease(lease)


def do_release(draft: Draft, command: Release, outcome: Outcome) -> Outcome:
    view, spec = draft.view, draft.view.spec
    lease = view.leases.get(command.lease)
    if lease is None:
        return outcome
    done = outcome.done & lease.open
    if not done:
        return outcome
    lease.open -= done
    doomed: dict[int, Doom] = {}
    delayed: dict[int, int] = {}
    for seq in done:
        lease.deadlines.pop(seq, None)
        deliveries, failures = lease.counts_of(seq)
        delay_ms = command.delay_ms
        if command.unseen:
            deliveries -= 1
            lease.counts[seq] = (deliveries, failures)
        if command.failed:
            failures += 1
            lease.counts[seq] = (deliveries, failures)
            delay_ms = max(delay_ms, delay_after(spec, failures))
        why = doom_of(spec, deliveries, failures)
        if why is not None:
            doomed[seq] = why
        elif delay_ms:
            delayed[seq] = draft.now + delay_ms
    lease.deadlines.update(delayed)
    for ready_ms in sorted(set(delayed.values())):
        draft.push_deadline(ready_ms, lease.id)
    freed = done - BitMap64(doomed)
    lease.freed |= freed
    view.returned -= done
    groups.held(draft, lease, done)
    postponed = BitMap64(delayed)
    view.postponed |= postponed
    ready = freed - postponed
    view.returned |= ready
    doom(draft, lease, doomed)
    groups.returned(draft, lease, ready)
    draft.put_lease(lease)
    return outcome


def do_discard(draft: Draft, command: Discard, outcome: Outcome) -> Outcome:
    lease = draft.view.leases.get(command.lease)
    if lease is None:
        return outcome
    done = outcome.done & lease.open
    if done:
        lease.open -= done
        lease.discarded |= done
        draft.view.returned -= done
        doom(draft, lease, dict.fromkeys(done, Doom.DISCARDED))
        draft.put_lease(lease)
    return outcome


def doom(draft: Draft, lease: LeaseState, doomed: Mapping[int, Doom]) -> None:
    """These messages of the lease are dead letters; the caller has taken them out of its sets."""
    if not doomed:
        return
    groups.ended(draft, lease, doomed)
    for seq in doomed:
        lease.deadlines.pop(seq, None)
    spec = draft.view.spec
    expired = BitMap64([seq for seq, why in doomed.items() if why is Doom.EXPIRED])
    if expired and not (spec.dead_letter and spec.dead_letter_expired):
        end(draft, lease, expired, Death.EXPIRED)
        doomed = {seq: why for seq, why in doomed.items() if seq not in expired}
    if draft.view.spec.dead_letter:
        lease.doomed.update((seq, int(why)) for seq, why in doomed.items())
        draft.view.doomed |= BitMap64(doomed)
    else:
        end(draft, lease, BitMap64(doomed), Death.DROPPED)


def is_spared(spec: QueueSpec, lease: LeaseState, seq: int) -> bool:
    """Whether a dead letter of the lease would be none by these settings, and never was asked to be
    one."""
    if lease.doomed[seq] not in (Doom.FAILURES, Doom.DELIVERIES):
        return False
    return doom_of(spec, *lease.counts_of(seq)) is None


def revive(draft: Draft, lease: LeaseState, seqs: BitMap64, numbers: Mapping[int, int]) -> None:
    """These dead letters of the lease are messages again, ready for whoever comes next.

    `numbers`: the groups of those that have one.
    """
    view = draft.view
    for seq in seqs:
        del lease.doomed[seq]
    lease.freed |= seqs
    view.doomed -= seqs
    view.returned |= seqs
    groups.revived(draft, lease, numbers)


def end(draft: Draft, lease: LeaseState, seqs: BitMap64, why: Death) -> None:
    """These messages of the lease are dealt with; a receipt of theirs says so for a while."""
    view = draft.view
    lease.buried |= seqs
    for seq in seqs:
        lease.doomed.pop(seq, None)
        lease.forget_counts(seq)
        del view.holder[seq]
    view.doomed -= seqs
    partitions.ended(draft, seqs)
    if seqs and (view.spec.retention == "work" or why is Death.EXPIRED):
        draft.die(why, seqs)
