"""Creates, configures and deletes topics and subscriptions, and bounds their backlog.

Rule 1: a subscription gets rows published after its creation, and none after its queue was deleted:
a queue created again under the name is another one.
Rule 2: the rows of a topic stay until every subscription has passed them, and no longer. No row is
dropped for a slow subscription: beyond `max_lag` the topic refuses publishes.
Rule 3: a subscription is a producer of its queue, from the batch that creates it to the one that
ends it. Its name contains topic, subscription and history, so that it is unique.
Rule 4: a durable subscription outlives its queue. Without a queue of the name it waits, and its
rows are dead letters, or dropped and counted; the next queue of the name gets the rows after its
creation, and has the subscription as a producer from the batch that creates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from millrace import limits
from millrace.core import notes
from millrace.core.cells import (
    AwaitedCell,
    CatalogCell,
    ProducerCell,
    QueueCell,
    SubscriptionCell,
    TopicCell,
)
from millrace.core.commands import Publish
from millrace.core.format.block import Block
from millrace.core.model import CATALOG, NewMessage, ShardId
from millrace.core.state.draft import BatchContext, Draft
from millrace.core.state.view import View
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Subscribe,
    SubscribeResult,
    TopicRef,
    Unsubscribe,
)
from millrace.core.topics import filters
from millrace.errors import Exists, Full, Invalid, NotFound, Refused, TooLarge

_JUDGED = min(limits.FILTER_BODY_BYTES_MAX, limits.FILTER_BODY_VALUES_MAX)
"""A body of at most this size is within the bounds of filters, whatever its content."""

FORWARDERS = "topic/"
"""Prefix of the names of forwarding producers, which no program's producer can have."""


def producer_of(shard: int, number: int, cell: SubscriptionCell) -> str:
    """Return the name under which a subscription publishes to its queue."""
    return f"{FORWARDERS}{shard}/{number}/{cell.history.hex()}"


# --- The catalog ---------------------------------------------------------------------------------


def create(
    context: BatchContext, catalog: Draft, key: bytes, command: CreateTopic
) -> TopicRef | Refused:
    """Create a topic if it is missing."""
    existing = catalog.view.topics.get(key)
    if existing is not None:
        if command.max_lag not in (None, existing.max_lag):
            return Exists(
                f"topic {command.name!r} is there with other settings: max_lag is "
                f"{existing.max_lag}; configure it to change them",
                field="max_lag",
            )
        if notes.merge(existing.notes, command.notes) != existing.notes:
            return Exists(
                f"topic {command.name!r} is there with other notes; configure it to change them",
                field="notes",
            )
        return TopicRef(ShardId(existing.shard), made=False)
    counts = catalog.view.catalog
    if counts is None:
        return NotFound("the catalog was never begun", field="catalog")
    if len(catalog.view.queues) + len(catalog.view.topics) >= limits.QUEUES_MAX:
        return TooLarge(
            f"there are {limits.QUEUES_MAX} queues and topics; delete one first",
            field="name",
            limit=limits.QUEUES_MAX,
        )
    kept = notes.merge((), command.notes)
    refused = notes.check(kept)
    if refused is not None:
        return refused
    shard = ShardId(counts.shard + 1)
    lag = limits.TOPIC_LAG if command.max_lag is None else command.max_lag
    cell = TopicCell(shard, lag, kept)
    catalog.put_catalog(CatalogCell(shard, counts.secret))
    catalog.put_topic(key, cell)
    made = context.make(View(shard, catalog.view.epoch, catalog.view.history))
    made.changes.made = 1
    made.put_topic(b"", cell)
    return TopicRef(shard, made=True)


def configure(
    context: BatchContext, catalog: Draft, key: bytes, command: ConfigureTopic
) -> TopicCell | Refused:
    """Change the settings, in the catalog and in the topic's own shard."""
    existing = catalog.view.topics.get(key)
    draft = context.draft(ShardId(command.shard))
    if existing is None or existing.shard != command.shard or draft is None:
        return deleted()
    lag = existing.max_lag if command.max_lag is None else command.max_lag
    cell = TopicCell(existing.shard, lag, notes.merge(existing.notes, command.notes))
    refused = notes.check(cell.notes, most=command.most)
    if refused is not None:
        return refused
    if cell != existing:
        catalog.put_topic(key, cell)
        draft.put_topic(b"", cell)
    return cell


