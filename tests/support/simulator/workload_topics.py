"""Clients of topics: publishers, and one that subscribes, ends subscriptions and checks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from millrace.client.queue import Queue
from millrace.client.topic import Fate, SentMany, Topic
from millrace.core.model import NewMessage
from millrace.errors import Fatal, NotFound, Retry
from tests.support.checkers.history import (
    Other,
    Outcome,
    TopicPublish,
    TopicRead,
)
from tests.support.checkers.topics import (
    EVERYTHING,
    FILTERED,
    PASSING,
    WANTED,
)
from tests.support.simulator.workload import (
    TAG,
    Client,
    Over,
    Session,
    World,
)

TOPIC = "news"
KINDS = [WANTED, b"odd"]
SAME: tuple[dict[str, object], ...] = ({}, {"kind": ["even", "odd"]})
"""Filters that let everything pass."""
LAG_SECONDS_MAX = 60
"""What forwarding may take when nothing is in its way."""


async def open_topic(session: Session) -> Topic:
    """The topic with the queues that are always subscribed."""
    m = session.millrace
    try:
        topic = await m.topic(TOPIC)
        for name, wanted in ((EVERYTHING, None), (FILTERED, {"kind": WANTED})):
            await m.queue(name, retention="log")
            await topic.subscribe(name, filter=wanted)
    except Fatal as error:
        session.fail(error)
        raise Over from error
    except Retry as error:
        raise Over from error
    return topic


class TopicPublisher(Client):
    """Publishes to the topic under dense numbers, again until it knows that it is done."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._last = 0
        self._open: TopicPublish | None = None

    async def resume(self, session: Session) -> None:
        if self._open is not None:
            await self._publish(session, self._open)

    async def act(self, session: Session) -> None:
        await self.resume(session)
        if self._open is not None:
            return
        rows: list[tuple[str, bytes]] = []
        for _ in range(self.chance.choice([1, 1, 2, 5])):
            self._tags += 1
            rows.append((f"{self.name}.{self._tags}", self.chance.choice(KINDS)))
        await self._publish(session, TopicPublish(shard=0, rows=tuple(rows)))

    async def _publish(self, session: Session, given: TopicPublish) -> None:
        """Publish under the next number; until the outcome is known, nothing else has it."""
        topic = await open_topic(session)
        was_open = self._open is not None
        call = self._open = TopicPublish(shard=0, rows=given.rows)
        messages = [_message(tag, kind) for tag, kind in call.rows]
        work = topic.publish_many(
            messages,
            producer=self.name,
            number=self._last + 1,
            until_arrived=self.is_patient or self.chance.random() < 0.4,
        )
        await self.ask(session, call, work, _note)
        if call.is_ok:
            self._last += 1
        if call.is_ok or (call.outcome is Outcome.REFUSED and not was_open):
            self._open = None


class Subscriber(Client):
    """Has a queue subscribed for a while, by one filter and another, looks at what it got, and
    begins anew."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._since: int | None = None
        """When the subscription was known to be there; None: it is not known."""
        self._changes = 0

    def think(self) -> float:
        return self.chance.expovariate(1 / 0.1)

    async def act(self, session: Session) -> None:
        topic = await open_topic(session)
        if self._since is None:
            await self._begin(session, topic)
        elif self.chance.random() < 0.3:
            await self._end(session, topic)
        elif self.chance.random() < 0.5:
            await self._change(session, topic)

    async def _change(self, session: Session, topic: Topic) -> None:
        """Write the same filter otherwise, and note how often."""
        self._changes += 1
        wanted = str(self._changes)
        call = Other(shard=0, what=f"configure {PASSING}")
        work = _configure(topic, SAME[self._changes % 2], wanted)
        await self.ask(session, call, work, lambda c, found: self._judge(wanted, found))

    def _judge(self, wanted: str, found: str) -> None:
        if found != wanted:
            self.blame(f"D3: the note of {PASSING} is {found!r}, not {wanted!r}")

    async def _begin(self, session: Session, topic: Topic) -> None:
        """Make the queue anew, and have it subscribed."""
        m = session.millrace
        gone = Other(shard=0, what=f"delete {PASSING}")
        if await self.ask(session, gone, m.delete_queue(PASSING), lambda c, r: None) is None:
            return
        made = Other(shard=0, what=f"make {PASSING}")
        work = m.queue(PASSING, retention="log")
        if await self.ask(session, made, work, lambda c, r: None) is None:
            return
        call = Other(shard=0, what=f"subscribe {PASSING}")
        await self.ask(session, call, topic.subscribe(PASSING), lambda c, r: None)
        if call.is_ok:
            self._since = call.ended or 0

    async def _end(self, session: Session, topic: Topic) -> None:
        """End the subscription, or the queue; look at what it got first."""
        since, self._since = self._since or 0, None
        if self.chance.random() < 0.5:
            call = Other(shard=0, what=f"unsubscribe {PASSING}")
            if await self.ask(session, call, topic.unsubscribe(PASSING), _nothing) is None:
                return
        read = TopicRead(shard=0, queue=PASSING, since=since)
        await self.ask(session, read, _rows(session, PASSING), _note_rows)

    async def finish(self, session: Session) -> None:
        """All is forwarded in the end; then nothing is left in the topic, nor by us in queues."""
        topic = await open_topic(session)
        for _ in range(LAG_SECONDS_MAX):
            if not (await topic.describe()).lag:
                break
            await asyncio.sleep(1.0)
        else:
            self.blame(f"liveness: the topic is behind: {await topic.describe()}")
        for name in (EVERYTHING, FILTERED, PASSING):
            try:
                queue = await session.millrace.find(name)
            except NotFound:
                continue
            if name != PASSING:
                read = TopicRead(shard=0, queue=name)
                await self.ask(session, read, _rows(session, name), _note_rows)
            await queue.purge()


def _message(tag: str, kind: bytes) -> NewMessage:
    return NewMessage(f"{tag}|".encode() + bytes(300), None, ((TAG, tag.encode()), ("kind", kind)))


def _note(call: TopicPublish, sent: SentMany) -> None:
    call.first = sent.seqs[0] if len(sent.seqs) else None
    call.queues = _plain(sent.queues)


async def _configure(topic: Topic, wanted: Mapping[str, object], note: str) -> str:
    await topic.configure_subscription(PASSING, filter=wanted, notes={"changes": note})
    [found] = [one for one in await topic.subscriptions() if one.name == PASSING]
    return found.notes["changes"]


def _plain(queues: Mapping[str, Sequence[Fate]]) -> dict[str, list[int | str]]:
    return {name: list(fates) for name, fates in queues.items()}


async def _rows(session: Session, name: str) -> list[tuple[int, str]]:
    queue: Queue = await session.millrace.find(name)
    found: list[tuple[int, str]] = []
    after = 0
    while rows := await queue.peek(10_000, after=after):
        found += [(row.seq, dict(row.headers)[TAG].decode()) for row in rows]
        after = rows[-1].seq
    return found


def _note_rows(call: TopicRead, rows: list[tuple[int, str]]) -> None:
    call.rows = tuple(rows)


def _nothing(call: Other, answer: bool) -> None:  # noqa: FBT001
    """There is nothing to note."""
