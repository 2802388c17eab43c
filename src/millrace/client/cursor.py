"""Following a queue: one consistent snapshot after another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.core.block import SCHEMA
from millrace.core.commands import (
    CommitCursor,
    DeleteCursor,
    NextSnapshot,
    ResetCursor,
    SnapshotRef,
    Unpin,
)
from millrace.core.fold import Reader
from millrace.core.model import CursorCell, Position, Row, ShardId
from millrace.core.model import Start as StartAt
from millrace.errors import Invalid

Start = str | int | datetime

_PIN_MS = 3600 * 1000


class Snapshot:
    """The rows of a queue between two boundaries, as of one moment; always the same rows.

    It is pinned on the queue until it is committed whole, or a time limit is over.
    """

    def __init__(
        self, engine: Engine, shard: ShardId, ref: SnapshotRef, cursor: Cursor | None
    ) -> None:
        self._engine = engine
        self._shard = shard
        self._ref = ref
        self._cursor = cursor

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

        The columns are shard, seq, key, headers, time and value; a delete has no value.
        """
        return pa.RecordBatchReader.from_batches(SCHEMA, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        reader = Reader(self._ref.pin, self._ref.retain)
        yield from self._engine.scan(self._shard, self.after, self.boundary, reader)

    async def rows(self) -> AsyncIterator[Row]:
        """The rows one by one; for more than some thousands, `arrow` is the faster way."""
        for batch in self._batches():
            for row in await self._engine.rows(
                self._shard, BitMap64(batch.column("seq").to_numpy())
            ):
                yield row

    async def commit(self, seq: int | None = None) -> None:
        """Everything up to `seq`, or up to the boundary, is done: the cursor moves there.

        In mid-snapshot the pin stays, and whoever opens the cursor next goes on in it.
        """
        if self._cursor is None:
            raise Invalid("a snapshot without a cursor has nothing to commit", field="cursor")
        await self._cursor.commit(self, seq)

    def position(self, seq: int | None = None) -> Position:
        """The cursor's place after everything up to `seq` was done."""
        return Position(
            self._ref.history,
            self.boundary if seq is None else seq,
            self.after,
            self.boundary,
        )

    async def unpin(self) -> None:
        """Let it go without committing."""
        await self._engine.ask(self._shard, Unpin(self._ref.pin), bool)

    @property
    def cursor(self) -> Cursor | None:
        """The cursor that reads it."""
        return self._cursor


class Cursor:
    """A follower's named, durable position in a queue.

    Iterating moves on in memory; `commit` makes it durable. Opening it again resumes at what was
    committed.
    """

    def __init__(self, engine: Engine, shard: ShardId, name: str, cell: CursorCell) -> None:
        self._engine = engine
        self._shard = shard
        self.name = name
        self._cell = cell
        self._read = cell.position.seq

    @property
    def shard(self) -> ShardId:
        """The shard that it follows."""
        return self._shard

    @property
    def id(self) -> int:
        """Which of the cursors that ever had this name it is."""
        return self._cell.id

    @property
    def position(self) -> Position:
        """The committed place: history, seq, snapshot start, snapshot end."""
        return self._cell.position

    @property
    def retain(self) -> bool:
        """Whether settled messages are kept for it."""
        return self._cell.retain

    async def next(self, *, wait: float = 0) -> Snapshot | None:
        """The snapshot after what was read; None where nothing came within `wait` seconds.

        Raises:
            CursorExpired: rows that it had not read are gone; `reset` it.
        """
        wait_ms = round(min(wait * 1000, limits.LEASE_WAIT_MS_MAX))
        command = NextSnapshot(self.name, self._cell.id, self._read, _PIN_MS)
        ref: SnapshotRef | None = await self._engine.ask(
            self._shard, command, SnapshotRef, wait_ms=wait_ms
        )
        if ref is None:
            return None
        self._read = ref.boundary
        return Snapshot(self._engine, self._shard, ref, self)

    def __aiter__(self) -> AsyncIterator[Snapshot]:
        return self._snapshots()

    async def _snapshots(self) -> AsyncIterator[Snapshot]:
        while True:
            snapshot = await self.next(wait=limits.LEASE_WAIT_MS_MAX / 1000)
            if snapshot is not None:
                yield snapshot

    async def commit(self, snapshot: Snapshot, seq: int | None = None) -> None:
        """Make the place in a snapshot durable: everything up to `seq` is done."""
        self.committed(
            await self._engine.ask(
                self._shard,
                CommitCursor(self.name, self._cell.id, snapshot.position(seq)),
                CursorCell,
            )
        )

    def committed(self, cell: CursorCell) -> None:
        """Take note of a commit that was part of a transaction."""
        self._cell = cell

    async def reset(self, start: StartAt | int) -> None:
        """Begin anew at another place; what was read and not committed is forgotten."""
        self._cell = await self._engine.ask(self._shard, ResetCursor(self.name, start), CursorCell)
        self._read = self._cell.position.seq

    async def delete(self) -> bool:
        """Forget the cursor; returns whether it was there."""
        return await self._engine.ask(self._shard, DeleteCursor(self.name), bool)


def start_at(engine: Engine, shard: ShardId, start: Start) -> StartAt | int:
    """Where a cursor begins."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise Invalid("start is a datetime without a time zone", field="start")
        return engine.seq_at(shard, round(start.timestamp() * 1000))
    if isinstance(start, bool) or not isinstance(start, int | str):
        raise Invalid(f"start is {start!r}: no name, seq or datetime", field="start")
    if isinstance(start, int):
        return start
    try:
        return StartAt(start)
    except ValueError:
        raise Invalid(f"start is {start!r}, not 'beginning' or 'end'", field="start") from None
