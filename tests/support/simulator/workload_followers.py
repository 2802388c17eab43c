"""Readers: followers with cursors, and readers of pinned snapshots that come back later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from millrace.client.cursor import Cursor, Snapshot
from millrace.client.transaction import Later
from millrace.core.answers import SnapshotRef
from millrace.core.commands import Pin
from millrace.errors import Fatal, MillraceError
from tests.support.checkers.history import (
    Call,
    Commit,
    Other,
    Publish,
    Read,
    Seen,
)
from tests.support.simulator.workload import (
    Client,
    Over,
    Place,
    Session,
    World,
    seen_of,
)
from tests.support.simulator.workload_publishers import publish_in

KEPT_MAX = 12
"""Arrow tables that a reader holds on to."""


class Follower(Client):
    """Reads one snapshot after another through a cursor, and commits some of them."""

    def __init__(self, name: str, world: World, queue: str, *, retain: bool) -> None:
        super().__init__(name, world)
        self._queue = queue
        self._retain = retain
        self._cursor: Cursor | None = None
        self._old: Snapshot | None = None
        """Of a cursor that was opened again since, by the same follower."""
        self._taken: Snapshot | None = None
        self._opened: dict[tuple[int, int], int] = {}
        """Shard and id of a cursor → when it was first known to be there."""

    async def resume(self, session: Session) -> None:
        self._cursor = self._old = self._taken = None

    async def act(self, session: Session) -> None:
        place = await session.queue(self._queue)
        chance = self.chance
        cursor = self._cursor
        if cursor is None or cursor._shards.first != place.shard or chance.random() < 0.1:
            cursor = self._cursor = await self._open(session, place)
            if cursor is None:
                return
        action = chance.choices(["read", "reset", "delete", "wake"], [30, 1, 1, 3])[0]
        match action:
            case "read":
                await self._read(session, cursor, wait=chance.choice([0, 0, 0.1]))
            case "reset":
                await self._reset(session, cursor)
            case "delete":
                await self._delete(session, cursor)
            case "wake":
                await self._wake(session)

    async def _wake(self, session: Session) -> None:
        """A follower that was fenced goes on, as if it did not know."""
        old, self._old = self._old, None
        if old is None:
            return

        def note(call: Other, answer: object) -> None:
            self.blame("a follower has committed after a later one had opened the cursor")

        call = Other(shard=old._shards.first, what=f"fenced commit of {self.name}")
        await self.ask(session, call, old.commit(), note)

    async def _open(self, session: Session, place: Place) -> Cursor | None:
        start = self.chance.choice(["beginning", "beginning", "end"])
        call = Other(shard=place.shard, what=f"open cursor {self.name} at the {start}")
        work = place.queue.cursor(self.name, start=start, retain=self._retain)
        cursor = await self.ask(session, call, work, lambda call, cursor: None)
        if cursor is not None:
            self._old, self._taken = self._taken, None
            self._opened.setdefault((place.shard, cursor._cells[0].id), self.history.step)
        return cursor

    async def _reset(self, session: Session, cursor: Cursor) -> None:
        call = Other(shard=cursor._shards.first, what=f"reset cursor {self.name}")
        self._cursor = None
        await self.ask(session, call, cursor.reset(1), lambda call, nothing: None)

    async def _delete(self, session: Session, cursor: Cursor) -> None:
        call = Other(shard=cursor._shards.first, what=f"delete cursor {self.name}")
        self._cursor = None
        await self.ask(session, call, cursor.delete(), lambda call, was: None)

    async def _read(self, session: Session, cursor: Cursor, *, wait: float) -> bool:
        """Read the next snapshot, perhaps twice; returns whether there was one."""
        chance = self.chance
        snapshot = await self._take(session, cursor, wait=wait)
        if snapshot is None:
            return False
        if chance.random() < 0.3:
            await asyncio.sleep(self.think())
            await read_again(self, session, snapshot, self._name(cursor), self._since(cursor))
        after, boundary = snapshot.after, snapshot.boundary
        if chance.random() < 0.2:
            await self._pass_on(session, cursor, snapshot)
        elif chance.random() < 0.6:
            await self._commit(session, cursor, snapshot, boundary)
        elif chance.random() < 0.5 and boundary > after + 1:
            await self._commit(session, cursor, snapshot, chance.randint(after + 1, boundary - 1))
        return True

    async def _take(self, session: Session, cursor: Cursor, *, wait: float) -> Snapshot | None:
        call = Other(shard=cursor._shards.first, what=f"next snapshot of {self.name}")
        snapshot = await self.ask(session, call, cursor.next(wait=wait), lambda call, found: None)
        self._taken = snapshot
        if snapshot is not None:
            await read_again(self, session, snapshot, self._name(cursor), self._since(cursor))
        elif call.error:
            self._cursor = None
        return snapshot

    async def _commit(self, session: Session, cursor: Cursor, snapshot: Snapshot, seq: int) -> None:
        call = Commit(shard=cursor._shards.first, cursor=self._name(cursor), seq=seq)
        await self.ask(session, call, snapshot.commit(seq), lambda call, nothing: None)

    async def _pass_on(self, session: Session, cursor: Cursor, snapshot: Snapshot) -> None:
        """Publish a result and move the cursor, at once."""
        target = await session.queue("log")
        number = self.history.step
        publish = Publish(shard=target.shard, rows=self.make_rows(target, 1), transaction=number)
        commit = Commit(
            shard=cursor._shards.first,
            cursor=self._name(cursor),
            seq=snapshot.boundary,
            transaction=number,
        )

        async def work() -> Later[int | None]:
            async with session.millrace.transaction() as transaction:
                transaction.commit(snapshot)
                return publish_in(self, transaction, target, publish)

        def note(_: Sequence[Call], answer: Later[int | None]) -> None:
            publish.first = answer.value

        await self.ask_together(session, [commit, publish], work(), note)

    def _name(self, cursor: Cursor) -> str:
        return f"{self.name}#{cursor._cells[0].id}"

    def _since(self, cursor: Cursor) -> int:
        return self._opened[cursor._shards.first, cursor._cells[0].id]

    async def finish(self, session: Session) -> None:
        """Read to the end, then let everything go."""
        place = await session.queue(self._queue)
        cursor = await self._open(session, place)
        if cursor is None:
            return
        while (snapshot := await self._take(session, cursor, wait=0)) is not None:
            await self._commit(session, cursor, snapshot, snapshot.boundary)
        call = Other(shard=cursor._shards.first, what=f"delete cursor {self.name}")
        await self.ask(session, call, cursor.delete(), lambda call, was: None)


class Pinner(Client):
    """Pins a queue, reads it now, later, and after the engine was opened again."""

    def __init__(self, name: str, world: World, queue: str) -> None:
        super().__init__(name, world)
        self._queue = queue
        self._pins: list[tuple[int, SnapshotRef]] = []
        self._kept: list[tuple[pa.Table, list[dict[str, object]]]] = []
        """Tables that lie over the engine's own bytes, and what they held at first."""

    async def resume(self, session: Session) -> None:
        self._kept.clear()

    async def act(self, session: Session) -> None:
        place = await session.queue(self._queue)
        chance = self.chance
        if not self._pins or (len(self._pins) < 4 and chance.random() < 0.3):
            await self._pin(session, place)
            return
        shard, ref = pin = chance.choice(self._pins)
        if shard != place.shard:
            self._pins.remove(pin)
            return
        snapshot = Snapshot(place.engine, place.shards, [ref])
        if chance.random() < 0.2:
            self._pins.remove(pin)
            call = Other(shard=shard, what=f"unpin {ref.pin}")
            await self.ask(session, call, snapshot.unpin(), lambda call, nothing: None)
        elif not await read_again(self, session, snapshot, "", 0, self._kept):
            self._pins.remove(pin)
        self._look_at_kept()

    async def _pin(self, session: Session, place: Place) -> None:
        call = Other(shard=place.shard, what="pin")
        command = Pin(self.chance.choice([1_000, 60_000, 600_000]))
        work = place.engine.ask(place.shard, command, SnapshotRef)
        ref = await self.ask(session, call, work, lambda call, ref: None)
        if ref is not None:
            self._pins.append((place.shard, ref))

    def _look_at_kept(self) -> None:
        """L9: rows that a reader keeps do not change, whatever happens to the log."""
        for table, rows in self._kept:
            if table.to_pylist() != rows:
                self.blame("L9: an Arrow batch has changed under its reader")
        del self._kept[:-KEPT_MAX]

    async def finish(self, session: Session) -> None:
        place = await session.queue(self._queue)
        self._look_at_kept()
        self._kept.clear()
        for shard, ref in self._pins:
            if shard == place.shard:
                call = Other(shard=shard, what=f"unpin {ref.pin}")
                work = Snapshot(place.engine, place.shards, [ref]).unpin()
                await self.ask(session, call, work, lambda call, nothing: None)
        self._pins.clear()


