"""The rules of a queue that becomes fair.

Rule 1: an order is fixed when a queue is made, but that `none` may become `fair`.
Rule 2: whatever is there at that moment is of the group without a name: what is in flight, and
behind it what waits, in the order of seqs. It is written down so in the batch of the change, after
which the queue is as if it had been made fair. So nothing else knows of the change.
Rule 3: that batch is bounded. While too much is there, or anything waits apart, the change has to
wait, and the queue goes on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace import limits
from millrace.core import groups, lease
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.flight import Flight
from millrace.core.group_list import number_of
from millrace.core.model import QueueSpec
from millrace.errors import Full, Invalid, Refused, Retry

CHANGE = ("none", "fair")
"""The order that may become another one, and which that is."""

NAMELESS = number_of(b"")
"""The group of those that name none."""


def check(
    draft: Draft, before: QueueSpec, wanted: QueueSpec, *, has_others: bool
) -> Refused | Retry | Need | None:
    """Whether the order may become another one now."""
    if (before.order, wanted.order) != CHANGE:
        return Invalid(
            "the order of a queue is fixed when it is made, but that 'none' may become 'fair'",
            field="order",
        )
    if before.keyed or before.retention != "work" or before.is_partitioned or has_others:
        return Invalid(
            "only a work queue with one shard, and without keys and partitions, may become fair",
            field="order",
        )
    view = draft.view
    for kind, window in view.windows.items() if view.pointers.aside else ():
        if window.first() is not None:
            return _not_now("messages with delays or priorities wait")
        low = window.wanted_from()
        if low is not None:
            return Need(view.shard, cells=(kind, low, limits.WINDOW_CELLS))
    most = limits.REORDERED_MESSAGES_MAX - len(view.holder)
    if most < 0:
        return _not_now(f"{len(view.holder)} messages are in flight")
    need = lease.need_fresh(draft, most + 1)
    if need is not None:
        return need
    if lease.count_fresh(view) > most:
        return _not_now(f"more than {most} messages wait")
    return groups.need_to_enter(draft, [NAMELESS])


def _not_now(why: str) -> Full:
    return Full(
        f"{why}; a queue becomes fair while no more than {limits.REORDERED_MESSAGES_MAX} messages "
        "are there, and none waits apart",
        field="order",
        limit=limits.REORDERED_MESSAGES_MAX,
    )


def take(draft: Draft) -> Sequence[int]:
    """What waits, as long as the order is still the old one."""
    groups.return_due(draft)
    return list(lease.take_fresh(draft, limits.REORDERED_MESSAGES_MAX))


def do(draft: Draft, waiting: Sequence[int]) -> None:
    """The order is the new one: let those in flight, and these, be of the group without a name."""
    view = draft.view
    flight = Flight(more=False)
    for number in sorted(set(view.holder.values())):
        held = view.leases[number]
        seqs = held.open | held.freed
        if seqs:
            held.groups = dict.fromkeys(seqs, NAMELESS)
            flight.count += len(seqs)
            draft.put_lease(held)
    if flight.count:
        for seq in view.returned:
            flight.give_back(seq)
        view.groups.flights[NAMELESS] = flight
        groups.look(view, NAMELESS, flight)
    if waiting:
        groups.enter(draft, waiting, [NAMELESS] * len(waiting))
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.last_seq + 1))
