"""Cursors: following a queue, one consistent snapshot after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from millrace.client.cursor import Cursor, Snapshot
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.ticket import (
    cursor_of,
    go_on_after,
    read_claims,
    read_ticket,
    use_claims,
    write_claim,
)
from millrace.core import check
from millrace.core.model import CursorCell, Kind, Position
from millrace.errors import Invalid, NotFound, NotYet
from millrace.server.rest.message import Seq, seq_in, start_in
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route import Ask, Nothing
from millrace.server.rest.snapshots import SnapshotOut, snapshot_out
from millrace.server.rest.table import QUEUE, ROUTES

CURSOR = f"{QUEUE}/cursors/{{cursor}}"
T = TypeVar("T")


class PositionOut(msgspec.Struct, frozen=True):
    """A committed place in one shard."""

    history: str
    seq: int
    snapshot_start: int
    snapshot_end: int


class CursorOut(msgspec.Struct, frozen=True):
    """A follower's durable position."""

    name: str
    retain: bool
    """Settled messages are kept for it."""
    positions: list[PositionOut]
    """In each shard."""
    lag: list[int]
    """How many seqs were published in each shard since."""
    position: str
    """The committed place, to be kept elsewhere: a token that tells after a restore whether it
    still holds."""
    claim: str | None = None
    """By which its follower asks for snapshots; null where the cursor was only looked at."""


class Cursors(msgspec.Struct, frozen=True):
    """The cursors of a queue, and what each has committed: a seq, or the sum over shards."""

    cursors: dict[str, int]


@ROUTES.json("GET", f"{QUEUE}/cursors", "read", Nothing, Cursors, tag="cursors")
async def list_cursors(ask: Ask, _: Nothing) -> Cursors:
    """The cursors of a queue."""
    return Cursors(await ask.queue(lambda queue: queue.cursors()))


class CursorAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a cursor is to be like."""

    start: int | str = "beginning"
    """Of a new one: beginning, end, the first seq to be read (of the present history: never one
    that was kept), or a time as ISO 8601 writes it. At the position of a snapshot or a cursor it
    goes on from there, also if it is there already and stands elsewhere."""
    retain: bool = False
    """It is also shown what workers settle before it comes by."""


@ROUTES.json("PUT", CURSOR, "read", CursorAsk, CursorOut, tag="cursors")
async def open_cursor(ask: Ask, told: CursorAsk) -> CursorOut:
    """Make a cursor, or find the one that is there, and follow by it from now on: snapshots that
    others were given before can no longer be committed."""
    start = start_in(told.start)

    async def use(queue: Queue) -> CursorOut:
        name = ask.params["cursor"]
        return await _out(await queue.cursor(name, start=start, retain=told.retain), claimed=True)

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
async def describe_cursor(ask: Ask, _: Nothing) -> CursorOut:
    """Where a cursor is."""

    async def use(queue: Queue) -> CursorOut:
        cells = await _cells(ask, queue)
        return await _out(Cursor(*engine_and_shards(queue), ask.params["cursor"], cells))

    return await ask.queue(use)


async def _cells(ask: Ask, queue: Queue) -> list[CursorCell]:
    """What is committed of the cursor that the address names."""
    name = check.name(ask.params["cursor"], "cursor")
    engine, shards = engine_and_shards(queue)
    cells: list[CursorCell] = []
    for shard in shards.ids:
        cell = (await engine.cells(shard, Kind.CURSOR)).get(name)
        if not isinstance(cell, CursorCell):
            raise NotFound(f"there is no cursor {name!r}; make it first", field="cursor")
        cells.append(cell)
    return cells


def _named(ask: Ask, queue: Queue, ids: tuple[int, ...] = ()) -> Cursor:
    """The cursor that the address names, of which nothing is known but the ids, perhaps."""
    name = check.name(ask.params["cursor"], "cursor")
    engine, shards = engine_and_shards(queue)
    nowhere = Position(b"", 0, 0, 0)
    cells = [CursorCell(one, False, nowhere, 0) for one in ids or (0,) * len(shards.ids)]
    return Cursor(engine, shards, name, cells)


@ROUTES.json("DELETE", CURSOR, "read", Nothing, WasThere, tag="cursors")
async def delete_cursor(ask: Ask, _: Nothing) -> WasThere:
    """Forget a cursor."""
    return WasThere(await ask.queue(lambda queue: _named(ask, queue).delete()))


class ResetAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin anew."""

    start: int | str = "beginning"
    """beginning, end, a position, the first seq to be read, or a time as ISO 8601 writes it."""


