"""A topic, as a program uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from millrace import limits
from millrace.client.carried import carrying, count_of
from millrace.client.engine import Engine
from millrace.client.message import Body, Rows, publish_one, publish_rows, refused_row, seqs_of
from millrace.client.queue import Queue, engine_and_shard
from millrace.client.shards import label
from millrace.core import carry, check, filters
from millrace.core.answers import Published
from millrace.core.check_rows import in_row
from millrace.core.commands import ProducerMode, Publish
from millrace.core.model import CATALOG, ShardId
from millrace.core.notes import Most
from millrace.core.topic import deleted
from millrace.core.topic_cells import SubscriptionCell, TopicCell
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    DeleteTopic,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from millrace.errors import Forged, Invalid, MillraceError, NotFound

FilterLike = Mapping[str, object]
"""Headers and their tests; see `Topic.subscribe`."""

Fate = int | Literal["filtered", "forwarded", "later", "gone"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was published to a topic."""

    seq: int | None
    """Its seq in the topic; None where that is forgotten."""
    queues: dict[str, Fate]
    """With `until_arrived`: for each subscription the message's seq in the queue, or "filtered", or
    "forwarded" (it is there, where is not known any more), or "later" (the engine was closed
    first), or "gone" (the subscription ended)."""


@dataclass(frozen=True, slots=True)
class SentMany:
    """Messages that were published to a topic."""

    seqs: Sequence[int]
    """Their seqs in the topic; empty where that is forgotten."""
    queues: dict[str, list[Fate]]
    """With `until_arrived`: for each subscription what became of each message; see `Sent`."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a topic forwards to a queue, and how far it has come."""

    name: str
    queue: str
    """As space/name."""
    filter: dict[str, object]
    forwarded: int
    """Messages that are in the queue."""
    filtered: int
    """Messages that did not pass the filter."""
    lag: int
    """Messages that are still to be forwarded."""
    lag_seconds: float
    """For how long the oldest of them has waited."""
    trouble: str
    """Why the queue did not take the last ones; empty if it did."""
    notes: dict[str, str]
    """What is kept with it."""
    dead_lettered: int = 0
    """Messages that are dead letters, because there was no queue, or because they were larger than
    its `message_bytes_max`. Without a queue a subscription of SNS goes on, and any other ends."""
    dropped: int = 0
    """Messages that were dropped then, because there was no queue of dead letters."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is now."""

    space: str
    name: str
    published: int
    lag: int
    """Messages that wait for the slowest subscription."""
    max_lag: int
    """So many wait at most; then the topic refuses what is published."""
    subscriptions: list[Subscription]
    notes: dict[str, str]
    """What is kept with it."""


