"""Following a queue: one consistent snapshot after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from functools import partial
from itertools import chain
from types import TracebackType

import pyarrow as pa

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.message import rows_of
from millrace.client.position import Position, is_position, read_position, rolled_back
from millrace.client.shards import Shards, ask_all
from millrace.core import check, exact
from millrace.core.across_commands import SnapshotAcross, Vector
from millrace.core.answers import SnapshotRef
from millrace.core.block import SCHEMA
from millrace.core.commands import (
    CommitCursor,
    DeleteCursor,
    NextSnapshot,
    OpenCursor,
    Pin,
    ResetCursor,
    Transaction,
    Unpin,
)
from millrace.core.fold import Reader
from millrace.core.model import CursorCell, Row, ShardId
from millrace.core.model import Position as Place
from millrace.core.model import Start as StartAt
from millrace.errors import Full, Invalid, MillraceError, Refused, RolledBack

Start = str | int | datetime | Position
"""Where a cursor begins: "beginning", "end", a position or its token, the first seq to be read, or
a time. A bare seq means the present history: it is for people, and unsafe to be stored."""


class Snapshot:
    """The rows of a queue between two boundaries, as of one moment; always the same rows.

    It is pinned on the queue until it is committed whole, let go, or its time is over; from then on
    reading it is refused with `SnapshotExpired`. That of a cursor is also a context manager, which
    commits it whole unless the body raised an error.

    Of a queue with several shards it has a boundary for each, all of the same moment: what was
    published at once is in it whole, or not at all. It is read shard by shard.
    """

    def __init__(
        self,
        engine: Engine,
        shards: Shards,
        refs: Sequence[SnapshotRef],
        cursor: Cursor | None = None,
        cursor_ids: Sequence[int] = (),
        number: int = 0,
    ) -> None:
        self._engine = engine
        self._shards = shards
        self._refs = refs
        self._cursor = cursor
        self._cursor_ids = cursor_ids
        """As they were when this was asked for: one that was reset since is not moved by it."""
        self._number = number

    @property
    def after(self) -> int:
        """The seq after which it begins; with several shards, the first one's."""
        return self._refs[0].after

    @property
    def boundary(self) -> int:
        """The last seq that was published when it was taken; with several shards the last place."""
        return self._shards.place(self._shards.ids[-1], self._refs[-1].boundary)

    @property
    def afters(self) -> tuple[int, ...]:
        """The seq after which it begins, of each shard."""
        return tuple(ref.after for ref in self._refs)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The last seq that was published when it was taken, of each shard."""
        return tuple(ref.boundary for ref in self._refs)

    @property
    def id(self) -> tuple[bytes, int]:
        """History and index: the same on every replica.

        With several shards the cursor's own number of the snapshot stands for the index.
        """
        return self._refs[0].history, self._number or self._refs[0].index

    @property
    def position(self) -> Position:
        """Where a follower is that has read all of it: what it may keep, to go on from there."""
        return Position(
            tuple(
                (shard, Place(ref.history, ref.boundary, ref.boundary, ref.boundary))
                for shard, ref in zip(self._shards.ids, self._refs, strict=True)
            )
        )

    def position_at(self, seq: int) -> Position:
        """Where a follower is that has read it up to `seq`; see `commit`.

        Raises:
            Invalid: `seq` lies outside the snapshot.
        """
        upto, place = self._shards.find(seq, "seq", least=0)
        number = self._shards.number(upto)
        if not self._refs[number].after <= place <= self._refs[number].boundary:
            raise Invalid(f"{seq} is not within the snapshot", field="seq")
        parts: list[tuple[ShardId, Place]] = []
        for at, (shard, ref) in enumerate(zip(self._shards.ids, self._refs, strict=True)):
            done = ref.boundary if at < number else place if at == number else ref.after
            start = done if done == ref.boundary else ref.start
            end = done if done == ref.start else ref.boundary
            parts.append((shard, Place(ref.history, done, start, end)))
        return Position(tuple(parts))

    def arrow(self) -> pa.RecordBatchReader:
        """The rows in the order of seqs, as Arrow batches over the store's own bytes.

        The columns are shard (which one of the queue, from 0), seq (within it), key, headers, time
        and value; a delete has no value. Batches stay valid as long as they are kept, also when the
        snapshot has gone. The thread that pulls the reader reads the rows, from the disk if need
        be, which would hold up an event loop: in a coroutine take `batches`, or pull in another
        thread, and leave the loop free meanwhile.

        Raises:
            SnapshotExpired: from the reader, once the snapshot is no longer pinned.
        """
        scans = [
            map(
                partial(self._shards.numbered, shard),
                self._engine.scan(shard, ref.after, ref.boundary, Reader(ref.pin, ref.retain)),
            )
            for shard, ref in self._unread()
        ]
        found = scans[0] if len(scans) == 1 else chain.from_iterable(scans)
        return pa.RecordBatchReader.from_batches(SCHEMA, found)

    def _unread(self) -> list[tuple[ShardId, SnapshotRef]]:
        """The shards in which there is something to read; always the only one."""
        found = list(zip(self._shards.ids, self._refs, strict=True))
        return [one for one in found if self._shards.is_one or one[1].boundary > one[1].after]

    async def _batches(self) -> AsyncGenerator[tuple[ShardId, pa.RecordBatch], None]:
        for shard, ref in self._unread():
            reader = Reader(ref.pin, ref.retain)
            found = self._engine.batches(shard, ref.after, ref.boundary, reader)
            async with aclosing(found) as batches:
                async for batch in batches:
                    yield shard, batch

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The batches of `arrow`, letting others run between them and while they are read."""
        async with aclosing(self._batches()) as batches:
            async for shard, batch in batches:
                yield self._shards.numbered(shard, batch)
                await asyncio.sleep(0)

    async def rows(self) -> AsyncIterator[Row]:
        """The rows one by one; for more than some thousands, `arrow` is the faster way."""
        async with aclosing(self._batches()) as batches:
            async for shard, batch in batches:
                for row in self._shards.placed(shard, rows_of(batch)):
                    yield row
                await asyncio.sleep(0)

    async def parts(self) -> AsyncIterator[tuple[int, list[Row]]]:
        """Which shard, from 0, and rows of it: some at a time, one shard after another."""
        async with aclosing(self._batches()) as batches:
            async for shard, batch in batches:
                yield self._shards.number(shard), self._shards.placed(shard, rows_of(batch))
                await asyncio.sleep(0)

    async def commit(self, seq: int | None = None) -> None:
        """Everything up to `seq`, or up to the boundary, is done: the cursor moves there.

        In mid-snapshot the pin stays, and whoever opens the cursor next goes on in it. With several
        shards, all those before that of the place `seq` are done, too; all of them move together.

        Raises:
            Invalid: `seq` lies outside the snapshot, or there is no cursor.
            Fenced: a later follower has opened the cursor.
            Stale: the cursor stands further on already.
            NotFound: the cursor was deleted or reset since the snapshot was taken.
            SnapshotExpired: in mid-snapshot, of one that is no longer pinned.
        """
        commits = commit_parts(self, seq)
        if len(commits) == 1:
            [(shard, command, note)] = commits
            note(await self._engine.ask(shard, command, CursorCell))
            return
        parts = tuple((shard, command) for shard, command, _ in commits)
        answers = await self._engine.transact(Transaction(parts))
        for (_, _, note), answer in zip(commits, answers, strict=True):
            note(answer)

    async def unpin(self) -> bool:
        """Let it go without committing; returns whether it was still pinned."""
        parts = unpin_parts(self)
        if len(parts) == 1:
            [(shard, command)] = parts
            return await self._engine.ask(shard, command, bool)
        return any(await self._engine.transact(Transaction(tuple(parts))))

    async def __aenter__(self) -> Snapshot:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.commit()

    def __repr__(self) -> str:
        if self._shards.is_one:
            return f"<Snapshot after {self.after} up to {self.boundary}>"
        return f"<Snapshot after {list(self.afters)} up to {list(self.boundaries)}>"


