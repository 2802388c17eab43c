"""Cursors and snapshots: followers read a queue as a sequence of consistent snapshots."""

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
from millrace.core import plain_types, validate
from millrace.core.answers import MultiShardSnapshot, SnapshotRef
from millrace.core.cells import CursorCell
from millrace.core.commands import (
    ApplyTransaction,
    CommitCursor,
    DeleteCursor,
    NextSnapshot,
    OpenCursor,
    Pin,
    ResetCursor,
    SnapshotShards,
    Unpin,
)
from millrace.core.format.block import SCHEMA
from millrace.core.model import CursorPosition as Place
from millrace.core.model import Row, ShardId
from millrace.core.model import StartPoint as StartAt
from millrace.core.state.fold import Reader
from millrace.errors import Full, Invalid, MillraceError, Refused, RolledBack

Start = str | int | datetime | Position
"""Start of a cursor: "beginning", "end", a position or its token, the first seq to be read, or a
time. A bare seq refers to the current history; it is for interactive use and unsafe to store."""


class Snapshot:
    """The rows of a queue between two boundaries at one moment; reads always return the same rows.

    It is pinned until it is committed as a whole, unpinned, or its time expires; after that reads
    raise `SnapshotExpired`. The snapshot of a cursor is also a context manager, which commits it as
    a whole unless the body raised an error.

    For a queue with several shards it has a boundary for each of them, all of the same moment: a
    publish is contained completely or not at all. It is read shard by shard.
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
        """Cursor ids when the snapshot was requested: a cursor that was reset since is not
        moved."""
        self._number = number

    @property
    def after(self) -> int:
        """Seq after which it begins; with several shards, that of the first shard."""
        return self._refs[0].after

    @property
    def boundary(self) -> int:
        """Last seq published when it was taken; with several shards the last place."""
        return self._shards.place(self._shards.ids[-1], self._refs[-1].boundary)

    @property
    def afters(self) -> tuple[int, ...]:
        """Seq after which it begins, for each shard."""
        return tuple(ref.after for ref in self._refs)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Last seq published when it was taken, for each shard."""
        return tuple(ref.boundary for ref in self._refs)

    @property
    def id(self) -> tuple[bytes, int]:
        """History and index of the snapshot, the same on every replica.

        With several shards the cursor's own number of the snapshot replaces the index.
        """
        return self._refs[0].history, self._number or self._refs[0].index

    @property
    def position(self) -> Position:
        """Position after the whole snapshot, for a follower to store and to resume from."""
        return Position(
            tuple(
                (shard, Place(ref.history, ref.boundary, ref.boundary, ref.boundary))
                for shard, ref in zip(self._shards.ids, self._refs, strict=True)
            )
        )

    def position_at(self, seq: int) -> Position:
        """Return the position of a follower that has read up to `seq`; see `commit`.

        Raises:
            Invalid: `seq` lies outside the snapshot.
        """
        upto, place = self._shards.find(seq, "seq", least=0)
        number = self._shards.number(upto)
        if not self._refs[number].after <= place <= self._refs[number].boundary:
            raise Invalid(f"{seq} is not within the snapshot", field="seq")
        parts: list[tuple[ShardId, Place]] = []
        for at, (shard, ref) in enumerate(zip(self._shards.ids, self._refs, strict=True)):
            seq_done = ref.boundary if at < number else place if at == number else ref.after
            start = seq_done if seq_done == ref.boundary else ref.start
            end = seq_done if seq_done == ref.start else ref.boundary
            parts.append((shard, Place(ref.history, seq_done, start, end)))
        return Position(tuple(parts))

    def arrow(self) -> pa.RecordBatchReader:
        """Return a reader of the rows, in order of seqs, as zero-copy Arrow batches.

        The columns are shard (index within the queue, from 0), seq (within the shard), key,
        headers, time and value; a delete has no value. Batches stay valid while they are
        referenced, even after the snapshot expired. The thread that pulls the reader reads the
        rows, from disk if necessary, which would block an event loop: in a coroutine use `batches`,
        or pull in another thread.

        Raises:
            SnapshotExpired: by the reader, after the snapshot was unpinned or expired.
        """
        scans = [
            map(
                partial(self._shards.numbered, shard),
                self._engine.scan(shard, ref.after, ref.boundary, Reader(ref.pin, ref.retain)),
            )
            for shard, ref in self._unread()
        ]
        batches = scans[0] if len(scans) == 1 else chain.from_iterable(scans)
        return pa.RecordBatchReader.from_batches(SCHEMA, batches)

    def _unread(self) -> list[tuple[ShardId, SnapshotRef]]:
        """Return the shards that have rows to read; for a single shard always that one."""
        pairs = list(zip(self._shards.ids, self._refs, strict=True))
        return [pair for pair in pairs if self._shards.is_one or pair[1].boundary > pair[1].after]

    async def _batches(self) -> AsyncGenerator[tuple[ShardId, pa.RecordBatch], None]:
        for shard, ref in self._unread():
            reader = Reader(ref.pin, ref.retain)
            source = self._engine.batches(shard, ref.after, ref.boundary, reader)
            async with aclosing(source) as batches:
                async for batch in batches:
                    yield shard, batch

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over the batches of `arrow` without blocking the event loop."""
        async with aclosing(self._batches()) as batches:
            async for shard, batch in batches:
                yield self._shards.numbered(shard, batch)
                await asyncio.sleep(0)

    async def rows(self) -> AsyncIterator[Row]:
        """Iterate over the rows one by one; for more than some thousands `arrow` is faster."""
        async with aclosing(self._batches()) as batches:
            async for shard, batch in batches:
                for row in self._shards.placed(shard, rows_of(batch)):
                    yield row
                await asyncio.sleep(0)

    async def parts(self) -> AsyncIterator[tuple[int, list[Row]]]:
        """Iterate over rows in chunks, shard by shard: pairs of the shard's index, from 0, and
        rows."""
        async with aclosing(self._batches()) as batches:
            async for shard, batch in batches:
                yield self._shards.number(shard), self._shards.placed(shard, rows_of(batch))
                await asyncio.sleep(0)

    async def commit(self, seq: int | None = None) -> None:
        """Commit everything up to `seq`, by default the whole snapshot: move its cursor there.

        After a commit within the snapshot the pin stays, and the next follower that opens the
        cursor continues in the same snapshot. With several shards, all shards before that of the
        place `seq` are committed, too, atomically.

        Raises:
            Invalid: `seq` lies outside the snapshot, or there is no cursor.
            Fenced: a later follower has opened the cursor.
            Stale: the cursor is already further on.
            NotFound: the cursor was deleted or reset since the snapshot was taken.
            SnapshotExpired: `seq` lies within a snapshot that is no longer pinned.
        """
        commits = commit_parts(self, seq)
        if len(commits) == 1:
            [(shard, command, note)] = commits
            note(await self._engine.ask(shard, command, CursorCell))
            return
        parts = tuple((shard, command) for shard, command, _ in commits)
        answers = await self._engine.transact(ApplyTransaction(parts))
        for (_, _, note), answer in zip(commits, answers, strict=True):
            note(answer)

    async def unpin(self) -> bool:
        """Release the snapshot without committing it; return False if it was no longer pinned."""
        parts = unpin_parts(self)
        if len(parts) == 1:
            [(shard, command)] = parts
            return await self._engine.ask(shard, command, bool)
        return any(await self._engine.transact(ApplyTransaction(tuple(parts))))

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
    """A context manager that takes a snapshot when entered and unpins it at its end."""

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
    """A follower's named, durable offset in a queue.

    A cursor has one follower. Opening it fences earlier followers: they can finish
    reading the snapshots they have, and `next` and `commit` raise `Fenced` for them.

    Iterating yields one snapshot after another, waiting for new rows, and advances in memory;
    `Snapshot.commit` makes the progress durable. Opening the cursor again resumes at the committed
    position.
    """

    def __init__(
        self, engine: Engine, shards: Shards, name: str, cells: Sequence[CursorCell]
    ) -> None:
        self._engine = engine
        self._shards = shards
        self._name = name
        self._cells = list(cells)
        """One per shard, like the following lists."""
        self._read = [cell.position.seq for cell in cells]
        self._history = cells[0].position.history
        self._claims = [cell.claim for cell in cells]
        self._takes = False
        """True if it has no claim and takes one with the next snapshot."""

    @property
    def name(self) -> str:
        """Name of the cursor within its queue."""
        return self._name

    @property
    def position(self) -> Position:
        """Committed position."""
        return Position(tuple(zip(self._shards.ids, self.positions, strict=True)))

    @property
    def positions(self) -> tuple[Place, ...]:
        """Committed position in each shard: history, seq, snapshot start, snapshot end."""
        return tuple(cell.position for cell in self._cells)

    async def lag(self) -> tuple[int, ...]:
        """Return, for each shard, the number of seqs published since the committed position."""
        lasts = [(await self._engine.meta(shard)).last_seq for shard in self._shards.ids]
        return tuple(
            last - position.seq for last, position in zip(lasts, self.positions, strict=True)
        )

    @property
    def retain(self) -> bool:
        """True if settled messages are retained for the cursor."""
        return self._cells[0].retain

    async def next(self, *, wait: float = 0, seconds: float = 3600) -> Snapshot | None:
        """Return the next snapshot after the current read position, or None if no rows arrive
        within `wait` seconds.

        It is pinned for `seconds`, renewed each time it is requested. A snapshot that was not
        committed, or only up to a seq, is returned again, from there on.

        Raises:
            CursorExpired: rows that the cursor has not read were removed; `reset` it.
            RolledBack: rows that were read, but not committed, were undone by a restore or
                takeover; undo what you derived after `error.position`, and `reset` the cursor to
                it.
            Fenced: a later follower has opened the cursor; this one must stop.
            NotFound: the cursor was deleted, or reset elsewhere; open it again.
        """
        wait_ms = validate.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
        pin_ms = validate.millis(seconds, "seconds", limits.PIN_MS_MAX)
        ids = [cell.id for cell in self._cells]
        parts = [
            NextSnapshot(self._name, cursor_id, read, pin_ms, self._history, claim, self._takes)
            for cursor_id, read, claim in zip(ids, self._read, self._claims, strict=True)
        ]
        try:
            vector = await self._next(parts, wait_ms)
        except RolledBack as error:
            raise await rolled_back(self._engine, self._shards, error, self.positions) from None
        if vector is None:
            return None
        self._read = [ref.boundary for ref in vector.refs]
        self._history = vector.refs[0].history
        self._claims = [ref.claim for ref in vector.refs]
        self._takes = False
        return Snapshot(self._engine, self._shards, vector.refs, self, ids, vector.number)

    async def _next(self, parts: list[NextSnapshot], wait_ms: int) -> MultiShardSnapshot | None:
        shards, ask = self._shards, self._engine.ask
        if shards.is_one:
            ref: SnapshotRef | None = await ask(
                shards.first, parts[0], SnapshotRef, wait_ms=wait_ms
            )
            return None if ref is None else MultiShardSnapshot(0, (ref,))
        command = SnapshotShards(tuple(zip(shards.ids, parts, strict=True)))
        vector: MultiShardSnapshot | None = await ask(
            shards.first, command, MultiShardSnapshot, wait_ms=wait_ms
        )
        return vector

    def __aiter__(self) -> Cursor:
        return self

    async def __anext__(self) -> Snapshot:
        """Return the next snapshot, waiting without limit; see `next`."""
        while True:
            try:
                snapshot = await self.next(wait=limits.WAIT_STEP_MS / 1000)
            except Full as error:
                # Too many calls wait, or too much is pinned: retry.
                await asyncio.sleep(error.after_ms / 1000)
                continue
            if snapshot is not None:
                return snapshot

    async def reset(self, start: Start = "beginning") -> None:
        """Restart the cursor at another place; reads that were not committed are forgotten.

        Like opening the cursor, it fences other followers.

        Raises:
            Invalid: `start` is not a place in the queue.
            RolledBack: the position `start` was undone; `error.position` is the part that remains.
            CursorExpired: the rows at `start` have been removed.
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
        """Delete the cursor; return False if it did not exist."""
        return await delete_cursor(self._engine, self._shards, self._name)

    def __repr__(self) -> str:
        seqs = [position.seq for position in self.positions]
        return f"<Cursor {self._name} at {seqs[0] if self._shards.is_one else seqs}>"


