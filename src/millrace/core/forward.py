"""Forwarding: how the rows of a topic get to the queues of its subscriptions.

Rule 1: a parcel's rows in the queue and the subscription's progress are one entry, so that no crash
loses or doubles one. They are published under the subscription's own producer, with the seq of the
last row in the topic as the rising number: where they should come twice, the queue knows.
Rule 2: each parcel is judged alone. A queue that refuses holds up no other one.
Rule 3: a parcel that does not begin where its subscription has come to is left alone.
"""

from __future__ import annotations

import msgspec

from millrace.core import publish, topic
from millrace.core.commands import Need, Numbered, Publish, Published
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.model import ShardId, SubscriptionCell
from millrace.core.topic_commands import Brought, Forward, Forwarded, Parcel
from millrace.errors import NotFound, Refused, Retry

_Plan = tuple[Parcel, SubscriptionCell, Draft, Publish | None, Published | None]
"""With what is to be published, or what it was published as before."""


def forward(desk: Desk, draft: Draft, command: Forward) -> Forwarded | Need:
    """Bring each parcel to its queue, if that takes it."""
    brought: list[Brought] = []
    plans: list[_Plan] = []
    queues: set[int] = set()
    for parcel in command.parcels:
        cell = draft.view.subscriptions.get(parcel.subscription)
        if cell is None or cell.passed != parcel.after or cell.queue in queues:
            brought.append(Brought(parcel.subscription, moved=False))
            continue
        planned = _plan(desk, draft, parcel, cell)
        if isinstance(planned, Need):
            return planned
        if isinstance(planned, Refused | Retry):
            brought.append(Brought(parcel.subscription, moved=False, error=planned))
            continue
        # A second parcel for the same queue would be judged by what it was before the first.
        queues.add(cell.queue)
        plans.append(planned)
    before = topic.passed_by_all(draft.view)
    for parcel, cell, target, wanted, known in plans:
        done = publish.do_publish(target, wanted) if wanted is not None else known
        _pass(draft, parcel, cell)
        first = done.first if done is not None else None
        brought.append(Brought(parcel.subscription, moved=True, first=first))
    if topic.passed_by_all(draft.view) > before:
        topic.drop_passed(draft)
    return Forwarded(tuple(brought))


def _plan(
    desk: Desk, draft: Draft, parcel: Parcel, cell: SubscriptionCell
) -> _Plan | Refused | Retry | Need:
    target = desk.draft(ShardId(cell.queue))
    if target is None:
        return NotFound(f"queue {cell.target} was deleted", field="queue")
    if parcel.rows is None:
        return parcel, cell, target, None, None
    name = topic.producer_of(draft.view.shard, parcel.subscription, cell)
    # A log knows neither priorities nor delays, and takes a message as it comes.
    aside = parcel.aside if target.view.spec.retention == "work" else ()
    wanted = Publish(parcel.rows, Numbered(name, parcel.upto, "rising"), aside)
    checked = publish.check_publish(target, wanted)
    if isinstance(checked, Refused | Retry | Need):
        return checked
    if checked is not None:
        return parcel, cell, target, None, checked
    return parcel, cell, target, wanted, None


def _pass(draft: Draft, parcel: Parcel, cell: SubscriptionCell) -> None:
    count = parcel.rows.count if parcel.rows is not None else 0
    draft.put_subscription(
        parcel.subscription,
        msgspec.structs.replace(
            cell,
            passed=parcel.upto,
            forwarded=cell.forwarded + count,
            filtered=cell.filtered + parcel.filtered,
            moved_ms=draft.now,
        ),
    )
