"""`Topic`: publish to subscribed queues, and manage subscriptions and their filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.message import Body, Rows, publish_one, publish_rows, refused_row, seqs_of
from millrace.client.queue import Queue, engine_and_shard
from millrace.client.shards import label
from millrace.client.trace_headers import message_count, with_headers
from millrace.core import validate
from millrace.core.answers import PublishResult
from millrace.core.cells import SubscriptionCell, TopicCell
from millrace.core.commands import ProducerMode, Publish
from millrace.core.model import CATALOG, ShardId
from millrace.core.notes import NotesLimit
from millrace.core.publishing import life_headers
from millrace.core.publishing.validate_rows import in_row
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    DeleteTopic,
    Subscribe,
    SubscribeResult,
    Unsubscribe,
)
from millrace.core.topics import filters
from millrace.core.topics.topic import deleted
from millrace.errors import Forged, Invalid, MillraceError, NotFound

FilterLike = Mapping[str, object]
"""Headers and the tests of their values; see `Topic.subscribe`."""

Fate = int | Literal["filtered", "forwarded", "later", "gone"]


@dataclass(frozen=True, slots=True)
class Sent:
    """Result of publishing a message to a topic."""

    seq: int | None
    """Seq of the message in the topic; None if it is no longer known."""
    queues: dict[str, Fate]
    """With `until_arrived`: for each subscription the message's seq in the queue, or "filtered", or
    "forwarded" (it arrived, its seq is no longer known), or "later" (the engine was closed before),
    or "gone" (the subscription ended)."""


@dataclass(frozen=True, slots=True)
class SentMany:
    """Result of publishing several messages to a topic."""

    seqs: Sequence[int]
    """Seqs of the messages in the topic; empty if they are no longer known."""
    queues: dict[str, list[Fate]]
    """With `until_arrived`: for each subscription the result for each message; see `Sent`."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of a queue to a topic, and its progress."""

    name: str
    queue: str
    """As space/name."""
    filter: dict[str, object]
    forwarded: int
    """Number of messages forwarded to the queue."""
    filtered: int
    """Number of messages that did not match the filter."""
    lag: int
    """Number of messages still to be forwarded."""
    lag_seconds: float
    """Age of the oldest of these, in seconds."""
    trouble: str
    """Reason why the queue refused the last messages; empty if it did not."""
    notes: dict[str, str]
    """Short texts stored with it."""
    dead_lettered: int = 0
    """Number of messages that became dead letters, because the queue did not exist or they exceeded
    its `message_bytes_max`. Without a queue an SNS subscription continues; any other ends."""
    dropped: int = 0
    """Number of messages dropped instead, for want of a dead-letter queue."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """Current state of a topic."""

    space: str
    name: str
    published: int
    lag: int
    """Number of messages that wait for the slowest subscription."""
    max_lag: int
    """Maximum of `lag`; beyond it the topic refuses publishes."""
    subscriptions: list[Subscription]
    notes: dict[str, str]
    """Short texts stored with it."""


class Topic:
    """A named topic: each message is forwarded to all queues subscribed at the moment of
    publishing.

    A publish is committed once, in the topic; then it is forwarded to each queue exactly once and
    in the topic's order, whatever crashes in between. A queue that refuses messages does not delay
    the others. All calls raise `NotFound` after the topic was deleted.
    """

    def __init__(self, engine: Engine, space: str, name: str, shard: ShardId) -> None:
        self._engine = engine
        self._space = space
        self._name = name
        self._shard = shard

    @property
    def name(self) -> str:
        """Name of the topic within its space."""
        return self._name

    @property
    def space(self) -> str:
        """Space of the topic."""
        return self._space

    def __repr__(self) -> str:
        return f"<Topic {self._space}/{self._name}>"

    # --- Publish ------------------------------------------------------------------------------

    async def publish(
        self,
        body: Body,
        *,
        key: bytes | str | None = None,
        headers: validate.HeadersLike | None = None,
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
        """Publish a message to all queues that are subscribed now.

        Returns once the message is durable; with `until_arrived`, once every queue has it, with its
        seq in each. The arguments are those of `Queue.publish`: `priority`, `delay` and `ttl` apply
        in the queues, with times from now on; a repeat of a `dedup` id is not forwarded again.
        Without subscriptions the message is dropped.

        Raises:
            Invalid, TooLarge: an argument is not valid; nothing was published.
            OutOfOrder: the number of a dense producer is above the expected one.
            Full: too many messages wait for a stalled subscription, which the error names; or the
                log or the disk is full.
        """
        message = validate.message(body, key, headers, group)
        numbered = validate.numbered(producer, number, mode, None)
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
        """Publish messages atomically; see `publish`, and `Queue.publish_many` for `rows`."""
        numbered = validate.numbered(producer, number, mode, after)
        command = publish_rows(rows, numbered, priority, delay, ttl)
        answer, queues = await self._publish(command, until_arrived=until_arrived)
        return SentMany(seqs_of(answer), queues)

    async def _publish(
        self, command: Publish, *, until_arrived: bool
    ) -> tuple[PublishResult, dict[str, list[Fate]]]:
        until_arrived = validate.flag(until_arrived, "until_arrived")
        answer = await self._ask(command)
        if not until_arrived or answer.first is None or not answer.count:
            return answer, {}
        if not answer.seqs:
            return answer, await self._engine.arrived(self._shard, answer.first, answer.count)
        # Repeats of de-duplication ids have the seqs of the first ones.
        queues: dict[str, list[Fate]] = {}
        for seq in answer.seqs:
            for name, fates in (await self._engine.arrived(self._shard, seq, 1)).items():
                queues.setdefault(name, []).extend(fates)
        return answer, queues

    async def _ask(self, command: Publish) -> PublishResult:
        telemetry = self._engine.telemetry
        if telemetry is None:
            return await self._ask_plain(command)
        with telemetry.sending(label(self._space, self._name), message_count(command)):
            return await self._ask_plain(with_headers(command, telemetry.carried()))

    async def _ask_plain(self, command: Publish) -> PublishResult:
        try:
            return await self._engine.ask(self._shard, life_headers.pack(command), PublishResult)
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
        """Subscribe a queue to messages published from now on; return False if it was subscribed
        already.

        `queue` is a queue, or the name of one in the topic's space. `name` identifies the
        subscription; by default it is the queue's name. The subscription ends with its queue.

        `filter` maps headers to accepted values: a text or a number, True, False or None,
        `{"prefix": ...}`, `{"suffix": ...}`, `{"equals-ignore-case": ...}`, `{"wildcard": "a*b"}`,
        `{"numeric": [">=", 5, "<", 10]}`, `{"cidr": "10.0.0.0/8"}`, `{"exists": True}`,
        `{"anything-but": [...]}`, or a list of these, where one match suffices. All headers
        named must match. `"$body"` maps fields of a JSON body to lists of such tests, or to nested
        fields; `"$or"` has a list of mappings, where one match suffices.

        `notes` are short texts by name, stored with the subscription.

        Raises:
            NotFound: the queue does not exist.
            Exists: the name is in use for another queue, filter or notes; `configure_subscription`
                changes the latter two.
            Invalid, TooLarge: the name, filter or notes are not valid; the error says where.
        """
        space, target = self._target(queue)
        called = target if space == self._space else f"{space}.{target}"
        command = Subscribe(
            validate.name(called if name is None else name, "name"),
            space,
            target,
            filters.text(filter),
            () if notes is None else validate.notes(notes),
        )
        return (await self._engine.ask(self._shard, command, SubscribeResult)).made

    async def configure_subscription(
        self,
        name: str,
        *,
        filter: FilterLike | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Change the filter or the notes of a subscription; None leaves them as they are.

        Nothing is lost or forwarded twice: the new filter applies to all messages not forwarded
        before. An empty filter matches everything. Notes given here are set, or removed if the text
        is empty; other notes stay.

        Raises:
            NotFound: the subscription does not exist.
            Invalid, TooLarge: the filter or the notes are not valid.
        """
        command = ConfigureSubscription(
            validate.name(name, "name"),
            None if filter is None else filters.text(filter),
            () if notes is None else validate.notes(notes),
        )
        await self._engine.ask(self._shard, command, SubscribeResult)

    def _target(self, queue: Queue | str) -> tuple[str, str]:
        if not isinstance(queue, Queue):
            return self._space, validate.name(queue, "queue")
        if engine_and_shard(queue)[0] is not self._engine:
            raise Forged("the queue is of another Millrace", field="queue")
        return queue.space, queue.name

    async def unsubscribe(self, name: str) -> bool:
        """End a subscription; return False if there was none.

        Messages that were not forwarded yet are not forwarded any more.
        """
        return await self._engine.ask(self._shard, Unsubscribe(validate.name(name, "name")), bool)

    async def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions with their progress, oldest first."""
        return (await self.describe()).subscriptions

    # --- Look, settings -----------------------------------------------------------------------

    async def describe(self) -> TopicState:
        """Return the current state of the topic and its subscriptions."""
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
        subscriptions = [
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
        lag = max((subscription.lag for subscription in subscriptions), default=0)
        return TopicState(
            self._space,
            self._name,
            meta.published,
            lag,
            settings.max_lag,
            subscriptions,
            dict(settings.notes),
        )

    async def _age(self, passed: int) -> float:
        """Return the age of the first row after this seq, in seconds."""
        rows = await self._engine.peek(self._shard, passed, None, 1)
        return max(0, self._engine.now_ms() - rows[0].time_ms) / 1000 if rows else 0.0

    async def configure(
        self, *, max_lag: int | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """Change the maximum lag of the slowest subscription, or the notes.

        None leaves a setting as it is. Notes given here are set, or removed if the text is empty;
        other notes stay.

        Raises:
            Invalid, TooLarge: `max_lag` or the notes are not valid.
        """
        lag = None if max_lag is None else validate_lag(max_lag)
        await self._configure(lag, {} if notes is None else notes, None)

    async def _configure(
        self, lag: int | None, notes: Mapping[str, str], most: NotesLimit | None
    ) -> None:
        checked_notes = validate.notes(notes)
        command = ConfigureTopic(self._space, self._name, self._shard, lag, checked_notes, most)
        await self._engine.ask(CATALOG, command, TopicCell)

    async def delete(self) -> bool:
        """Delete the topic and its subscriptions at once; return False if it was already deleted.

        Messages that were not forwarded yet are deleted, too; `describe` shows whether there are
        any. Messages that were forwarded stay in the queues.
        """
        return await self._engine.ask(
            CATALOG, DeleteTopic(self._space, self._name, self._shard), bool
        )


def engine_and_topic(topic: Topic) -> tuple[Engine, ShardId]:
    """Return the engine and the shard of a topic."""
    return topic._engine, topic._shard


def _trouble(cell: SubscriptionCell, error: MillraceError | None) -> str:
    if error is not None:
        return str(error)
    if not cell.is_unbound:
        return ""
    letters = f"are dead letters in {cell.dead_letter}" if cell.dead_letter else "are dropped"
    return f"there is no queue {cell.target}: messages {letters}"


async def subscribe_durably(topic: Topic, command: Subscribe) -> bool:
    """Create a subscription that outlives its queue, which need not exist; return True if created.

    Raises:
        Exists: the name is in use for another queue, filter or notes.
        Invalid, TooLarge: the name, queue, filter or notes are not valid.
    """
    validate.name(command.space, "space")
    validate.name(command.queue, "queue")
    return (await topic._engine.ask(topic._shard, command, SubscribeResult)).made


async def configure_durably(topic: Topic, command: ConfigureSubscription) -> None:
    """Change a subscription, including the dead-letter queue of a durable one.

    Raises:
        NotFound: the subscription does not exist.
        Invalid, TooLarge: the filter or the notes are not valid.
    """
    await topic._engine.ask(topic._shard, command, SubscribeResult)


async def configure_notes(topic: Topic, notes: Mapping[str, str], most: NotesLimit | None) -> None:
    """Change notes of a topic; see `Topic.configure`.

    Raises:
        TooLarge: more names than `most` allows would share a prefix.
    """
    await topic._configure(None, notes, most)


def validate_lag(value: object) -> int:
    """Validate a maximum lag.

    Raises:
        Invalid, TooLarge: the value is not valid.
    """
    return validate.count(value, "max_lag", limits.TOPIC_LAG_MAX)


__all__ = ["Sent", "SentMany", "Subscription", "Topic", "TopicState"]