async def delete_cursor(engine: Engine, shards: Shards, name: str) -> bool:
    """Delete a cursor by name; return False if it did not exist."""
    command = DeleteCursor(name)
    return any(await ask_all(engine, shards, lambda _: command, bool))


def commit_parts(
    snapshot: Snapshot, seq: int | None
) -> list[tuple[ShardId, CommitCursor, Callable[[object], None]]]:
    """Return the commands that commit a snapshot up to a seq, each with a callback for its
    answer."""
    cursor, shards = snapshot._cursor, snapshot._shards
    if cursor is None:
        raise Invalid("a snapshot without a cursor has nothing to commit", field="cursor")
    upto, place = (None, 0) if seq is None else shards.find(seq, "seq", least=0)
    parts: list[tuple[ShardId, CommitCursor, Callable[[object], None]]] = []
    for at, (shard, ref) in enumerate(zip(shards.ids, snapshot._refs, strict=True)):
        seq_done = place if shard == upto else ref.boundary
        position = Place(ref.history, seq_done, ref.start, ref.boundary)
        command = CommitCursor(cursor._name, snapshot._cursor_ids[at], position, ref.claim)
        parts.append((shard, command, partial(_note_cell, cursor, at)))
        if shard == upto:
            break
    return parts


def _note_cell(cursor: Cursor, at: int, answer: object) -> None:
    if isinstance(answer, CursorCell):
        cursor._cells[at] = answer


