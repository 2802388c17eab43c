"""Places in all shards of a queue at once, for those who cut a snapshot where they like.

`Cursor` and `Snapshot` know one place, which is enough for who reads in order. Whoever reads shards
side by side ends at a seq in each of them, also in mid-snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.client.cursor import Cursor, Snapshot
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.shards import ask_all
from millrace.core import check
from millrace.core.commands import CommitCursor, OpenCursor, ResetCursor, Transaction
from millrace.core.model import CursorCell, Kind, Position, ShardId, Start
from millrace.errors import Invalid, NotFound


async def open_at(
    queue: Queue, name: str, seqs: Sequence[int], *, retain: bool, history: str = ""
) -> Cursor:
    """The cursor of this name, made so that it goes on after these seqs if it is new.

    With `history`, the present one, they are a position that a follower has kept: a cursor that
    retains is refused where rows after it were settled while no cursor kept them.

    Raises:
        Exists: it is there, and retains where this does not, or the other way round.
        CursorExpired: they lie behind rows that are gone.
    """
    engine, shards = engine_and_shards(queue)
    checked = check.name(name, "cursor")
    kept = bytes.fromhex(history)
    starts: dict[ShardId, int | Position] = {
        shard: Position(kept, seq, seq, seq) if kept else seq + 1
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
    """The same cursor, opened to follow by it: those that followed by it before are fenced.

    Raises:
        NotFound: it was deleted or reset.
    """
    engine, shards = engine_and_shards(queue)
    ids = dict(zip(shards.ids, cursor_ids(cursor), strict=True))
    name, retain = cursor.name, cursor.retain
    cells = await ask_all(
        engine,
        shards,
        lambda at: OpenCursor(name, Start.END, retain, claims=True, cursor=ids[at]),
        CursorCell,
    )
    return Cursor(engine, shards, name, cells)


async def find_cursor(queue: Queue, name: str) -> Cursor | None:
    """The cursor of this name where it stands, not to be followed by; None: there is none."""
    engine, shards = engine_and_shards(queue)
    cells: list[CursorCell] = []
    for shard in shards.ids:
        cell = (await engine.cells(shard, Kind.CURSOR)).get(name)
        if not isinstance(cell, CursorCell):
            return None
        cells.append(cell)
    return Cursor(engine, shards, name, cells)


async def reset_at(queue: Queue, name: str, seqs: Sequence[int]) -> Cursor:
    """The cursor of this name, begun anew after these seqs; where that is refused, it stays as it
    was.

    Raises:
        NotFound: there is none.
        CursorExpired: they lie behind rows that are gone.
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
    """Whether it held rows back for too long, and keeps none any more."""
    return any(cell.dropped for cell in cursor._cells)


async def dropped_cursors(queue: Queue, prefix: str) -> list[str]:
    """The cursors whose names begin so that held rows back for too long, and were dropped."""
    engine, shards = engine_and_shards(queue)
    cells = await engine.cells(shards.first, Kind.CURSOR)
    return [
        name
        for name, cell in cells.items()
        if name.startswith(prefix) and isinstance(cell, CursorCell) and cell.dropped
    ]


def cursor_ids(cursor: Cursor) -> tuple[int, ...]:
    """What tells it from another one of the same name, in each shard."""
    return tuple(cell.id for cell in cursor._cells)


def cursor_at(
    queue: Queue, name: str, ids: Sequence[int], history: bytes, seqs: Sequence[int]
) -> Cursor:
    """The cursor with these ids, whose reader has read so far; nothing is asked."""
    engine, shards = engine_and_shards(queue)
    if len(ids) != len(shards.ids) or len(seqs) != len(shards.ids):
        raise NotFound("the place is not one of this queue", field="cursor")
    cells = [
        CursorCell(number, True, Position(history, seq, seq, seq), 0)
        for number, seq in zip(ids, seqs, strict=True)
    ]
    return Cursor(engine, shards, name, cells)


async def commit_at(
    snapshot: Snapshot, seqs: Sequence[int], claims: Sequence[bytes] | None = None
) -> None:
    """Everything of the snapshot up to these seqs is done: its cursor moves there, all at once.

    `claims` are those of who commits, where that is not who took the snapshot.

    Raises:
        Invalid: one lies outside the snapshot, or there is no cursor.
        Fenced: a later follower has opened the cursor.
        Stale: the cursor stands further on already.
        NotFound: the cursor was deleted or reset since the snapshot was taken.
        SnapshotExpired: in mid-snapshot, of one that is no longer pinned.
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
                cursor.name, number, Position(ref.history, seq, ref.start, ref.boundary), claim
            ),
        )
        for shard, ref, number, seq, claim in zip(
            shards.ids, snapshot._refs, snapshot._cursor_ids, seqs, claims, strict=True
        )
    ]
    if len(parts) == 1:
        await engine.ask(*parts[0], CursorCell)
    else:
        await engine.transact(Transaction(tuple(parts)))
