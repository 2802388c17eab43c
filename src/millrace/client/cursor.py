"""Following a queue: one consistent snapshot after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from datetime import datetime
from types import TracebackType

import pyarrow as pa

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.message import rows_of
from millrace.core import check, exact
from millrace.core.block import SCHEMA
from millrace.core.commands import (
    CommitCursor,
    DeleteCursor,
    NextSnapshot,
    Pin,
    ResetCursor,
    SnapshotRef,
    Unpin,
)
from millrace.core.fold import Reader
from millrace.core.model import CursorCell, Position, Row, ShardId
from millrace.core.model import Start as StartAt
from millrace.errors import Full, Invalid, MillraceError, Refused

Start = str | int | datetime
"""Where a cursor begins: "beginning", "end", the first seq to be read, or a time."""


class Snapshot:
    """The rows of a queue between two boundaries, as of one moment; always the same rows.

    It is pinned on the queue until it is committed whole, let go, or its time is over; from then on
    reading it is refused with `SnapshotExpired`. That of a cursor is also a context manager, which
    commits it whole unless the body raised an error.
    """

    def __init__(
        self,
        engine: Engine,
        shard: ShardId,
        ref: SnapshotRef,
        cursor: Cursor | None = None,
        cursor_id: int = 0,
    ) -> None:
        self._engine = engine
        self._shard = shard
        self._ref = ref
        self._cursor = cursor
        self._cursor_id = cursor_id
        """As it was when this was asked for: a cursor that was reset since is not moved by it."""

    @property
    def after(self) -> int:
        """The seq after which it begins."""
        return self._ref.after

    @property
    def boundary(self) -> int:
        """The last seq that was published when it was taken."""
        return self._ref.boundary

    @property
    def id(self) -> tuple[bytes, int]:
        """History and index: the same on every replica."""
        return self._ref.history, self._ref.index

    def arrow(self) -> pa.RecordBatchReader:
        """The rows in the order of seqs, as Arrow batches over the store's own bytes.

        The columns are shard, seq, key, headers, time and value; a delete has no value. Batches
        stay valid as long as they are kept, also when the snapshot has gone. The thread that pulls
        the reader reads the rows, from the disk if need be, which would hold up an event loop: in a
        coroutine take `batches`, or pull in another thread, and leave the loop free meanwhile.

        Raises:
            SnapshotExpired: from the reader, once the snapshot is no longer pinned.
        """
        scan = self._engine.scan(self._shard, self.after, self.boundary, self._reader())
        return pa.RecordBatchReader.from_batches(SCHEMA, scan)

    def _reader(self) -> Reader:
        return Reader(self._ref.pin, self._ref.retain)

    def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return self._engine.batches(self._shard, self.after, self.boundary, self._reader())

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The batches of `arrow`, letting others run between them and while they are read."""
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                yield batch
                await asyncio.sleep(0)

    async def rows(self) -> AsyncIterator[Row]:
        """The rows one by one; for more than some thousands, `arrow` is the faster way."""
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                for row in rows_of(batch):
                    yield row
                await asyncio.sleep(0)

    async def commit(self, seq: int | None = None) -> None:
        """Everything up to `seq`, or up to the boundary, is done: the cursor moves there.

        In mid-snapshot the pin stays, and whoever opens the cursor next goes on in it.

        Raises:
            Invalid: `seq` lies outside the snapshot, or there is no cursor.
            Stale: the cursor stands further on already.
            NotFound: the cursor was deleted or reset since the snapshot was taken.
            SnapshotExpired: in mid-snapshot, of one that is no longer pinned.
        """
        shard, command, note = commit_part(self, seq)
        note(await self._engine.ask(shard, command, CursorCell))

    def _let_go(self) -> Unpin:
        return Unpin(self._ref.pin, self._ref.history, self._ref.index)

    async def unpin(self) -> bool:
        """Let it go without committing; returns whether it was still pinned."""
        return await self._engine.ask(self._shard, self._let_go(), bool)

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
        return f"<Snapshot after {self.after} up to {self.boundary}>"