@ROUTES.json("POST", f"{CURSOR}/reset", "read", ResetAsk, CursorOut, tag="cursors")
async def reset_cursor(ask: Ask, told: ResetAsk) -> CursorOut:
    """Begin anew at another place, and follow from there, as by opening it."""
    start = start_in(told.start)

    async def use(queue: Queue) -> CursorOut:
        cursor = _named(ask, queue)
        await cursor.reset(start)
        return await _out(cursor, claimed=True)

    return await ask.queue(use)


class NextAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait, and how long the snapshot is needed."""

    wait: float = 0
    """For how many seconds to wait for rows."""
    seconds: float = 3600
    """It is pinned for so long at most, and as long again each time that it is asked for."""
    read: str | None = None
    """The cursor's last snapshot, if it was read and not committed: go on after it."""
    claim: str | None = None
    """What the follower was given when it opened the cursor: it is refused (`fenced`) if another
    one has opened it since. Without `claim` and `read`, the snapshot opens the cursor too."""


class Next(msgspec.Struct, frozen=True):
    """What comes next."""

    snapshot: SnapshotOut | None
    """Null: nothing came."""


@ROUTES.json("POST", f"{CURSOR}/next", "read", NextAsk, Next, tag="cursors")
async def next_snapshot(ask: Ask, told: NextAsk) -> Next:
    """The snapshot after what was committed, waiting for rows if need be."""

    async def use() -> Snapshot | None:
        return await ask.queue(lambda queue: _next(ask, queue, told))

    found = await (ask.until(use) if told.wait > 0 else use())
    return Next(None if found is None else snapshot_out(found))


async def _next(ask: Ask, queue: Queue, told: NextAsk) -> Snapshot | None:
    async def use(cursor: Cursor) -> Snapshot | None:
        use_claims(cursor, None if told.claim is None else read_claims(told.claim))
        if told.read is not None:
            go_on_after(cursor, read_ticket(queue, told.read))
        return await cursor.next(wait=told.wait, seconds=told.seconds)

    return await _remembered(ask, queue, use)


async def _remembered(ask: Ask, queue: Queue, use: Callable[[Cursor], Awaitable[T]]) -> T:
    """What `use` comes to with the cursor, which is looked up only where it is not known."""
    at = (queue.shards.first, ask.params["cursor"])
    known = ask.desk.cursor_ids(at)
    if known is not None:
        try:
            return await use(_named(ask, queue, known))
        except NotFound as error:
            # It was reset, perhaps, and is another one now.
            if error.field != "name":
                raise
    ids = tuple(cell.id for cell in await _cells(ask, queue))
    ask.desk.note_cursor(at, ids)
    return await use(_named(ask, queue, ids))


class WaitAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to where the follower is to have committed."""

    position: str
    """Of a snapshot, a cursor or the queue, such as that of the queue after a publish."""
    wait: float = 0
    """For how many seconds to wait until it has."""


class Reached(msgspec.Struct, frozen=True):
    """Whether it has."""

    reached: bool
    """False: not within that time; ask again."""


@ROUTES.json("POST", f"{CURSOR}/wait", "read", WaitAsk, Reached, tag="cursors")
async def wait_for_cursor(ask: Ask, told: WaitAsk) -> Reached:
    """Wait until the follower of a cursor has committed everything up to a position."""

    async def use() -> bool:
        name = ask.params["cursor"]
        await ask.queue(lambda q: q.wait_for(told.position, cursor=name, wait=told.wait))
        return True

    try:
        found = await (ask.until(use) if told.wait > 0 else use())
    except NotYet:
        return Reached(reached=False)
    return Reached(reached=found is not None)


class CommitAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done."""

    snapshot: str
    seq: Seq | None = None
    """Everything up to here; null: all of the snapshot."""


class Committed(msgspec.Struct, frozen=True):
    """Where the cursor is now."""

    positions: list[PositionOut]
    """In the shards that were moved: all of them, or those up to that of `seq`."""


@ROUTES.json("POST", f"{CURSOR}/commit", "read", CommitAsk, Committed, tag="cursors")
async def commit_cursor(ask: Ask, told: CommitAsk) -> Committed:
    """Move a cursor: what it has read is done."""
    seq = None if told.seq is None else seq_in(told.seq, "seq")

    async def use(queue: Queue) -> Committed:
        snapshot = read_ticket(queue, told.snapshot)
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
