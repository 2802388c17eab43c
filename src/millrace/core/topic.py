"""The rules of topics: what they hold, and who is subscribed.

Rule 1: a subscription gets what comes after it was made, and nothing once its queue was deleted: a
queue that is made anew under the name is another one.
Rule 2: the rows of a topic stay until every subscription has passed them, and no longer. None is
ever dropped for a slow one: beyond `max_lag` the topic refuses what is published.
Rule 3: a subscription is a producer of its queue, from the batch that makes it to the one that
ends it. Its name tells topic, subscription and history apart, so that none is taken for another.
Rule 4: a durable subscription outlives its queue. While there is none of the name it waits, and its
rows are dead letters, or dropped and counted; the next queue of the name gets what comes after it
was made, and has the subscription as a producer from the batch that makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from millrace import limits
from millrace.core import filters, notes
from millrace.core.block import Block
from millrace.core.commands import Publish
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.model import CATALOG, CatalogCell, Message, ProducerCell, QueueCell, ShardId
from millrace.core.topic_cells import AwaitedCell, SubscriptionCell, TopicCell
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Subscribe,
    Subscribed,
    TopicRef,
    Unsubscribe,
)
from millrace.core.view import View
from millrace.errors import Exists, Full, Invalid, NotFound, Refused, TooLarge

_JUDGED = min(limits.FILTER_BODY_BYTES_MAX, limits.FILTER_BODY_VALUES_MAX)
"""A body of so many bytes is within the bounds of filters, whatever is in it."""

FORWARDERS = "topic/"
"""How the names of forwarding producers begin; no program's producer has a name like that."""


def producer_of(shard: int, number: int, cell: SubscriptionCell) -> str:
    """The name under which a subscription publishes to its queue."""
    return f"{FORWARDERS}{shard}/{number}/{cell.history.hex()}"


# --- The catalog ---------------------------------------------------------------------------------


def create(desk: Desk, catalog: Draft, key: bytes, command: CreateTopic) -> TopicRef | Refused:
    """Find or make a topic."""
    found = catalog.view.topics.get(key)
    if found is not None:
        if command.max_lag not in (None, found.max_lag):
            return Exists(
                f"topic {command.name!r} is there with other settings: max_lag is "
                f"{found.max_lag}; configure it to change them",
                field="max_lag",
            )
        if notes.merge(found.notes, command.notes) != found.notes:
            return Exists(
                f"topic {command.name!r} is there with other notes; configure it to change them",
                field="notes",
            )
        return TopicRef(ShardId(found.shard), made=False)
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
    made = desk.make(View(shard, catalog.view.epoch, catalog.view.history))
    made.changes.made = 1
    made.put_topic(b"", cell)
    return TopicRef(shard, made=True)


def configure(
    desk: Desk, catalog: Draft, key: bytes, command: ConfigureTopic
) -> TopicCell | Refused:
    """Change the settings, in the catalog and in the topic's own shard."""
    found = catalog.view.topics.get(key)
    draft = desk.draft(ShardId(command.shard))
    if found is None or found.shard != command.shard or draft is None:
        return deleted()
    lag = found.max_lag if command.max_lag is None else command.max_lag
    cell = TopicCell(found.shard, lag, notes.merge(found.notes, command.notes))
    refused = notes.check(cell.notes, most=command.most)
    if refused is not None:
        return refused
    if cell != found:
        catalog.put_topic(key, cell)
        draft.put_topic(b"", cell)
    return cell


def delete(desk: Desk, catalog: Draft, key: bytes, command: DeleteTopic) -> bool:
    """End a topic at once; what was not forwarded goes with it."""
    found = catalog.view.topics.get(key)
    if found is None or command.shard not in (0, found.shard):
        return False
    catalog.put_topic(key, None)
    draft = desk.draft(ShardId(found.shard))
    if draft is not None:
        for number in list(draft.view.subscriptions):
            _end(desk, draft, number)
        draft.changes.dropped = True
        draft.view.dropped = True
    return True


def deleted() -> NotFound:
    """What is said of a topic that is no longer there."""
    return NotFound("the topic was deleted", field="topic")


# --- Subscriptions -------------------------------------------------------------------------------


def subscribe(desk: Desk, draft: Draft, command: Subscribe) -> Subscribed | Refused:
    """Find or make a subscription."""
    view = draft.view
    if view.topic is None:
        return Invalid("only a topic has subscriptions", field="topic")
    queue = queue_named(desk, command.space, command.queue)
    targets = [desk.draft(ShardId(shard)) for shard in queue.shards] if queue is not None else []
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
                return Subscribed(number, cell.since, made=False)
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
    _put(desk, draft, number, cell)
    for taker in takers:
        producer = ProducerCell("rising", view.last_seq, taker.now)
        taker.put_producer(producer_of(view.shard, number, cell), producer)
    return Subscribed(number, cell.since, made=True)


def configure_subscription(draft: Draft, command: ConfigureSubscription) -> Subscribed | Refused:
    """Change the filter or the notes; how far it has come stays as it is."""
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
        return Subscribed(number, cell.since, made=False)
    return NotFound(f"there is no subscription {command.name!r}", field="name")