class Pinned:
    """A snapshot that is about to be taken, and is let go at the end of its context."""

    def __init__(self, engine: Engine, shard: ShardId, pin_ms: int) -> None:
        self._engine = engine
        self._shard = shard
        self._pin_ms = pin_ms
        self._snapshot: Snapshot | None = None

    async def __aenter__(self) -> Snapshot:
        ref = await self._engine.ask(self._shard, Pin(self._pin_ms), SnapshotRef)
        self._snapshot = Snapshot(self._engine, self._shard, ref)
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

    Iterating gives one snapshot after another, waiting for rows, and moves on in memory;
    `Snapshot.commit` makes it durable. Opening the cursor again resumes at what was committed.
    """

    def __init__(self, engine: Engine, shard: ShardId, name: str, cell: CursorCell) -> None:
        self._engine = engine
        self._shard = shard
        self._name = name
        self._cell = cell
        self._read = cell.position.seq
        self._history = cell.position.history

    @property
    def name(self) -> str:
        """The cursor's name within its queue."""
        return self._name

    @property
    def position(self) -> Position:
        """The committed place: history, seq, snapshot start, snapshot end."""
        return self._cell.position

    @property
    def retain(self) -> bool:
        """Whether settled messages are kept for it."""
        return self._cell.retain

    async def next(self, *, wait: float = 0, seconds: float = 3600) -> Snapshot | None:
        """The snapshot after what was read; None where nothing came within `wait` seconds.

        It stays pinned for `seconds`, and as long again each time that it is asked for. One that
        was committed in the middle, or not at all, is given again, from there on.

        Raises:
            CursorExpired: rows that it had not read are gone; `reset` it.
            NotFound: the cursor was deleted, or reset elsewhere; open it again.
        """
        wait_ms = check.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
        pin_ms = check.millis(seconds, "seconds", limits.PIN_MS_MAX)
        cursor_id = self._cell.id
        command = NextSnapshot(self._name, cursor_id, self._read, pin_ms, self._history)
        ref: SnapshotRef | None = await self._engine.ask(
            self._shard, command, SnapshotRef, wait_ms=wait_ms
        )
        if ref is None:
            return None
        self._read, self._history = ref.boundary, ref.history
        return Snapshot(self._engine, self._shard, ref, self, cursor_id)

    def __aiter__(self) -> Cursor:
        return self

    async def __anext__(self) -> Snapshot:
        """The next snapshot, however long it takes; see `next`."""
        while True:
            try:
                snapshot = await self.next(wait=limits.LEASE_WAIT_MS_MAX / 1000)
            except Full as error:
                # Too many wait, or too much is pinned: that passes.
                await asyncio.sleep(error.after_ms / 1000)
                continue
            if snapshot is not None:
                return snapshot

    async def reset(self, start: Start = "beginning") -> None:
        """Begin anew at another place; what was read and not committed is forgotten.

        Raises:
            Invalid: `start` is no place in the queue.
            CursorExpired: `start` lies behind rows that are gone.
        """
        place = await start_at(self._engine, self._shard, start)
        command = ResetCursor(self._name, place)
        self._cell = await self._engine.ask(self._shard, command, CursorCell)
        self._read, self._history = self._cell.position.seq, self._cell.position.history

    async def delete(self) -> bool:
        """Forget the cursor; returns whether it was there."""
        return await self._engine.ask(self._shard, DeleteCursor(self._name), bool)

    def __repr__(self) -> str:
        return f"<Cursor {self._name} at {self.position.seq}>"


def commit_part(
    snapshot: Snapshot, seq: int | None
) -> tuple[ShardId, CommitCursor, Callable[[object], None]]:
    """The command that commits a place in a snapshot, and what takes note of its answer."""
    cursor, ref = snapshot._cursor, snapshot._ref
    if cursor is None:
        raise Invalid("a snapshot without a cursor has nothing to commit", field="cursor")
    place = ref.boundary if seq is None else check.seq(seq, "seq", least=0)
    position = Position(ref.history, place, ref.start, ref.boundary)

    def note(answer: object) -> None:
        if isinstance(answer, CursorCell):
            cursor._cell = answer

    return snapshot._shard, CommitCursor(cursor._name, snapshot._cursor_id, position), note


def unpin_part(snapshot: Snapshot) -> tuple[ShardId, Unpin]:
    """The command that lets a snapshot go."""
    return snapshot._shard, snapshot._let_go()


def put_back(snapshot: Snapshot) -> None:
    """Nobody got it: its cursor gives it again, and without one its pin goes."""
    cursor, ref = snapshot._cursor, snapshot._ref
    if cursor is not None:
        if cursor._read == ref.boundary and cursor._cell.id == snapshot._cursor_id:
            cursor._read = ref.after
        return
    # If the engine has ended, or takes nothing now, the pin goes when its time is over.
    with suppress(MillraceError):
        snapshot._engine.tell(snapshot._shard, snapshot._let_go())


def engine_of(snapshot: Snapshot) -> Engine:
    """The engine that it is read from."""
    return snapshot._engine


async def start_at(engine: Engine, shard: ShardId, start: Start) -> StartAt | int:
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
            f"start is {check.shown(start)}, not 'beginning', 'end', a seq or a datetime",
            field="start",
        ) from None