class Topic:
    """A named topic: what is published reaches every queue that is subscribed at that moment.

    A publish is committed once, in the topic; then it is forwarded to each queue, exactly once and
    in the topic's order, whatever crashes in between. A queue that refuses keeps no other one from
    its messages. All calls raise `NotFound` once the topic was deleted.
    """

    def __init__(self, engine: Engine, space: str, name: str, shard: ShardId) -> None:
        self._engine = engine
        self._space = space
        self._name = name
        self._shard = shard

    @property
    def name(self) -> str:
        """The topic's name within its space."""
        return self._name

    @property
    def space(self) -> str:
        """The space that the topic is in."""
        return self._space

    def __repr__(self) -> str:
        return f"<Topic {self._space}/{self._name}>"

    # --- Publish ------------------------------------------------------------------------------

    async def publish(
        self,
        body: Body,
        *,
        key: bytes | str | None = None,
        headers: check.HeadersLike | None = None,
        group: bytes | str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        dedup: str | None = None,
        ttl: float | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        until_arrived: bool = False,
    ) -> Sent:
        """Publish a message to every queue that is subscribed now.

        Returns once it can no longer be lost; with `until_arrived`, once every queue has it, and
        with where it is.
        Everything else is as with `Queue.publish`: `priority`, `delay` and `ttl` hold in the
        queues, times from now on; a message that is known by its `dedup` id is not forwarded
        again. Without any subscription the message is dropped.

        Raises:
            Invalid, TooLarge: the body, key, headers, priority, delay, producer or number.
            OutOfOrder: a dense producer's number is above the expected one.
            Full: too many messages wait for a subscription that gets nowhere, which the error
                names; or the log or the disk has no room.
        """
        message = check.message(body, key, headers, group)
        numbered = check.numbered(producer, number, mode, None)
        command = publish_one(message, numbered, priority, delay, dedup, ttl)
        answer, queues = await self._publish(command, until_arrived=until_arrived)
        return Sent(answer.first, {name: fates[0] for name, fates in queues.items()})

    async def publish_many(
        self,
        rows: Rows,
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        after: int | None = None,
        until_arrived: bool = False,
    ) -> SentMany:
        """Publish messages, all or nothing; see `publish`, and `Queue.publish_many` for `rows`."""
        numbered = check.numbered(producer, number, mode, after)
        command = publish_rows(rows, numbered, priority, delay, ttl)
        answer, queues = await self._publish(command, until_arrived=until_arrived)
        return SentMany(seqs_of(answer), queues)

    async def _publish(
        self, command: Publish, *, until_arrived: bool
    ) -> tuple[Published, dict[str, list[Fate]]]:
        until_arrived = check.flag(until_arrived, "until_arrived")
        answer = await self._ask(command)
        if not until_arrived or answer.first is None or not answer.count:
            return answer, {}
        if not answer.seqs:
            return answer, await self._engine.arrived(self._shard, answer.first, answer.count)
        # Repeats by their ids are where the first ones are.
        queues: dict[str, list[Fate]] = {}
        for seq in answer.seqs:
            for name, fates in (await self._engine.arrived(self._shard, seq, 1)).items():
                queues.setdefault(name, []).extend(fates)
        return answer, queues

    async def _ask(self, command: Publish) -> Published:
        telemetry = self._engine.telemetry
        if telemetry is None:
            return await self._ask_plain(command)
        with telemetry.sending(label(self._space, self._name), count_of(command)):
            return await self._ask_plain(carrying(command, telemetry.carried()))

    async def _ask_plain(self, command: Publish) -> Published:
        try:
            return await self._engine.ask(self._shard, carry.pack(command), Published)
        except NotFound as error:
            raise deleted() from error
        except Invalid as error:
            at = refused_row(command, error)
            if at is None:
                raise
            raise in_row(at, error) from error

    # --- Subscriptions ------------------------------------------------------------------------

    async def subscribe(
        self,
        queue: Queue | str,
        *,
        filter: FilterLike | None = None,
        name: str | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> bool:
        """Have what is published from now on forwarded to a queue; False if it is so already.

        `queue` is a queue, or the name of one in the topic's space. `name` tells subscriptions
        apart; without it they are called as their queues are. The subscription ends with its queue.

        `filter` maps headers to what their values may be: a text or a number, True, False or None,
        `{"prefix": ...}`, `{"suffix": ...}`, `{"equals-ignore-case": ...}`,
        `{"wildcard": "a*b"}`, `{"numeric": [">=", 5, "<", 10]}`, `{"cidr": "10.0.0.0/8"}`,
        `{"exists": True}`, `{"anything-but": [...]}`, or a list of these, of which one must hold.
        Every header that is named must pass. `"$body"` maps fields of a body of JSON to lists of
        such tests, or to the fields within; of the mappings in a list under `"$or"` one must pass.

        `notes` are small texts by their names, which are kept with the subscription.

        Raises:
            NotFound: there is no such queue.
            Exists: the name is in use for another queue, filter or notes;
                `configure_subscription` changes the latter two.
            Invalid, TooLarge: the name, the filter or the notes; the error says where.
        """
        space, target = self._target(queue)
        called = target if space == self._space else f"{space}.{target}"
        command = Subscribe(
            check.name(called if name is None else name, "name"),
            space,
            target,
            filters.text(filter),
            () if notes is None else check.notes(notes),
        )
        return (await self._engine.ask(self._shard, command, Subscribed)).made

    async def configure_subscription(
        self,
        name: str,
        *,
        filter: FilterLike | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Change the filter or the notes of the subscription of this name; None says nothing.

        Nothing is lost or forwarded twice: what was not forwarded before passes the new filter, or
        does not. An empty filter lets everything pass. Of the notes, those that are named are put,
        one with an empty text goes, and the others stay.

        Raises:
            NotFound: there is no such subscription.
            Invalid, TooLarge: the filter or the notes.
        """
        command = ConfigureSubscription(
            check.name(name, "name"),
            None if filter is None else filters.text(filter),
            () if notes is None else check.notes(notes),
        )
        await self._engine.ask(self._shard, command, Subscribed)

    def _target(self, queue: Queue | str) -> tuple[str, str]:
        if not isinstance(queue, Queue):
            return self._space, check.name(queue, "queue")
        if engine_and_shard(queue)[0] is not self._engine:
            raise Forged("the queue is of another Millrace", field="queue")
        return queue.space, queue.name

    async def unsubscribe(self, name: str) -> bool:
        """End the subscription of this name; returns whether there was one.

        What was not forwarded yet is not forwarded any more.
        """
        return await self._engine.ask(self._shard, Unsubscribe(check.name(name, "name")), bool)

    async def subscriptions(self) -> list[Subscription]:
        """The subscriptions, oldest first, and how far each has come."""
        return (await self.describe()).subscriptions

    # --- Look, settings -----------------------------------------------------------------------

    async def describe(self) -> TopicState:
        """The topic as it is now."""
        try:
            meta = await self._engine.meta(self._shard)
            cells = await self._engine.subscriptions(self._shard)
            settings = await self._engine.topic_cell(self._shard)
            trouble = await self._engine.trouble(self._shard)
            ages: dict[int, float] = {}
            for cell in cells.values():
                if cell.passed not in ages:
                    ages[cell.passed] = await self._age(cell.passed)
        except NotFound as error:
            raise deleted() from error
        found = [
            Subscription(
                cell.name,
                cell.target,
                msgspec.json.decode(cell.filter, type=dict[str, object]) if cell.filter else {},
                cell.forwarded,
                cell.filtered,
                meta.last_seq - cell.passed,
                ages[cell.passed],
                _trouble(cell, trouble.get(number)),
                dict(cell.notes),
                cell.dead_lettered,
                cell.dropped,
            )
            for number, cell in cells.items()
        ]
        lag = max((one.lag for one in found), default=0)
        return TopicState(
            self._space,
            self._name,
            meta.published,
            lag,
            settings.max_lag,
            found,
            dict(settings.notes),
        )

    async def _age(self, passed: int) -> float:
        """How long the first row after this one has waited."""
        rows = await self._engine.peek(self._shard, passed, None, 1)
        return max(0, self._engine.now_ms() - rows[0].time_ms) / 1000 if rows else 0.0

    async def configure(
        self, *, max_lag: int | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """Change how many messages may wait for the slowest subscription, or the notes.

        What is None stays. Of the notes, those that are named are put, one with an empty text goes,
        and the others stay.

        Raises:
            Invalid, TooLarge: `max_lag` or the notes.
        """
        lag = None if max_lag is None else lag_of(max_lag)
        await self._configure(lag, {} if notes is None else notes, None)

    async def _configure(
        self, lag: int | None, notes: Mapping[str, str], most: Most | None
    ) -> None:
        kept = check.notes(notes)
        command = ConfigureTopic(self._space, self._name, self._shard, lag, kept, most)
        await self._engine.ask(CATALOG, command, TopicCell)

    async def delete(self) -> bool:
        """End the topic and its subscriptions at once; returns whether it was still there.

        What was not forwarded yet goes with it: `describe` tells whether there is any. What was
        forwarded stays in the queues.
        """
        return await self._engine.ask(
            CATALOG, DeleteTopic(self._space, self._name, self._shard), bool
        )


def engine_and_topic(topic: Topic) -> tuple[Engine, ShardId]:
    """Where a topic is."""
    return topic._engine, topic._shard


def _trouble(cell: SubscriptionCell, error: MillraceError | None) -> str:
    if error is not None:
        return str(error)
    if not cell.is_unbound:
        return ""
    letters = f"are dead letters in {cell.dead_letter}" if cell.dead_letter else "are dropped"
    return f"there is no queue {cell.target}: messages {letters}"


async def subscribe_durably(topic: Topic, command: Subscribe) -> bool:
    """Make a subscription that outlives its queue, which need not be there; returns whether it was
    made.

    Raises:
        Exists: the name is in use for another queue, filter or notes.
        Invalid, TooLarge: the name, the queue, the filter or the notes.
    """
    check.name(command.space, "space")
    check.name(command.queue, "queue")
    return (await topic._engine.ask(topic._shard, command, Subscribed)).made


async def configure_durably(topic: Topic, command: ConfigureSubscription) -> None:
    """Change a subscription, that to which a durable one sends dead letters too.

    Raises:
        NotFound: there is no such subscription.
        Invalid, TooLarge: the filter or the notes.
    """
    await topic._engine.ask(topic._shard, command, Subscribed)


async def configure_notes(topic: Topic, notes: Mapping[str, str], most: Most | None) -> None:
    """Change notes of a topic; see `Topic.configure`.

    Raises:
        TooLarge: more than so many would begin alike; it has the limit of `most`.
    """
    await topic._configure(None, notes, most)


def lag_of(value: object) -> int:
    """How many messages may wait.

    Raises:
        Invalid, TooLarge: it is no such number.
    """
    return check.count(value, "max_lag", limits.TOPIC_LAG_MAX)


__all__ = ["Sent", "SentMany", "Subscription", "Topic", "TopicState"]