class Pinned:
    """A snapshot that is about to be taken, and is let go at the end of its context."""

    def __init__(self, engine: Engine, shards: Shards, pin_ms: int) -> None:
        self._engine = engine
        self._shards = shards
        self._pin_ms = pin_ms
        self._snapshot: Snapshot | None = None

    async def __aenter__(self) -> Snapshot:
        refs = await ask_all(self._engine, self._shards, lambda _: Pin(self._pin_ms), SnapshotRef)
        self._snapshot = Snapshot(self._engine, self._shards, refs)
        return self._snapshot

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._snapshot is not None:
            await self._snapshot.unpin()
            self._snapshot = None


class Cursor:
    """A follower's named, durable position in a queue.

    A cursor has one follower. Opening it fences the followers that opened it before: they read on
    what they were given, and `next` and `commit` raise `Fenced` for them.

    Iterating gives one snapshot after another, waiting for rows, and moves on in memory;
    `Snapshot.commit` makes it durable. Opening the cursor again resumes at what was committed.
    """

    def __init__(
        self, engine: Engine, shards: Shards, name: str, cells: Sequence[CursorCell]
    ) -> None:
        self._engine = engine
        self._shards = shards
        self._name = name
        self._cells = list(cells)
        """One for each shard; so with all that follows."""
        self._read = [cell.position.seq for cell in cells]
        self._history = cells[0].position.history
        self._claims = [cell.claim for cell in cells]
        self._takes = False
        """It has no claim, and takes one with the next snapshot."""

    @property
    def name(self) -> str:
        """The cursor's name within its queue."""
        return self._name

    @property
    def position(self) -> Position:
        """The committed place."""
        return Position(tuple(zip(self._shards.ids, self.positions, strict=True)))

    @property
    def positions(self) -> tuple[Place, ...]:
        """The committed place in each shard: history, seq, snapshot start, snapshot end."""
        return tuple(cell.position for cell in self._cells)

    async def lag(self) -> tuple[int, ...]:
        """How many seqs were published in each shard since the committed place."""
        lasts = [(await self._engine.meta(shard)).last_seq for shard in self._shards.ids]
        return tuple(
            last - position.seq for last, position in zip(lasts, self.positions, strict=True)
        )

    @property
    def retain(self) -> bool:
        """Whether settled messages are kept for it."""
        return self._cells[0].retain

    async def next(self, *, wait: float = 0, seconds: float = 3600) -> Snapshot | None:
        """The snapshot after what was read; None where nothing came within `wait` seconds.

        It stays pinned for `seconds`, and as long again each time that it is asked for. One that
        was committed in the middle, or not at all, is given again, from there on.

        Raises:
            CursorExpired: rows that it had not read are gone; `reset` it.
            RolledBack: what was read, and not committed, was taken back by a restore or a
                takeover; undo what came after `error.position`, and `reset` it to there.
            Fenced: a later follower has opened the cursor; this one must end.
            NotFound: the cursor was deleted, or reset elsewhere; open it again.
        """
        wait_ms = check.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
        pin_ms = check.millis(seconds, "seconds", limits.PIN_MS_MAX)
        ids = [cell.id for cell in self._cells]
        parts = [
            NextSnapshot(self._name, cursor_id, read, pin_ms, self._history, claim, self._takes)
            for cursor_id, read, claim in zip(ids, self._read, self._claims, strict=True)
        ]
        try:
            found = await self._next(parts, wait_ms)
        except RolledBack as error:
            raise await rolled_back(self._engine, self._shards, error, self.positions) from None
        if found is None:
            return None
        self._read = [ref.boundary for ref in found.refs]
        self._history = found.refs[0].history
        self._claims = [ref.claim for ref in found.refs]
        self._takes = False
        return Snapshot(self._engine, self._shards, found.refs, self, ids, found.number)

    async def _next(self, parts: list[NextSnapshot], wait_ms: int) -> Vector | None:
        shards, ask = self._shards, self._engine.ask
        if shards.is_one:
            ref: SnapshotRef | None = await ask(
                shards.first, parts[0], SnapshotRef, wait_ms=wait_ms
            )
            return None if ref is None else Vector(0, (ref,))
        command = SnapshotAcross(tuple(zip(shards.ids, parts, strict=True)))
        vector: Vector | None = await ask(shards.first, command, Vector, wait_ms=wait_ms)
        return vector

    def __aiter__(self) -> Cursor:
        return self

    async def __anext__(self) -> Snapshot:
        """The next snapshot, however long it takes; see `next`."""
        while True:
            try:
                snapshot = await self.next(wait=limits.WAIT_STEP_MS / 1000)
            except Full as error:
                # Too many wait, or too much is pinned: that passes.
                await asyncio.sleep(error.after_ms / 1000)
                continue
            if snapshot is not None:
                return snapshot

    async def reset(self, start: Start = "beginning") -> None:
        """Begin anew at another place; what was read and not committed is forgotten.

        Like opening the cursor, it fences the other followers.

        Raises:
            Invalid: `start` is no place in the queue.
            RolledBack: the position `start` was taken back; `error.position` is what is left of it.
            CursorExpired: `start` lies behind rows that are gone.
        """
        self._cells = await begin_at(
            self._engine,
            self._shards,
            start,
            lambda place: ResetCursor(self._name, place, claims=True),
        )
        self._claims = [cell.claim for cell in self._cells]
        self._read = [cell.position.seq for cell in self._cells]
        self._history = self.position.history

    async def delete(self) -> bool:
        """Forget the cursor; returns whether it was there."""
        return await delete_named(self._engine, self._shards, self._name)

    def __repr__(self) -> str:
        seqs = [position.seq for position in self.positions]
        return f"<Cursor {self._name} at {seqs[0] if self._shards.is_one else seqs}>"