async def read_again(
    client: Client,
    session: Session,
    snapshot: Snapshot,
    cursor: str,
    opened: int,
    kept: list[tuple[pa.Table, list[dict[str, object]]]] | None = None,
) -> bool:
    """Read a snapshot and write down what it showed; False if it is gone."""
    call = Read(
        shard=snapshot._shards.first,
        cursor=cursor,
        opened=opened,
        retain=snapshot._refs[0].retain,
        index=snapshot.id[1],
        after=snapshot.after,
        boundary=snapshot.boundary,
        actor=client.name,
    )
    client.history.begin(call)
    try:
        table = snapshot.arrow().read_all()
    except Fatal as error:
        client.history.unknown(call, error)
        session.fail(error)
        raise Over from error
    except MillraceError as error:
        client.history.refused(call, error)
        return False
    rows = table.to_pylist()
    if kept is not None:
        kept.append((table, rows))
    call.rows = tuple(map(_seen, rows))
    client.history.done(call)
    return True


def _seen(row: dict[str, object]) -> Seen:
    time, headers = row["time"], row["headers"]
    assert isinstance(time, datetime)
    assert isinstance(headers, list)
    return seen_of(
        int(str(row["seq"])),
        row["value"],  # type: ignore[arg-type]
        row["key"],  # type: ignore[arg-type]
        [(pair["name"], pair["value"]) for pair in headers],
        time_ms=round(time.timestamp() * 1000),
    )