def delete(context: BatchContext, catalog: Draft, key: bytes, command: DeleteTopic) -> bool:
    """End a topic at once, unforwarded rows included."""
    existing = catalog.view.topics.get(key)
    if existing is None or command.shard not in (0, existing.shard):
        return False
    catalog.put_topic(key, None)
    draft = context.draft(ShardId(existing.shard))
    if draft is not None:
        for number in list(draft.view.subscriptions):
            _end(context, draft, number)
        draft.changes.dropped = True
        draft.view.dropped = True
    return True


def deleted() -> NotFound:
    """Return the error for a topic that was deleted."""
    return NotFound("the topic was deleted", field="topic")


# --- Subscriptions -------------------------------------------------------------------------------


def subscribe(context: BatchContext, draft: Draft, command: Subscribe) -> SubscribeResult | Refused:
    """Create a subscription if it is missing."""
    view = draft.view
    if view.topic is None:
        return Invalid("only a topic has subscriptions", field="topic")
    queue = queue_named(context, command.space, command.queue)
    targets = [context.draft(ShardId(shard)) for shard in queue.shards] if queue is not None else []
    takers = [target for target in targets if target is not None]
    if not takers and not command.durable:
        return NotFound(
            f"there is no queue {command.queue!r} in {command.space!r}; make it first",
            field="queue",
        )
    name = f"{command.space}/{command.queue}"
    for number, cell in view.subscriptions.items():
        if cell.name == command.name:
            if cell.target != name:
                return Exists(
                    f"subscription {command.name!r} is there with another queue; end it first, or "
                    "give this one another name",
                    field="name",
                )
            kept = notes.merge(cell.notes, command.notes)
            if (cell.filter, cell.notes) == (command.filter, kept):
                return SubscribeResult(number, cell.since, made=False)
            what = "another filter" if cell.filter != command.filter else "other notes"
            return Exists(
                f"subscription {command.name!r} is there with {what}; configure it to change that, "
                "or give this one another name",
                field="name",
            )
    kept = notes.merge((), command.notes)
    refused = _check_room(view, takers[0].view if takers else None) or _check_notes(kept)
    refused = refused or notes.check(command.queue_notes)
    if refused is not None:
        return refused
    number = view.pointers.cursor + 1
    cell = SubscriptionCell(
        command.name,
        takers[0].view.shard if takers else 0,
        name,
        command.filter,
        view.history,
        view.last_seq,
        view.last_seq,
        moved_ms=draft.now,
        notes=kept,
        durable=command.durable,
        dead_letter=command.dead_letter,
        queue_notes=notes.merge((), command.queue_notes),
    )
    draft.put_pointers(msgspec.structs.replace(view.pointers, cursor=number))
    _put(context, draft, number, cell)
    for taker in takers:
        producer = ProducerCell("rising", view.last_seq, taker.now)
        taker.put_producer(producer_of(view.shard, number, cell), producer)
    return SubscribeResult(number, cell.since, made=True)


def configure_subscription(
    draft: Draft, command: ConfigureSubscription
) -> SubscribeResult | Refused:
    """Change the filter or the notes of a subscription; its progress is unchanged."""
    for number, cell in draft.view.subscriptions.items():
        if cell.name != command.name:
            continue
        kept = notes.merge(cell.notes, command.notes)
        of_queue = notes.merge(cell.queue_notes, command.queue_notes)
        refused = _check_notes(kept) or notes.check(of_queue)
        if refused is not None:
            return refused
        changed = msgspec.structs.replace(
            cell,
            filter=cell.filter if command.filter is None else command.filter,
            notes=kept,
            durable=cell.durable or command.durable,
            dead_letter=cell.dead_letter if command.dead_letter is None else command.dead_letter,
            queue_notes=of_queue,
        )
        if changed != cell:
            draft.put_subscription(number, changed)
        return SubscribeResult(number, cell.since, made=False)
    return NotFound(f"there is no subscription {command.name!r}", field="name")