async def delete_named(engine: Engine, shards: Shards, name: str) -> bool:
    """Forget a cursor; returns whether it was there."""
    command = DeleteCursor(name)
    return any(await ask_all(engine, shards, lambda _: command, bool))


def commit_parts(
    snapshot: Snapshot, seq: int | None
) -> list[tuple[ShardId, CommitCursor, Callable[[object], None]]]:
    """The commands that commit a place in a snapshot, and what takes note of their answers."""
    cursor, shards = snapshot._cursor, snapshot._shards
    if cursor is None:
        raise Invalid("a snapshot without a cursor has nothing to commit", field="cursor")
    upto, place = (None, 0) if seq is None else shards.find(seq, "seq", least=0)
    parts: list[tuple[ShardId, CommitCursor, Callable[[object], None]]] = []
    for at, (shard, ref) in enumerate(zip(shards.ids, snapshot._refs, strict=True)):
        done = place if shard == upto else ref.boundary
        position = Place(ref.history, done, ref.start, ref.boundary)
        command = CommitCursor(cursor._name, snapshot._cursor_ids[at], position, ref.claim)
        parts.append((shard, command, partial(_note_cell, cursor, at)))
        if shard == upto:
            break
    return parts


def _note_cell(cursor: Cursor, at: int, answer: object) -> None:
    if isinstance(answer, CursorCell):
        cursor._cells[at] = answer


