"""Cursors: reading a queue as a sequence of consistent snapshots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from millrace.client.cursor import Cursor, Snapshot
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.snapshot_token import (
    cursor_of,
    read_claims,
    read_snapshot_token,
    resume_after,
    use_claims,
    write_claim,
)
from millrace.core import validate
from millrace.core.cells import CursorCell, Kind
from millrace.core.model import CursorPosition
from millrace.errors import Invalid, NotFound, NotYet
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route_table import QUEUE, ROUTES
from millrace.server.rest.snapshots import SnapshotOut, snapshot_out
from millrace.server.web.message import Seq, seq_in, start_in
from millrace.server.web.route import Nothing, RequestContext

CURSOR = f"{QUEUE}/cursors/{{cursor}}"
T = TypeVar("T")


class PositionOut(msgspec.Struct, frozen=True):
    """A committed position in one shard."""

    history: str
    seq: int
    snapshot_start: int
    snapshot_end: int


class CursorOut(msgspec.Struct, frozen=True):
    """A follower's durable position."""

    name: str
    retain: bool
    """True if settled messages are kept until this cursor has read them."""
    positions: list[PositionOut]
    """The committed position in each shard."""
    lag: list[int]
    """Number of seqs in each shard that were published after the committed position."""
    position: str
    """The committed position as a token to be stored elsewhere. It identifies the history, so that
    a position that a restore has invalidated is detected.
    """
    claim: str | None = None
    """The follower's claim, sent with requests for snapshots; null if the cursor was only
    described.
    """


class Cursors(msgspec.Struct, frozen=True):
    """The cursors of a queue with their committed positions: a seq, or the sum over the shards."""

    cursors: dict[str, int]


@ROUTES.json("GET", f"{QUEUE}/cursors", "read", Nothing, Cursors, tag="cursors")
async def list_cursors(ask: RequestContext, _: Nothing) -> Cursors:
    """List the cursors of a queue."""
    return Cursors(await ask.queue(lambda queue: queue.cursors()))


class CursorAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a cursor."""

    start: int | str = "beginning"
    """The start of a new cursor: `beginning`, `end`, the first seq to read (of the present history;
    never store a seq for later), or a time in ISO 8601. The position of a snapshot or cursor is
    also accepted, and moves an existing cursor there.
    """
    retain: bool = False
    """Also deliver messages that workers settle before the cursor has read them."""


@ROUTES.json("PUT", CURSOR, "read", CursorAsk, CursorOut, tag="cursors")
async def open_cursor(ask: RequestContext, params: CursorAsk) -> CursorOut:
    """Open a cursor, and create it if it does not exist.

    Snapshots of earlier openings can no longer be committed.
    """
    start = start_in(params.start)

    async def use(queue: Queue) -> CursorOut:
        name = ask.params["cursor"]
        return await _out(await queue.cursor(name, start=start, retain=params.retain), claimed=True)

    return await ask.queue(use)


async def _out(cursor: Cursor, *, claimed: bool = False) -> CursorOut:
    positions = _positions(cursor)
    claim = write_claim(cursor) if claimed else None
    lag = list(await cursor.lag())
    return CursorOut(cursor.name, cursor.retain, positions, lag, str(cursor.position), claim)


def _positions(cursor: Cursor) -> list[PositionOut]:
    return [
        PositionOut(one.history.hex(), one.seq, one.snapshot_start, one.snapshot_end)
        for one in cursor.positions
    ]


@ROUTES.json("GET", CURSOR, "read", Nothing, CursorOut, tag="cursors")
async def describe_cursor(ask: RequestContext, _: Nothing) -> CursorOut:
    """Return a cursor's positions and lag."""

    async def use(queue: Queue) -> CursorOut:
        cells = await _cells(ask, queue)
        return await _out(Cursor(*engine_and_shards(queue), ask.params["cursor"], cells))

    return await ask.queue(use)


async def _cells(ask: RequestContext, queue: Queue) -> list[CursorCell]:
    """Return the committed state of the cursor in the path, one cell per shard."""
    name = validate.name(ask.params["cursor"], "cursor")
    engine, shards = engine_and_shards(queue)
    cells: list[CursorCell] = []
    for shard in shards.ids:
        cell = (await engine.cells(shard, Kind.CURSOR)).get(name)
        if not isinstance(cell, CursorCell):
            raise NotFound(f"there is no cursor {name!r}; make it first", field="cursor")
        cells.append(cell)
    return cells


def _named(ask: RequestContext, queue: Queue, ids: tuple[int, ...] = ()) -> Cursor:
    """Return the cursor in the path without reading it; its positions are unknown, and so are the
    ids unless they are given.
    """
    name = validate.name(ask.params["cursor"], "cursor")
    engine, shards = engine_and_shards(queue)
    nowhere = CursorPosition(b"", 0, 0, 0)
    cells = [CursorCell(one, False, nowhere, 0) for one in ids or (0,) * len(shards.ids)]
    return Cursor(engine, shards, name, cells)


@ROUTES.json("DELETE", CURSOR, "read", Nothing, WasThere, tag="cursors")
async def delete_cursor(ask: RequestContext, _: Nothing) -> WasThere:
    """Delete a cursor."""
    return WasThere(await ask.queue(lambda queue: _named(ask, queue).delete()))


class ResetAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The position to restart from."""

    start: int | str = "beginning"
    """`beginning`, `end`, a position, the first seq to read, or a time in ISO 8601."""


@ROUTES.json("POST", f"{CURSOR}/reset", "read", ResetAsk, CursorOut, tag="cursors")
async def reset_cursor(ask: RequestContext, params: ResetAsk) -> CursorOut:
    """Move a cursor to another position and open it there."""
    start = start_in(params.start)

    async def use(queue: Queue) -> CursorOut:
        cursor = _named(ask, queue)
        await cursor.reset(start)
        return await _out(cursor, claimed=True)

    return await ask.queue(use)


class NextAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wait and the duration of the next snapshot."""

    wait: float = 0
    """Seconds to wait for rows."""
    seconds: float = 3600
    """Seconds for which the snapshot is pinned at most; asking for it again starts the time
    anew.
    """
    read: str | None = None
    """The cursor's last snapshot, if it was read and not committed: continue after it."""
    claim: str | None = None
    """The claim from opening the cursor: the request is refused (`fenced`) if another follower has
    opened the cursor since. Without `claim` and `read`, the request also opens the cursor.
    """


class Next(msgspec.Struct, frozen=True):
    """The next snapshot of a cursor."""

    snapshot: SnapshotOut | None
    """Null if there are no new rows."""


@ROUTES.json("POST", f"{CURSOR}/next", "read", NextAsk, Next, tag="cursors")
async def next_snapshot(ask: RequestContext, params: NextAsk) -> Next:
    """Return the snapshot after the committed position, waiting for rows if requested."""

    async def use() -> Snapshot | None:
        return await ask.queue(lambda queue: _next(ask, queue, params))

    found = await (ask.until(use) if params.wait > 0 else use())
    return Next(None if found is None else snapshot_out(found))


async def _next(ask: RequestContext, queue: Queue, params: NextAsk) -> Snapshot | None:
    async def use(cursor: Cursor) -> Snapshot | None:
        use_claims(cursor, None if params.claim is None else read_claims(params.claim))
        if params.read is not None:
            resume_after(cursor, read_snapshot_token(queue, params.read))
        return await cursor.next(wait=params.wait, seconds=params.seconds)

    return await _remembered(ask, queue, use)


async def _remembered(
    ask: RequestContext, queue: Queue, use: Callable[[Cursor], Awaitable[T]]
) -> T:
    """Run `use` on the cursor, and return its result; ids are read only if they are not cached."""
    at = (queue.shards.first, ask.params["cursor"])
    known = ask.desk.cursor_ids(at)
    if known is not None:
        try:
            return await use(_named(ask, queue, known))
        except NotFound as error:
            # The cached ids are stale if the cursor was deleted and made again.
            if error.field != "name":
                raise
    ids = tuple(cell.id for cell in await _cells(ask, queue))
    ask.desk.note_cursor(at, ids)
    return await use(_named(ask, queue, ids))


class WaitAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The position that the follower must have committed."""

    position: str
    """A position of a snapshot, a cursor or the queue, such as the queue's position after a
    publish.
    """
    wait: float = 0
    """Seconds to wait."""


class WaitResult(msgspec.Struct, frozen=True):
    """The result of waiting for a cursor."""

    reached: bool
    """False if the cursor did not reach the position in time; the request can be repeated."""


@ROUTES.json("POST", f"{CURSOR}/wait", "read", WaitAsk, WaitResult, tag="cursors")
async def wait_for_cursor(ask: RequestContext, params: WaitAsk) -> WaitResult:
    """Wait until the follower of a cursor has committed everything up to a position."""

    async def use() -> bool:
        name = ask.params["cursor"]
        await ask.queue(lambda q: q.wait_for(params.position, cursor=name, wait=params.wait))
        return True

    try:
        found = await (ask.until(use) if params.wait > 0 else use())
    except NotYet:
        return WaitResult(reached=False)
    return WaitResult(reached=found is not None)


class CommitAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The snapshot, or part of it, to commit."""

    snapshot: str
    seq: Seq | None = None
    """Commit up to this seq; null commits the whole snapshot."""


class Committed(msgspec.Struct, frozen=True):
    """The cursor's new positions."""

    positions: list[PositionOut]
    """The positions in the shards that were moved: all of them, or those up to the shard of
    `seq`.
    """


@ROUTES.json("POST", f"{CURSOR}/commit", "read", CommitAsk, Committed, tag="cursors")
async def commit_cursor(ask: RequestContext, params: CommitAsk) -> Committed:
    """Commit a snapshot or its first part, and move the cursor there."""
    seq = None if params.seq is None else seq_in(params.seq, "seq")

    async def use(queue: Queue) -> Committed:
        snapshot = read_snapshot_token(queue, params.snapshot)
        cursor = cursor_of(snapshot)
        if cursor is None or cursor.name != ask.params["cursor"]:
            raise Invalid("the snapshot is not of this cursor", field="snapshot")
        await snapshot.commit(seq)
        shards = queue.shards
        moved = len(shards.ids)
        if seq is not None:
            moved = shards.number(shards.find(seq, "seq", least=0)[0]) + 1
        return Committed(_positions(cursor)[:moved])

    return await ask.queue(use)
