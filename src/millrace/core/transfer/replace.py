"""Replaces a leased message: a worker records its progress in a successor, and goes on with that.

Rule 1: it is one command: the old message is settled, its successor published and leased by the
same worker, under a new receipt. Deliveries and failures are carried over.
Rule 2: the successor has the highest seq and is leased: the pointer passes over it, as over a
deferred message. Its TTL is the queue's, and begins anew.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace.core.answers import Leased, Outcome
from millrace.core.commands import Publish, Replace, Settle
from millrace.core.delivery import settle
from millrace.core.needs import Need
from millrace.core.ordering import groups, partitions
from millrace.core.publishing import publish
from millrace.core.state.draft import Draft
from millrace.core.state.lease_state import LeaseState
from millrace.errors import Invalid, Refused, Retry


def replace(draft: Draft, command: Replace) -> Leased | Refused | Retry | Need:
    """Settle the old message and lease its successor; refused if the receipt is not valid."""
    view = draft.view
    if view.spec.retention == "log":
        return Invalid(
            "a queue with retention 'log' keeps every message as it is; publish another one",
            field="retention",
        )
    outcome = settle.judge(draft, command)
    for seq in outcome.refused:
        return outcome.refused[seq]
    lease = view.leases[command.lease]
    if lease.session:
        return Invalid(
            "a session holds the message; settle it and publish another one", field="receipt"
        )
    publishes = Publish((command.message,))
    checked = publish.check_publish(draft, publishes)
    if isinstance(checked, Refused | Retry | Need):
        return checked
    return _do(draft, command, lease, outcome)


def _do(draft: Draft, command: Replace, lease: LeaseState, outcome: Outcome) -> Leased:
    view = draft.view
    seqs = command.seqs
    deliveries, failures = lease.counts_of(seqs.min())
    group = groups.leave_place(lease, seqs.min())
    settle.do_settle(draft, Settle(command.lease, seqs, command.history), outcome)
    # A request with the old receipt is told that there is a newer one.
    lease.settled -= seqs
    lease.superseded |= seqs
    message = command.message
    first = draft.put_rows((message,))
    if view.spec.keyed:
        publish.supersede(draft, first, [message.key], [])
    new = BitMap64([first])
    draft.aside |= new
    held = draft.new_lease(new, command.lease_ms)
    if (deliveries, failures) != (1, 0):
        held.counts[first] = (deliveries, failures)
    if group is not None:
        # It is in flight for its group, as the old one was.
        groups.take_place(draft, held, seqs.min(), first, group)
    view.holder[first] = held.id
    draft.add_lease(held)
    pointers = msgspec.structs.replace(view.pointers, lease=held.id, aside=first)
    if view.spec.is_grouped:
        pointers = msgspec.structs.replace(pointers, next=first + 1)
    draft.put_pointers(pointers)
    if view.spec.is_partitioned:
        partitions.enter(draft, first, 1, held=True)
    return Leased(held.id, new, held.deadline_ms, dict(held.counts))