def _check_bodies(view: View, rows: Block | tuple[NewMessage, ...]) -> TooLarge | None:
    """Check that filters can judge all bodies, if some subscription filters by body."""
    if isinstance(rows, Block):
        sizes = np.diff(rows.bodies.bounds())
        large = [rows.bodies.value(at) for at in np.flatnonzero(sizes > _JUDGED).tolist()]
    else:
        large = [row.body for row in rows if len(row.body or b"") > _JUDGED]
    if not large:
        return None
    if not any(filters.reads_bodies(cell.filter) for cell in view.subscriptions.values()):
        return None
    for body in large:
        if body is None:
            continue
        if len(body) > limits.FILTER_BODY_BYTES_MAX:
            return TooLarge(
                f"body has {len(body)} bytes; of a topic with filters on bodies up to "
                f"{limits.FILTER_BODY_BYTES_MAX} are allowed",
                field="body",
                limit=limits.FILTER_BODY_BYTES_MAX,
            )
        letters = np.frombuffer(body, np.uint8)
        count = sum(int(np.count_nonzero(letters == sign)) for sign in b",[{")
        if count > limits.FILTER_BODY_VALUES_MAX:
            return TooLarge(
                f"body has {count} commas and brackets; of a topic with filters on bodies up to "
                f"{limits.FILTER_BODY_VALUES_MAX} are allowed",
                field="body",
                limit=limits.FILTER_BODY_VALUES_MAX,
            )
    return None


def _check_notes(kept: notes.Notes) -> Refused | None:
    return notes.check(kept, limits.SUBSCRIPTION_NOTES_BYTES_MAX)


def queue_named(context: BatchContext, space: str, name: str) -> QueueCell | None:
    """Return the queue of this name, if there is one."""
    catalog = context.draft(CATALOG)
    return catalog.view.queues.get(f"{space}\0{name}".encode()) if catalog is not None else None


def _check_room(topic: View, queue: View | None) -> Refused | None:
    if len(topic.subscriptions) >= limits.SUBSCRIPTIONS_MAX:
        return TooLarge(
            f"a topic has up to {limits.SUBSCRIPTIONS_MAX} subscriptions; end one first",
            field="name",
            limit=limits.SUBSCRIPTIONS_MAX,
        )
    if queue is not None and len(queue.producers) >= limits.PRODUCERS_MAX:
        return TooLarge(
            f"the queue remembers {limits.PRODUCERS_MAX} producers and takes no new one",
            field="queue",
            limit=limits.PRODUCERS_MAX,
        )
    return None


def unsubscribe(context: BatchContext, draft: Draft, command: Unsubscribe) -> bool:
    """Forward nothing more; forwarded rows stay in the queue."""
    for number, cell in draft.view.subscriptions.items():
        if cell.name == command.name:
            _end(context, draft, number)
            drop_passed(draft)
            return True
    return False


def end_of_queue(context: BatchContext, queue: Draft) -> None:
    """End all subscriptions of a queue that is being deleted, in the same entry; durable ones
    wait for the next queue of the name."""
    for name in [name for name in queue.view.producers if name.startswith(FORWARDERS)]:
        _, shard, number, _ = name.split("/")
        draft = context.draft(ShardId(int(shard)))
        cell = draft.view.subscriptions.get(int(number)) if draft is not None else None
        if draft is None or cell is None:
            continue
        if cell.durable:
            _put(context, draft, int(number), msgspec.structs.replace(cell, queue=0))
            continue
        draft.put_subscription(int(number), None)
        drop_passed(draft)


class WaitingSubscription(NamedTuple):
    """A durable subscription that waits for the creation of its queue."""

    draft: Draft
    """The draft of its topic."""
    number: int
    cell: SubscriptionCell