def unpin_parts(snapshot: Snapshot) -> list[tuple[ShardId, Unpin]]:
    """The commands that let a snapshot go."""
    name = "" if snapshot._cursor is None else snapshot._cursor._name
    return [
        (shard, Unpin(ref.pin, ref.history, ref.index, name, ref.claim))
        for shard, ref in zip(snapshot._shards.ids, snapshot._refs, strict=True)
    ]


def put_back(snapshot: Snapshot) -> None:
    """Nobody got it: its cursor gives it again, and without one its pin goes."""
    cursor = snapshot._cursor
    if cursor is not None:
        ids = [cell.id for cell in cursor._cells]
        if cursor._read == list(snapshot.boundaries) and ids == list(snapshot._cursor_ids):
            cursor._read = list(snapshot.afters)
        return
    # If the engine has ended, or takes nothing now, the pin goes when its time is over.
    with suppress(MillraceError):
        for shard, command in unpin_parts(snapshot):
            snapshot._engine.tell(shard, command)


def engine_of(snapshot: Snapshot) -> Engine:
    """The engine that it is read from."""
    return snapshot._engine


async def begin_at(
    engine: Engine,
    shards: Shards,
    start: Start,
    make: Callable[[StartAt | int | Place], OpenCursor | ResetCursor],
) -> list[CursorCell]:
    """Open a cursor, or begin it anew, at some place in each shard.

    Raises:
        RolledBack: what was read up to that position was taken back.
    """
    if not is_position(start):
        places = await starts_at(engine, shards, start)
        return await ask_all(engine, shards, lambda shard: make(places[shard]), CursorCell)
    kept = read_position(start, shards)
    try:
        return await ask_all(engine, shards, lambda shard: make(kept[shard]), CursorCell)
    except RolledBack as error:
        raise await rolled_back(engine, shards, error, list(kept.values())) from None


async def starts_at(engine: Engine, shards: Shards, start: Start) -> dict[ShardId, StartAt | int]:
    """Where a cursor begins in each shard."""
    if not shards.is_one and exact.whole(start) is not None:
        raise Invalid(
            f"start is {check.shown(start)}: a place in one shard says nothing about the "
            f"{len(shards.ids) - 1} others; give 'beginning', 'end' or a datetime",
            field="start",
        )
    return {shard: await _start_at(engine, shard, start) for shard in shards.ids}


async def _start_at(engine: Engine, shard: ShardId, start: Start) -> StartAt | int:
    """Where a cursor begins, as the queue understands it."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise Invalid("start is a datetime without a time zone", field="start")
        return await engine.seq_at(shard, max(round(start.timestamp() * 1000), 0))
    seq = exact.whole(start)
    if seq is not None:
        # Where the queue ends is for the queue to judge, but no seq is larger.
        return seq if abs(seq) < 2**63 else check.seq(seq, "start")
    try:
        return StartAt(check.name(start, "start"))
    except (Refused, ValueError):
        raise Invalid(
            f"start is {check.shown(start)}, not 'beginning', 'end', a position, a seq or a "
            "datetime",
            field="start",
        ) from None
