"""The rules of replacing: a worker writes down how far it came, and goes on with the successor.

Rule 1: it is one command: the old message is settled, its successor published and held by the same
worker, under a new receipt. Deliveries and failures are carried over.
Rule 2: the successor comes last in the order of seqs and is in a lease: the pointer passes over it,
as over a message that was put aside. Its time to live is the queue's, and begins anew.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace.core import groups, partitions, publish, work
from millrace.core.answers import Leased, Outcome
from millrace.core.commands import Need, Publish, Settle
from millrace.core.draft import Draft
from millrace.core.lease_state import LeaseState
from millrace.core.leased_commands import Replace
from millrace.errors import Invalid, Refused, Retry


def replace(draft: Draft, command: Replace) -> Leased | Refused | Retry | Need:
    """The successor, leased; refused where the receipt does not hold the message."""
    view = draft.view
    if view.spec.retention == "log":
        return Invalid(
            "a queue with retention 'log' keeps every message as it is; publish another one",
            field="retention",
        )
    outcome = work.judge(draft, command)
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
    work.do_settle(draft, Settle(command.lease, seqs, command.history), outcome)
    # Whoever comes with the old receipt hears that there is a newer one.
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