def unbound_to(
    context: BatchContext, catalog: View, space: str, name: str
) -> list[WaitingSubscription]:
    """Return the subscriptions that wait for a queue of this name, up to the limit of a queue."""
    awaited = catalog.awaited.get(f"{space}/{name}", set())
    unbound: list[WaitingSubscription] = []
    for one in sorted(awaited, key=lambda cell: (cell.topic, cell.number)):
        draft = context.draft(ShardId(one.topic))
        if draft is not None and len(unbound) < limits.PRODUCERS_MAX:
            unbound.append(
                WaitingSubscription(draft, one.number, draft.view.subscriptions[one.number])
            )
    return unbound


def _put(context: BatchContext, draft: Draft, number: int, cell: SubscriptionCell | None) -> None:
    """Put a subscription, or end it, and tell the catalog whether it waits for its queue."""
    previous = draft.view.subscriptions.get(number)
    draft.put_subscription(number, cell)
    was_unbound = previous is not None and previous.is_unbound
    is_unbound = cell is not None and cell.is_unbound
    current = cell or previous
    catalog = context.draft(CATALOG) if was_unbound is not is_unbound else None
    if catalog is not None and current is not None:
        waiting = AwaitedCell(int(draft.view.shard), number)
        catalog.put_awaited(current.target, waiting, waits=is_unbound)


def with_queue_notes(kept: notes.Notes, unbound: Sequence[WaitingSubscription]) -> notes.Notes:
    """Return the notes of a queue with those of its subscriptions; notes that would exceed the
    limits are left out."""
    return notes.merge_all(kept, (waiting.cell.queue_notes for waiting in unbound))


def begin_of_queue(
    context: BatchContext, unbound: Sequence[WaitingSubscription], shards: Sequence[ShardId]
) -> None:
    """Connect waiting subscriptions to their new queue, in the same entry."""
    for waiting in unbound:
        cell = msgspec.structs.replace(waiting.cell, queue=int(shards[0]))
        _put(context, waiting.draft, waiting.number, cell)
        for shard in shards:
            target = context.draft(shard)
            assert target is not None
            producer = ProducerCell("rising", cell.passed, target.now)
            target.put_producer(
                producer_of(waiting.draft.view.shard, waiting.number, cell), producer
            )


def _end(context: BatchContext, draft: Draft, number: int) -> None:
    cell = draft.view.subscriptions[number]
    _put(context, draft, number, None)
    queue = queue_of(context, cell)
    for shard in queue.shards if queue is not None else ():
        target = context.draft(ShardId(shard))
        if target is not None:
            target.put_producer(producer_of(draft.view.shard, number, cell), None)


def queue_of(context: BatchContext, cell: SubscriptionCell) -> QueueCell | None:
    """Return the queue of a subscription, if it exists."""
    catalog = context.draft(CATALOG)
    key = catalog.view.owners.get(cell.queue) if catalog is not None else None
    return catalog.view.queues[key] if catalog is not None and key is not None else None


# --- Rows ----------------------------------------------------------------------------------------


def passed_by_all(view: View) -> int:
    """Return the seq up to which every subscription has passed."""
    return min((cell.passed for cell in view.subscriptions.values()), default=view.last_seq)


def drop_passed(draft: Draft) -> None:
    """End the rows that every subscription has passed."""
    upto = passed_by_all(draft.view)
    if upto:
        draft.purge_to(upto)


def check_publish(view: View, command: Publish, *, has_deletes: bool) -> Refused | Full | None:
    """Check that the topic takes these rows."""
    assert view.topic is not None
    if has_deletes:
        return Invalid("a topic takes no deletes: publish them to the queues", field="body")
    if command.aside or command.lives:
        return Invalid("a topic hands messages on in their order, and all of them", field="rows")
    lag = view.last_seq - passed_by_all(view)
    if lag < view.topic.max_lag:
        return _check_bodies(view, command.rows)
    slowest = min(view.subscriptions.values(), key=lambda cell: cell.passed)
    return Full(
        f"{lag} messages wait for the subscription {slowest.name!r} to {slowest.target}: see that "
        "the queue takes them, or end the subscription",
        field="max_lag",
        limit=view.topic.max_lag,
    )
