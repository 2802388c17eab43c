"""Clients of queues with several shards, which check that these behave as one.

S1 a batch is on all of its shards, or on none: in every snapshot, and in the end
S2 each acknowledged number of a producer exists once, whatever crashed
S3 a settled message is never delivered again, and none is forgotten
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from millrace.client.cursor import Cursor, Snapshot
from millrace.client.lease import Lease
from millrace.client.queue import Queue
from millrace.core.model import NewMessage, Place, Row
from millrace.errors import Fatal, Retry
from tests.support.checkers.history import Other, Outcome
from tests.support.simulator.workload import (
    KEYS,
    TAG,
    Client,
    Over,
    Session,
    World,
)

SHEAF, SWARM = "sheaf", "swarm"
"""A log that is placed by keys, and a queue that spreads."""

SHARDS = 3
BATCH_ROWS_MAX = 9
DRAIN_ROUNDS = 60
"""Seconds after which the longest lease of these clients has ended."""


async def open_queue(session: Session, name: str) -> Queue:
    """One of the two, made if it is missing."""
    try:
        if name == SHEAF:
            return await session.millrace.queue(name, shards=SHARDS, retention="log")
        return await session.millrace.queue(name, shards=SHARDS, route="spread")
    except Fatal as error:
        session.fail(error)
        raise Over from error
    except Retry as error:
        raise Over from error


class ShardPublisher(Client):
    """Publishes batches under dense numbers, again until it knows that one is done."""

    def __init__(self, name: str, world: World, queue: str) -> None:
        super().__init__(name, world)
        self._queue = queue
        self._last = 0
        self._open: list[NewMessage] | None = None
        self._refused: set[str] = set()
        self._told: dict[str, int] = {}
        """Tag → where the message is."""

    async def resume(self, session: Session) -> None:
        if self._open is not None:
            await self._publish(session, self._open, was_open=True)

    async def act(self, session: Session) -> None:
        await self.resume(session)
        if self._open is None:
            size = self.chance.randint(1, BATCH_ROWS_MAX)
            batch = [self._message(at, size) for at in range(size)]
            await self._publish(session, batch, was_open=False)

    def _message(self, at: int, size: int) -> NewMessage:
        tag = f"{self.name}.{self._last + 1}.{len(self._refused)}.{at}.{size}"
        key = self.chance.choice([*KEYS, None])
        return NewMessage(tag.encode() + bytes(200), key, ((TAG, tag.encode()),))

    async def _publish(self, session: Session, batch: list[NewMessage], *, was_open: bool) -> None:
        queue = await open_queue(session, self._queue)
        self._open = batch
        call = Other(shard=0, what=f"publish {len(batch)} rows to {self._queue}")
        work = queue.publish_many(batch, producer=self.name, number=self._last + 1)
        places = await self.ask(session, call, work, lambda call, places: None)
        if places is not None:
            self._last += 1
            self._open = None
            self._told |= dict(zip(map(_tag, batch), places, strict=True))
        elif call.outcome is Outcome.REFUSED and not was_open:
            # A refused publish was not applied; the next one uses its number.
            self._open = None
            self._refused |= set(map(_tag, batch))

    async def finish(self, session: Session) -> None:
        queue = await open_queue(session, self._queue)
        if self._queue != SHEAF:
            return
        there = {_tag(row): row.seq for row in await _rows(queue) if _is_of(self.name, row)}
        count = sum(1 for row in await _rows(queue) if _is_of(self.name, row))
        if count != len(there):
            self.blame(f"S2: {count - len(there)} messages of {self._queue} are there twice")
        wrong = {tag for tag, place in self._told.items() if there.get(tag) != place}
        if wrong:
            self.blame(f"S2: {sorted(wrong)} are not where the publisher was told")
        phantoms = self._refused & there.keys()
        if phantoms:
            self.blame(f"S2: {sorted(phantoms)} were refused, and are there")
        for violation in torn(there):
            self.blame(violation)
        known = await queue.producer(self.name)
        if known != self._last:
            self.blame(f"S2: {self._last} numbers were used, and {known} are known")


class ShardFollower(Client):
    """Reads one snapshot after another, and commits some of them, some of them in the middle."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._read: dict[int, str] = {}
        """Place → tag of all messages that were read."""
        self._numbers: dict[int, tuple[int, ...]] = {}
        """The boundaries of each snapshot: the same whenever it is given again."""

    async def act(self, session: Session) -> None:
        queue = await open_queue(session, SHEAF)
        call = Other(shard=0, what=f"open cursor {self.name}")
        cursor = await self.ask(session, call, queue.cursor(self.name), lambda call, found: None)
        for _ in range(self.chance.randint(1, 5) if cursor is not None else 0):
            assert cursor is not None
            if not await self._follow(session, cursor):
                return

    async def _follow(self, session: Session, cursor: Cursor) -> bool:
        call = Other(shard=0, what=f"next snapshot of {self.name}")
        work = cursor.next(wait=self.chance.choice([0, 0.1]), seconds=self.chance.choice([1, 3600]))
        snapshot = await self.ask(session, call, work, lambda call, found: None)
        if snapshot is None:
            return False
        known = self._numbers.setdefault(snapshot.id[1], snapshot.boundaries)
        if known != snapshot.boundaries:
            self.blame(f"S1: snapshot {snapshot.id[1]} is {snapshot.boundaries}, and was {known}")
        read = Other(shard=0, what=f"read {snapshot!r}")
        rows = await self.ask(session, read, _all(snapshot), lambda call, rows: None)
        if rows is None:
            return False
        for row in rows:
            if self._read.setdefault(row.seq, _tag(row)) != _tag(row):
                self.blame(f"S1: {row.seq!r} is {_tag(row)}, and was {self._read[row.seq]}")
        boundaries = snapshot.boundaries
        seen = [tag for place, tag in self._read.items() if _within(place, boundaries)]
        for violation in torn(seen):
            self.blame(violation)
        await self._commit(session, snapshot, rows)
        return True

    async def _commit(self, session: Session, snapshot: Snapshot, rows: list[Row]) -> None:
        chance = self.chance.random()
        if chance < 0.3:
            return
        place = self.chance.choice(rows).seq if rows and chance < 0.5 else None
        call = Other(shard=0, what=f"commit {snapshot!r} up to {place!r}")
        await self.ask(session, call, snapshot.commit(place), lambda call, nothing: None)

    async def finish(self, session: Session) -> None:
        """In the end it has read everything, each message once."""
        queue = await open_queue(session, SHEAF)
        cursor = await queue.cursor(self.name)
        while (snapshot := await cursor.next()) is not None:
            self._read |= {row.seq: _tag(row) for row in await _all(snapshot)}
            await snapshot.commit()
        there = {row.seq: _tag(row) for row in await _rows(queue)}
        if there != self._read:
            missed = sorted(there.keys() ^ self._read.keys())
            self.blame(f"S1: the cursor has read other rows than are there: {missed}")
        if any(await cursor.lag()):
            self.blame(f"S1: the cursor is behind by {await cursor.lag()}")
        await cursor.delete()


