"""Cursors with a seq per shard, for readers that read shards in parallel.

`Cursor` and `Snapshot` commit one place, which suffices for reading in order. A parallel reader
stops at a seq in each shard, also within a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.client.cursor import Cursor, Snapshot
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.shards import ask_all
from millrace.core import validate
from millrace.core.cells import CursorCell, Kind
from millrace.core.commands import (
    ApplyTransaction,
    CommitCursor,
    OpenCursor,
    ResetCursor,
)
from millrace.core.model import CursorPosition, ShardId, StartPoint
from millrace.errors import Invalid, NotFound


async def open_at(
    queue: Queue, name: str, seqs: Sequence[int], *, retain: bool, history: str = ""
) -> Cursor:
    """Open a cursor, creating it after these seqs if it does not exist.

    With `history`, the current one, the seqs are a position that a follower has stored: a retaining
    cursor is refused if rows after it were settled while no cursor retained them.

    Raises:
        Exists: the cursor exists and differs in `retain`.
        CursorExpired: rows after the seqs have been removed.
    """
    engine, shards = engine_and_shards(queue)
    checked = validate.name(name, "cursor")
    kept = bytes.fromhex(history)
    starts: dict[ShardId, int | CursorPosition] = {
        shard: CursorPosition(kept, seq, seq, seq) if kept else seq + 1
        for shard, seq in zip(shards.ids, seqs, strict=True)
    }
    cells = await ask_all(
        engine,
        shards,
        lambda at: OpenCursor(checked, starts[at], retain, claims=True),
        CursorCell,
    )
    return Cursor(engine, shards, checked, cells)


async def claim_cursor(queue: Queue, cursor: Cursor) -> Cursor:
    """Claim a cursor for a new follower; earlier followers are fenced.

    Raises:
        NotFound: the cursor was deleted or reset.
    """
    engine, shards = engine_and_shards(queue)
    ids = dict(zip(shards.ids, cursor_ids(cursor), strict=True))
    name, retain = cursor.name, cursor.retain
    cells = await ask_all(
        engine,
        shards,
        lambda at: OpenCursor(name, StartPoint.END, retain, claims=True, cursor=ids[at]),
        CursorCell,
    )
    return Cursor(engine, shards, name, cells)


async def find_cursor(queue: Queue, name: str) -> Cursor | None:
    """Return a cursor at its committed position without claiming it; None if it does not exist."""
    engine, shards = engine_and_shards(queue)
    cells: list[CursorCell] = []
    for shard in shards.ids:
        cell = (await engine.cells(shard, Kind.CURSOR)).get(name)
        if not isinstance(cell, CursorCell):
            return None
        cells.append(cell)
    return Cursor(engine, shards, name, cells)


async def reset_at(queue: Queue, name: str, seqs: Sequence[int]) -> Cursor:
    """Reset a cursor to these seqs; if that is refused, it is unchanged.

    Raises:
        NotFound: there is no such cursor.
        CursorExpired: rows after the seqs have been removed.
    """
    engine, shards = engine_and_shards(queue)
    starts = dict(zip(shards.ids, seqs, strict=True))
    cells = await ask_all(
        engine,
        shards,
        lambda at: ResetCursor(name, starts[at] + 1, claims=True),
        CursorCell,
    )
    return Cursor(engine, shards, name, cells)


def is_dropped(cursor: Cursor) -> bool:
    """Return True if the cursor held back rows for too long, and was dropped."""
    return any(cell.dropped for cell in cursor._cells)


async def dropped_cursors(queue: Queue, prefix: str) -> list[str]:
    """Return the cursors with this prefix that were dropped for holding back rows for too long."""
    engine, shards = engine_and_shards(queue)
    cells = await engine.cells(shards.first, Kind.CURSOR)
    return [
        name
        for name, cell in cells.items()
        if name.startswith(prefix) and isinstance(cell, CursorCell) and cell.dropped
    ]


def cursor_ids(cursor: Cursor) -> tuple[int, ...]:
    """Return the cursor's id in each shard, which differs from that of earlier cursors of its
    name."""
    return tuple(cell.id for cell in cursor._cells)


def cursor_at(
    queue: Queue, name: str, ids: Sequence[int], history: bytes, seqs: Sequence[int]
) -> Cursor:
    """Return a cursor with these ids at a read position, without asking the engine."""
    engine, shards = engine_and_shards(queue)
    if len(ids) != len(shards.ids) or len(seqs) != len(shards.ids):
        raise NotFound("the place is not one of this queue", field="cursor")
    cells = [
        CursorCell(number, True, CursorPosition(history, seq, seq, seq), 0)
        for number, seq in zip(ids, seqs, strict=True)
    ]
    return Cursor(engine, shards, name, cells)


async def commit_at(
    snapshot: Snapshot, seqs: Sequence[int], claims: Sequence[bytes] | None = None
) -> None:
    """Commit a snapshot up to these seqs, in all shards atomically.

    `claims` are those of the committing follower, if it did not take the snapshot itself.

    Raises:
        Invalid: a seq lies outside the snapshot, or there is no cursor.
        Fenced: a later follower has opened the cursor.
        Stale: the cursor is already further on.
        NotFound: the cursor was deleted or reset since the snapshot was taken.
        SnapshotExpired: a seq lies within a snapshot that is no longer pinned.
    """
    cursor, shards, engine = snapshot._cursor, snapshot._shards, snapshot._engine
    if cursor is None:
        raise Invalid("a snapshot without a cursor has nothing to commit", field="cursor")
    if claims is None:
        claims = [ref.claim for ref in snapshot._refs]
    parts = [
        (
            shard,
            CommitCursor(
                cursor.name,
                number,
                CursorPosition(ref.history, seq, ref.start, ref.boundary),
                claim,
            ),
        )
        for shard, ref, number, seq, claim in zip(
            shards.ids, snapshot._refs, snapshot._cursor_ids, seqs, claims, strict=True
        )
    ]
    if len(parts) == 1:
        await engine.ask(*parts[0], CursorCell)
    else:
        await engine.transact(ApplyTransaction(tuple(parts)))
