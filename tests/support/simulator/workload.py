"""The clients of a simulated run: what they have in common.

Rule 1: a client knows what a real one could know, and survives the end of the engine with it: the
receipts it was given, the numbers it used, the cursors it follows. With the next engine it first
makes up its mind about whatever it does not know the outcome of.
Rule 2: every call is written down before it is made and when it is answered.
Rule 3: each client has its own source of chance.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from millrace.client.engine import Engine
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.shards import Shards
from millrace.core.model import Headers, ShardId
from millrace.errors import Fatal, MillraceError, Retry
from tests.support.checkers.history import (
    Call,
    History,
    Release,
    Seen,
    Sent,
    Settle,
    Shard,
    Turn,
)
from tests.support.simulator.clock import SimClock

T = TypeVar("T")
C = TypeVar("C", bound=Call)

TAG = "tag"
"""The header that identifies a message."""


class Shape(NamedTuple):
    """Settings of a queue."""

    keyed: bool = False
    retention: str = "work"
    dead_letter: str = ""
    max_failures: int = 0
    max_deliveries: int = 0
    retry_min: float = 0
    retry_max: float = 0
    delay: float = 0
    compressed: str | None = None
    order: str | None = "none"
    """None: it is made without one, and becomes fair."""
    group_in_flight: int = 0
    ttl: float = 0
    dead_letter_expired: bool = False
    keep_messages: int = 0
    dedup: float = 300
    keep: float = 0
    keep_bytes: int = 0
    delivery: str | None = None
    partitions_min: int | None = None
    partitions_max: int | None = None
    partition_age: float | None = None
    max_messages: int = 0
    max_bytes: int = 0
    overflow: str | None = None
    max_in_flight: int = 0
    group_blocking: str | None = None


DAYS = 100 * 24 * 3600
"""A time to live, in seconds, that nothing reaches in a run, wherever its clock is set."""

DEAD = "dead"
"""The queue that takes dead letters; nobody works on it."""

QUEUES = {
    "plain": Shape(),
    "keyed": Shape(keyed=True),
    "log": Shape(retention="log"),
    "table": Shape(keyed=True, retention="log", compressed="zstd"),
    "churn": Shape(keyed=True),
    DEAD: Shape(),
    "fragile": Shape(
        dead_letter=DEAD, max_failures=3, max_deliveries=5, retry_min=0.1, retry_max=0.25
    ),
    "fickle": Shape(keyed=True, dead_letter=DEAD, max_failures=2),
    "reel": Shape(retention="log"),
    "desk": Shape(),
    "turns": Shape(compressed="lz4"),
    "lagged": Shape(delay=0.4),
    "rota": Shape(keyed=True),
    "ranks": Shape(order="group"),
    "trials": Shape(
        order="group",
        group_in_flight=2,
        dead_letter=DEAD,
        max_failures=2,
        max_deliveries=4,
        retry_min=0.1,
        retry_max=0.3,
    ),
    "shares": Shape(order="fair", group_in_flight=2),
    "file": Shape(order="strict", dead_letter=DEAD, max_failures=2, retry_min=0.1),
    "brief": Shape(ttl=DAYS),
    "mortal": Shape(keyed=True, ttl=5, dead_letter=DEAD, dead_letter_expired=True),
    "tape": Shape(retention="log", keep_messages=25),
    "once": Shape(dedup=7 * 24 * 3600),
    "slices": Shape(delivery="partitions", partitions_min=3, partitions_max=3),
    "spread": Shape(
        delivery="partitions",
        partitions_min=1,
        partitions_max=4,
        partition_age=2,
        dead_letter=DEAD,
        max_failures=2,
    ),
    "narrow": Shape(max_messages=5),
    "bulky": Shape(max_bytes=60_000),
    "leaky": Shape(max_messages=5, overflow="drop", dead_letter=DEAD),
    "spill": Shape(max_messages=5, overflow="drop"),
    "spool": Shape(retention="log", keep=100),
    "band": Shape(retention="log", keep=DAYS, keep_bytes=100_000),
    "tide": Shape(order=None, dead_letter=DEAD, max_failures=3, retry_min=0.1),
    "weir": Shape(max_in_flight=3),
    "sluice": Shape(
        order="fair", max_in_flight=3, dead_letter=DEAD, max_failures=2, max_deliveries=4
    ),
    "lanes": Shape(
        order="group",
        group_blocking="message",
        dead_letter=DEAD,
        max_failures=3,
        retry_min=0.1,
        retry_max=0.3,
    ),
}

SLICED = ["slices", "spread"]
"""Queues that are served by partitions."""

BOUNDED = ["narrow", "bulky", "leaky", "spill"]
"""Queues with a maximum length."""

TIDE = "tide"
"""The queue that becomes fair in the midst of a run."""

WEIRS = ["weir", "sluice"]
"""Queues with a limit of messages in flight."""

AGING = ["spool", "band"]
"""Logs that keep their messages for a time, or up to a number of bytes."""

MORTAL = ["brief", "mortal"]
"""Queues whose messages have a time to live."""

TAPE = "tape"
"""The log that keeps its newest messages, and no others."""

ONCE = "once"
"""The queue whose messages have de-duplication ids."""

ORDERED = ["ranks", "trials", "shares", "file", "lanes"]
"""Queues whose messages wait for one another."""

TURNED = ["turns", "lagged", "rota"]
"""Queues that are there for priorities and delays."""

DROPPING = ["leaky", "spill"]
"""Queues that drop the oldest messages, wherever they wait: some have priorities and delays."""

DESK = "desk"
"""The queue of consumers with sessions."""

REEL = "reel"
"""The queue that workers work again and again."""

CHURN = "churn"
"""The queue that is deleted and made again all the time."""

KEEP_DELETES_SECONDS = 2.0

SETTLE_SECONDS_MAX = 20.0
"""What settling may take on a slow machine; a full disk must not hold it up."""

KEYS = [f"k{number}".encode() for number in range(8)]

GROUPS = [b"k0", b"k1", b"g0", b"g1"]
"""Groups that are named; some are those of keys."""


class Over(Exception):
    """This engine answers no more; the client waits for the next one."""


class Place(NamedTuple):
    """A queue, and where it is: of a queue that was made anew, the shard is another one."""

    name: str
    queue: Queue
    engine: Engine
    shard: ShardId
    shards: Shards


class World:
    """State that all clients of a run share."""

    def __init__(self, seed: int, history: History, clock: SimClock, steps: int) -> None:
        self.seed = seed
        self.history = history
        self.clock = clock
        self.steps_left = steps
        self.violations: list[str] = []

    def chance(self, name: str) -> random.Random:
        """A source of chance that depends on nothing but the seed and the name."""
        return random.Random(f"{self.seed}/{name}")


class Session:
    """One life of the engine, as its clients see it."""

    def __init__(self, millrace: Millrace, world: World) -> None:
        self.millrace = millrace
        self.world = world
        self.is_ending = False
        self.failed: Fatal | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._places: dict[str, Place] = {}
        self.holders: dict[tuple[int, int], object] = {}
        """Shard and seq of what a consumer holds, and its session."""

    def fail(self, error: Fatal) -> None:
        """The engine has ended by itself."""
        if self.failed is None:
            self.failed = error
            self.on_failure()

    async def queue(self, name: str) -> Place:
        """The queue of this name, made if it is missing."""
        if name in self._places:
            return self._places[name]
        shape = QUEUES[name]
        dead = await self.queue(shape.dead_letter) if shape.dead_letter else None
        try:
            queue = await self.millrace.queue(
                name, keep_deletes=KEEP_DELETES_SECONDS, **shape._asdict()
            )
        except Fatal as error:
            self.fail(error)
            raise Over from error
        except Retry as error:
            raise Over from error
        engine, shards = engine_and_shards(queue)
        shard = shards.first
        self.world.history.shards.setdefault(shard, shard_of(shape, dead.shard if dead else None))
        place = Place(name, queue, engine, shard, shards)
        if name != CHURN:
            self._places[name] = place
        return place


class Client:
    """Somebody who uses the queues, through all lives of the engine."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.history = world.history
        self.chance = world.chance(name)
        self.is_patient = False
        """Waits for every answer."""
        self._tags = 0

    async def live(self, session: Session) -> None:
        """Use this engine until it or the run ends."""
        try:
            await self.resume(session)
            while not session.is_ending:
                await self.act(session)
                await asyncio.sleep(self.think())
        except Over:
            return

    async def resume(self, session: Session) -> None:
        """Resolve the calls that were open when the last engine ended."""

    async def act(self, session: Session) -> None:
        """Do one thing."""
        raise NotImplementedError

    async def finish(self, session: Session) -> None:
        """End the run: drop all references to rows."""

    def think(self) -> float:
        """Seconds until the next thing is done: mostly short, sometimes long."""
        return self.chance.expovariate(1 / self.chance.choice([0.002, 0.01, 0.01, 0.2]))

    # --- Asking --------------------------------------------------------------------------------

    async def ask(
        self, session: Session, call: C, work: Awaitable[T], note: Callable[[C, T], None]
    ) -> T | None:
        """Make a call and write it down; None if it was refused.

        Raises:
            Over: the engine has ended; the call is open.
        """
        [result] = await self.ask_together(session, [call], work, lambda c, r: note(call, r))
        return result

    async def ask_together(
        self,
        session: Session,
        calls: Sequence[Call],
        work: Awaitable[T],
        note: Callable[[Sequence[Call], T], None],
    ) -> list[T | None]:
        """Make calls that are answered together."""
        self.world.steps_left -= 1
        began = self.world.clock.seconds
        for call in calls:
            call.actor = self.name
            self.history.begin(call)
        try:
            result = await self._impatiently(work)
        except TimeoutError as error:
            for call in calls:
                self.history.unknown(call, error)
            return [None]
        except Fatal as error:
            for call in calls:
                self.history.unknown(call, error)
            session.fail(error)
            raise Over from error
        except MillraceError as error:
            for call in calls:
                self.history.refused(call, error)
            return [None]
        note(calls, result)
        for call in calls:
            if not call.error:
                self.history.done(call)
        took = self.world.clock.seconds - began
        if took > SETTLE_SECONDS_MAX and isinstance(calls[0], Settle | Release):
            self.blame(f"liveness: call {calls[0].number} took {took:.1f} s")
        return [result]

    async def _impatiently(self, work: Awaitable[T]) -> T:
        """Some callers do not wait for the answer, and do not know the outcome of the call."""
        if self.is_patient or self.chance.random() > 0.04:
            return await work
        return await asyncio.wait_for(work, self.chance.expovariate(1 / 0.003))

    def blame(self, violation: str) -> None:
        """Something is wrong that no later look at the history would show."""
        self.world.violations.append(f"{self.name}: {violation}")

    # --- Messages --------------------------------------------------------------------------------

    def make_rows(self, place: Place, count: int, *, turns: bool = True) -> tuple[Sent, ...]:
        """Return messages that were never sent before, some of them deferred."""
        keyed = QUEUES[place.name].keyed
        rows = tuple(self._make_row(keyed=keyed) for _ in range(count))
        for row in rows if turns and place.name in (*TURNED, *DROPPING) else ():
            self._draw_turn(row)
        for row in rows if turns and place.name in (*ORDERED, *WEIRS, TIDE) else ():
            self._draw_group(row)
        for row in rows if turns and place.name in MORTAL else ():
            if ttl_ms := self.chance.choice([None, None, 20, 300, 2_000, DAYS * 1000]):
                self.history.lives[row.tag] = ttl_ms
        return rows

    def _draw_turn(self, row: Sent) -> None:
        chance = self.chance
        priority = chance.choice([4, 4, 4, 0, 3, 5, 9])
        delay_ms = chance.choice([None, None, None, None, 0, 20, 300, 2_000, 10_000])
        if (priority, delay_ms) != (4, None):
            self.history.turns[row.tag] = Turn(priority, delay_ms)

    def _draw_group(self, row: Sent) -> None:
        chance = self.chance
        group = chance.choice(GROUPS) if chance.random() < 0.6 else None
        delay_ms = chance.choice([20, 300, 2_000]) if chance.random() < 0.1 else None
        if (group, delay_ms) != (None, None):
            self.history.turns[row.tag] = Turn(delay_ms=delay_ms, group=group)

    def turn(self, row: Sent) -> tuple[int | None, float | None, bytes | None]:
        """Priority, delay and group, as the API takes them."""
        turn = self.history.turns.get(row.tag)
        if turn is None:
            return None, None, None
        delay = None if turn.delay_ms is None else turn.delay_ms / 1000
        return turn.priority, delay, turn.group

    def message(self, row: Sent) -> Message:
        """The message as the API takes it."""
        priority, delay, group = self.turn(row)
        headers, ttl = headers_of(row), self.life(row)
        return Message(row.body, row.key, headers, priority, delay, ttl=ttl, group=group)

    def life(self, row: Sent) -> float | None:
        """Its time to live, as the API takes it."""
        ttl_ms = self.history.lives.get(row.tag)
        return None if ttl_ms is None else ttl_ms / 1000

    def _make_row(self, *, keyed: bool) -> Sent:
        chance = self.chance
        self._tags += 1
        tag = f"{self.name}.{self._tags}"
        key = chance.choice(KEYS) if chance.random() < (0.9 if keyed else 0.2) else None
        if keyed and key is not None and chance.random() < 0.15:
            return Sent(tag, key, None)
        size = chance.choice([0, 10, 100, 1000, 5000, 10_000, 20_000, 30_000])
        return Sent(tag, key, f"{tag}|".encode() + bytes(size))