class ShardWorker(Client):
    """Leases from all shards at once, and settles, releases or forgets what it was given."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._settled: set[int] = set()

    async def act(self, session: Session) -> None:
        queue = await open_queue(session, SWARM)
        await self._work(session, queue, self.chance.choice([0, 0, 0.2]))

    async def _work(self, session: Session, queue: Queue, wait: float) -> int:
        chance = self.chance
        call = Other(shard=0, what=f"lease from {SWARM}")
        work = queue.lease(chance.randint(1, 20), seconds=chance.choice([1, 20]), wait=wait)
        leases = await self.ask(session, call, work, lambda call, leases: None) or []
        again = [lease.seq for lease in leases if lease.seq in self._settled]
        if again:
            self.blame(f"S3: {again} were settled, and are handed out again")
        share = 1.0 if self.is_patient else chance.choice([0.0, 0.5, 1.0])
        done = [lease for lease in leases if chance.random() < share]
        if done:
            await self._settle(session, queue, done)
        return len(leases)

    async def _settle(self, session: Session, queue: Queue, leases: list[Lease]) -> None:
        call = Other(shard=0, what=f"settle {len(leases)} of {SWARM}")
        receipts = [lease.receipt for lease in leases]
        refused = await self.ask(session, call, queue.settle(receipts), lambda call, found: None)
        if refused is not None:
            self._settled |= {lease.seq for lease in leases if lease.seq not in refused}

    async def finish(self, session: Session) -> None:
        queue = await open_queue(session, SWARM)
        quiet = 0
        for _ in range(DRAIN_ROUNDS):
            quiet = 0 if await self._work(session, queue, 0) else quiet + 1
            if quiet > 25:
                break
            await asyncio.sleep(1.0)
        stats = await queue.stats()
        if stats["live"]:
            self.blame(f"S3: {stats['live']} messages of {SWARM} were never handed out again")
        if stats["published"] != stats["settled"]:
            self.blame(f"S3: the counters of {SWARM} do not add up: {stats}")


class ShardOwner(Client):
    """Empties the queues when everyone has finished."""

    async def act(self, session: Session) -> None:
        await asyncio.sleep(1.0)

    async def finish(self, session: Session) -> None:
        for name in (SHEAF, SWARM):
            await (await open_queue(session, name)).purge()


def make_shard_clients(world: World) -> list[Client]:
    """Everyone; the one who empties the queues comes last."""
    return [
        ShardPublisher("b0", world, SHEAF),
        ShardPublisher("b1", world, SHEAF),
        ShardPublisher("b2", world, SWARM),
        ShardFollower("g0", world),
        ShardWorker("x0", world),
        ShardWorker("x1", world),
        ShardOwner("o1", world),
    ]


def torn(tags: Iterable[str]) -> list[str]:
    """S1: return batches of which a part, but not all, is among these rows."""
    batches: dict[str, int] = {}
    for tag in tags:
        batch, _, size = tag.rpartition(".")
        name = f"{batch.rpartition('.')[0]}.{size}"
        batches[name] = batches.get(name, 0) + 1
    return [
        f"S1: {count} rows of batch {name} are there, and the others are not"
        for name, count in batches.items()
        if count != int(name.rpartition(".")[2])
    ]


def _within(place: int, boundaries: tuple[int, ...]) -> bool:
    found = Place(place)
    return found.seq <= boundaries[found.shard]


def _tag(message: NewMessage | Row) -> str:
    return dict(message.headers)[TAG].decode()


def _is_of(name: str, row: Row) -> bool:
    return _tag(row).startswith(f"{name}.")


async def _all(snapshot: Snapshot) -> list[Row]:
    return [row async for row in snapshot.rows()]


async def _rows(queue: Queue) -> list[Row]:
    found: list[Row] = []
    while rows := await queue.peek(10_000, after=found[-1].seq if found else 0):
        found += rows
    return found