def _check_bodies(view: View, rows: Block | tuple[Message, ...]) -> TooLarge | None:
    """Whether all bodies can be judged by filters, if some of the topic's are on bodies."""
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


def queue_named(desk: Desk, space: str, name: str) -> QueueCell | None:
    """Return the queue of this name, if there is one."""
    catalog = desk.draft(CATALOG)
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


def unsubscribe(desk: Desk, draft: Draft, command: Unsubscribe) -> bool:
    """Forward nothing more; what was forwarded stays in the queue."""
    for number, cell in draft.view.subscriptions.items():
        if cell.name == command.name:
            _end(desk, draft, number)
            drop_passed(draft)
            return True
    return False


def end_of_queue(desk: Desk, queue: Draft) -> None:
    """The queue is being deleted: whatever forwards to it ends in the same entry, or waits for the
    next one of the name."""
    for name in [name for name in queue.view.producers if name.startswith(FORWARDERS)]:
        _, shard, number, _ = name.split("/")
        draft = desk.draft(ShardId(int(shard)))
        cell = draft.view.subscriptions.get(int(number)) if draft is not None else None
        if draft is None or cell is None:
            continue
        if cell.durable:
            _put(desk, draft, int(number), msgspec.structs.replace(cell, queue=0))
            continue
        draft.put_subscription(int(number), None)
        drop_passed(draft)


class Unbound(NamedTuple):
    """A subscription that waits for its queue to be made."""

    draft: Draft
    """Of its topic."""
    number: int
    cell: SubscriptionCell


def unbound_to(desk: Desk, catalog: View, space: str, name: str) -> list[Unbound]:
    """Return the subscriptions that wait for a queue of this name, as many as it takes."""
    awaited = catalog.awaited.get(f"{space}/{name}", set())
    found: list[Unbound] = []
    for one in sorted(awaited, key=lambda cell: (cell.topic, cell.number)):
        draft = desk.draft(ShardId(one.topic))
        if draft is not None and len(found) < limits.PRODUCERS_MAX:
            found.append(Unbound(draft, one.number, draft.view.subscriptions[one.number]))
    return found


def _put(desk: Desk, draft: Draft, number: int, cell: SubscriptionCell | None) -> None:
    """Put a subscription, or end it, and have the catalog know whether it waits for its queue."""
    known = draft.view.subscriptions.get(number)
    draft.put_subscription(number, cell)
    was_unbound = known is not None and known.is_unbound
    is_unbound = cell is not None and cell.is_unbound
    one = cell or known
    catalog = desk.draft(CATALOG) if was_unbound is not is_unbound else None
    if catalog is not None and one is not None:
        waiting = AwaitedCell(int(draft.view.shard), number)
        catalog.put_awaited(one.target, waiting, waits=is_unbound)


def with_queue_notes(kept: notes.Notes, unbound: Sequence[Unbound]) -> notes.Notes:
    """Return the notes of a queue with those that the subscriptions give it; notes of one for which
    there is no room are left out."""
    return notes.merge_all(kept, (one.cell.queue_notes for one in unbound))


def begin_of_queue(desk: Desk, unbound: Sequence[Unbound], shards: Sequence[ShardId]) -> None:
    """The queue was made: what waited for it forwards to it, in the same entry."""
    for one in unbound:
        cell = msgspec.structs.replace(one.cell, queue=int(shards[0]))
        _put(desk, one.draft, one.number, cell)
        for shard in shards:
            target = desk.draft(shard)
            assert target is not None
            producer = ProducerCell("rising", cell.passed, target.now)
            target.put_producer(producer_of(one.draft.view.shard, one.number, cell), producer)


def _end(desk: Desk, draft: Draft, number: int) -> None:
    cell = draft.view.subscriptions[number]
    _put(desk, draft, number, None)
    found = queue_of(desk, cell)
    for shard in found.shards if found is not None else ():
        target = desk.draft(ShardId(shard))
        if target is not None:
            target.put_producer(producer_of(draft.view.shard, number, cell), None)


def queue_of(desk: Desk, cell: SubscriptionCell) -> QueueCell | None:
    """The queue of a subscription, as long as it is there."""
    catalog = desk.draft(CATALOG)
    key = catalog.view.owners.get(cell.queue) if catalog is not None else None
    return catalog.view.queues[key] if catalog is not None and key is not None else None


# --- Rows ----------------------------------------------------------------------------------------


def passed_by_all(view: View) -> int:
    """The seq up to which nobody wants a row of the topic any more."""
    return min((cell.passed for cell in view.subscriptions.values()), default=view.last_seq)


def drop_passed(draft: Draft) -> None:
    """End the rows that every subscription has passed."""
    upto = passed_by_all(draft.view)
    if upto:
        draft.purge_to(upto)


def check_publish(view: View, command: Publish, *, has_deletes: bool) -> Refused | Full | None:
    """Whether the topic takes these rows."""
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
