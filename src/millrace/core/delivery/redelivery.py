"""Redelivery: backoff after failures, and the decision that a message is a dead letter.

Rule 1: a message with too many failures or deliveries is never delivered again. It becomes a dead
letter in the batch that notices it, and stays in its lease until it is moved (`dead_letter.py`).
Rule 2: a queue without a dead-letter queue drops its dead letters in that batch. Dead letters that
wait when the setting is removed are dropped as well, except those that are none by the present
settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from pyroaring import BitMap64

from millrace.core.answers import Outcome
from millrace.core.commands import Discard, Release
from millrace.core.model import DeadLetterReason, Death
from millrace.core.ordering import groups, partitions
from millrace.core.spec import QueueSpec
from millrace.core.state.draft import Draft
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.view import View


def dead_letter_reason(spec: QueueSpec, deliveries: int, failures: int) -> DeadLetterReason | None:
    """Return why a message with these counters is a dead letter; None if it is not."""
    if spec.max_failures and failures >= spec.max_failures:
        return DeadLetterReason.FAILURES
    if spec.max_deliveries and deliveries >= spec.max_deliveries:
        return DeadLetterReason.DELIVERIES
    return None


def delay_after(spec: QueueSpec, failures: int) -> int:
    """Return the backoff of a message that has just failed, in milliseconds."""
    delay = spec.retry_min_ms * failures
    return min(delay, spec.retry_max_ms) if spec.retry_max_ms else delay


def select_returned(
    view: View, returned: BitMap64, count: int
) -> tuple[BitMap64, dict[int, dict[int, DeadLetterReason]]]:
    """Return the first released messages, and those that became dead letters, by lease."""
    spec = view.spec
    if not (spec.max_failures or spec.max_deliveries or view.overdue):
        return BitMap64(islice(returned, count)), {}
    again = BitMap64()
    doomed: dict[int, dict[int, DeadLetterReason]] = {}
    for seq in returned:
        lease = view.leases[view.holder[seq]]
        deliveries, failed = lease.counts_of(seq)
        # It was not released: its worker is assumed to have crashed.
        why = dead_letter_reason(spec, deliveries, failed + (seq in lease.open))
        if seq in view.overdue:
            why = DeadLetterReason.EXPIRED
        if why is not None:
            doomed.setdefault(lease.id, {})[seq] = why
            continue
        again.add(seq)
        if len(again) == count:
            break
    return again, doomed


def take_returned(draft: Draft, returned: BitMap64, count: int) -> BitMap64:
    """Take the first released messages; dead letters among them are recorded."""
    again, doomed = select_returned(draft.view, returned, count)
    mark_all_dead_letters(draft, doomed)
    return again


def mark_all_dead_letters(
    draft: Draft, doomed: Mapping[int, Mapping[int, DeadLetterReason]]
) -> None:
    """Make dead letters of released messages, by lease."""
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
        mark_dead_letters(draft, lease, seqs)
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
    doomed: dict[int, DeadLetterReason] = {}
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
        why = dead_letter_reason(spec, deliveries, failures)
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
    mark_dead_letters(draft, lease, doomed)
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
        mark_dead_letters(draft, lease, dict.fromkeys(done, DeadLetterReason.DISCARDED))
        draft.put_lease(lease)
    return outcome


def mark_dead_letters(
    draft: Draft, lease: LeaseState, doomed: Mapping[int, DeadLetterReason]
) -> None:
    """Make dead letters of messages of the lease; the caller has taken them out of its sets."""
    if not doomed:
        return
    groups.ended(draft, lease, doomed)
    for seq in doomed:
        lease.deadlines.pop(seq, None)
    spec = draft.view.spec
    expired = BitMap64([seq for seq, why in doomed.items() if why is DeadLetterReason.EXPIRED])
    if expired and not (spec.dead_letter and spec.dead_letter_expired):
        end(draft, lease, expired, Death.EXPIRED)
        doomed = {seq: why for seq, why in doomed.items() if seq not in expired}
    if draft.view.spec.dead_letter:
        lease.doomed.update((seq, int(why)) for seq, why in doomed.items())
        draft.view.doomed |= BitMap64(doomed)
    else:
        end(draft, lease, BitMap64(doomed), Death.DROPPED)


def is_revivable(spec: QueueSpec, lease: LeaseState, seq: int) -> bool:
    """Return True if a dead letter would be none by these settings, and was not discarded."""
    if lease.doomed[seq] not in (DeadLetterReason.FAILURES, DeadLetterReason.DELIVERIES):
        return False
    return dead_letter_reason(spec, *lease.counts_of(seq)) is None


def revive(draft: Draft, lease: LeaseState, seqs: BitMap64, numbers: Mapping[int, int]) -> None:
    """Turn these dead letters of the lease back into messages, which are ready at once.

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
    """End messages of the lease; late receipts of them are answered for a while."""
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