def headers_of(sent: Sent) -> Headers:
    return ((TAG, sent.tag.encode()),)


def seen_of(
    seq: int,
    body: bytes | None,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    *,
    time_ms: int,
    deliveries: int = 0,
    failures: int = 0,
    id_: int | None = None,
) -> Seen:
    """A message as it came back."""
    tag = next((value.decode() for name, value in headers if name == TAG), "untagged")
    return Seen(seq, tag, key, body, time_ms, deliveries, failures, id_)


def shard_of(shape: Shape, dead: int | None) -> Shard:
    """Return the model of a queue of this shape."""
    return Shard(
        shape.keyed,
        shape.retention,
        dead_letter=dead,
        max_failures=shape.max_failures,
        max_deliveries=shape.max_deliveries,
        retry_min_ms=round(shape.retry_min * 1000),
        retry_max_ms=round(shape.retry_max * 1000),
        delay_ms=round(shape.delay * 1000),
        order=shape.order or "fair",
        group_in_flight=shape.group_in_flight,
        ttl_ms=round(shape.ttl * 1000),
        expired_are_letters=shape.dead_letter_expired,
        keep_messages=shape.keep_messages,
        keep_ms=round(shape.keep * 1000),
        keep_bytes=shape.keep_bytes,
        partitions=(shape.partitions_min or 0, shape.partitions_max or 0),
        max_messages=shape.max_messages,
        max_bytes=shape.max_bytes,
        is_dropping=shape.overflow == "drop",
        max_in_flight=shape.max_in_flight,
        is_changed=shape.order is None,
        group_blocking=shape.group_blocking or "lease",
    )