def unpin_parts(snapshot: Snapshot) -> list[tuple[ShardId, Unpin]]:
    """Return the commands that unpin a snapshot."""
    name = "" if snapshot._cursor is None else snapshot._cursor._name
    return [
        (shard, Unpin(ref.pin, ref.history, ref.index, name, ref.claim))
        for shard, ref in zip(snapshot._shards.ids, snapshot._refs, strict=True)
    ]


def return_unread(snapshot: Snapshot) -> None:
    """Return a snapshot that no caller received: its cursor yields it again, or it is unpinned."""
    cursor = snapshot._cursor
    if cursor is not None:
        ids = [cell.id for cell in cursor._cells]
        if cursor._read == list(snapshot.boundaries) and ids == list(snapshot._cursor_ids):
            cursor._read = list(snapshot.afters)
        return
    # If the engine has ended or refuses the command, the pin expires by itself.
    with suppress(MillraceError):
        for shard, command in unpin_parts(snapshot):
            snapshot._engine.tell(shard, command)


def engine_of(snapshot: Snapshot) -> Engine:
    """Return the engine that a snapshot is read from."""
    return snapshot._engine


async def begin_at(
    engine: Engine,
    shards: Shards,
    start: Start,
    make: Callable[[StartAt | int | Place], OpenCursor | ResetCursor],
) -> list[CursorCell]:
    """Open or reset a cursor at a place in each shard.

    Raises:
        RolledBack: the position was undone by a restore or takeover.
    """
    if not is_position(start):
        places = await starts_at(engine, shards, start)
        return await ask_all(engine, shards, lambda shard: make(places[shard]), CursorCell)
    positions = read_position(start, shards)
    try:
        return await ask_all(engine, shards, lambda shard: make(positions[shard]), CursorCell)
    except RolledBack as error:
        raise await rolled_back(engine, shards, error, list(positions.values())) from None


async def starts_at(engine: Engine, shards: Shards, start: Start) -> dict[ShardId, StartAt | int]:
    """Return the start of a cursor in each shard."""
    if not shards.is_one and plain_types.whole(start) is not None:
        raise Invalid(
            f"start is {validate.shown(start)}: a place in one shard says nothing about the "
            f"{len(shards.ids) - 1} others; give 'beginning', 'end' or a datetime",
            field="start",
        )
    return {shard: await _start_at(engine, shard, start) for shard in shards.ids}


async def _start_at(engine: Engine, shard: ShardId, start: Start) -> StartAt | int:
    """Return the start of a cursor as the engine takes it."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise Invalid("start is a datetime without a time zone", field="start")
        return await engine.seq_at(shard, max(round(start.timestamp() * 1000), 0))
    seq = plain_types.whole(start)
    if seq is not None:
        # The queue checks it against its end; here only that it fits into 64 bits.
        return seq if abs(seq) < 2**63 else validate.seq(seq, "start")
    try:
        return StartAt(validate.name(start, "start"))
    except (Refused, ValueError):
        raise Invalid(
            f"start is {validate.shown(start)}, not 'beginning', 'end', a position, a seq or a "
            "datetime",
            field="start",
        ) from None
