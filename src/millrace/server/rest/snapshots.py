"""Snapshots and ranges: the same rows however often they are read, as JSON or as Arrow.

Rule 1: nothing of a snapshot is held here. Its text says all that there is to know; it is pinned in
the queue until its time is over, or it is let go.
Rule 2: a reader that was cut off goes on after the last row that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.cursor import Snapshot
from millrace.client.engine import Engine
from millrace.client.message import fitting, rows_in_steps
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.shards import Shards
from millrace.client.ticket import read_ticket, spans_of, write_ticket
from millrace.core import check
from millrace.core.model import Row
from millrace.errors import Invalid
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.rest.arrow import RowStream, Span, columns_of
from millrace.server.rest.listing import listed
from millrace.server.rest.message import MessageOut, Seq, row_out, seq_in, seq_out
from millrace.server.rest.publish import ARROW
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route import Ask, Media, Nothing, encode, read_query
from millrace.server.rest.table import QUEUE, ROUTES

ARROW_OUT = Media(
    ARROW,
    "All of the rows as an Arrow IPC stream: `seq`, `key`, `headers`, `time`, `value`; before them "
    "`shard`, where rows of several shards come in one stream.",
)


class SnapshotAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long it is needed."""

    seconds: float = 3600
    """It is pinned for so long at most."""


class SnapshotOut(msgspec.Struct, frozen=True):
    """The rows of a queue between two boundaries, as of one moment."""

    snapshot: str
    """By which it is read, let go, and committed if it is a cursor's."""
    afters: list[int]
    """The seq after which it begins, of each shard."""
    boundaries: list[int]
    """The last seq that it may hold, of each shard."""
    position: str
    """Where a follower is that has read all of it: to be kept with what it made of the rows."""


def snapshot_out(snapshot: Snapshot) -> SnapshotOut:
    """A snapshot in JSON."""
    text = write_ticket(snapshot)
    position = str(snapshot.position)
    return SnapshotOut(text, list(snapshot.afters), list(snapshot.boundaries), position)


@ROUTES.json(
    "POST", f"{QUEUE}/snapshots", "read", SnapshotAsk, SnapshotOut, status=201, tag="snapshots"
)
async def take_snapshot(ask: Ask, told: SnapshotAsk) -> SnapshotOut:
    """Pin the queue as of now."""

    async def use(queue: Queue) -> Snapshot:
        return await queue.snapshot(seconds=told.seconds).__aenter__()

    reserved = await ask.server.holding.reserve(ask.principal, "pins", 1)
    try:
        found = snapshot_out(await ask.queue(use))
        reserved.keep(found.snapshot, 1, now_ms() + int(told.seconds * 1000))
    finally:
        reserved.cancel()
    return found


class TokenOut(msgspec.Struct, frozen=True):
    """A place in a queue."""

    position: str
    """A token: it names the history, and is refused where that went another way."""


@ROUTES.json("GET", f"{QUEUE}/position", "read", Nothing, TokenOut, tag="snapshots")
async def read_position(ask: Ask, _: Nothing) -> TokenOut:
    """Where the queue ends now, behind everything that was published before."""
    return TokenOut(str(await ask.queue(lambda queue: queue.position())))


class ReadAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which rows."""

    after: Seq | None = None
    """Those after this one. With `shard`, a seq of that shard."""
    count: int = 1000
    """So many at most; in Arrow all of them come."""
    shard: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Those of this shard alone, from 0: shards can be read side by side."""
    upto: Seq | None = None
    """Those up to this one."""
    columns: str | None = None
    """In Arrow these alone, parted by commas; in JSON all of them come."""


class Rows(msgspec.Struct, frozen=True):
    """Rows, in order."""

    messages: list[MessageOut]
    next: Seq | None = None
    """Go on after this one; null: that was all."""


@ROUTES.raw(
    "GET",
    f"{QUEUE}/snapshots/{{snapshot}}",
    "read",
    takes=ReadAsk,
    gives=Rows,
    gives_media=(ARROW_OUT,),
    tag="snapshots",
)
async def read_snapshot(ask: Ask) -> Response:
    """The rows of a snapshot."""
    told = read_query(ask, ReadAsk)
    queue = await _find(ask)
    snapshot = read_ticket(queue, ask.params["snapshot"])
    return await _read(ask, queue, snapshot, told)


@ROUTES.raw(
    "GET",
    f"{QUEUE}/rows",
    "read",
    takes=ReadAsk,
    gives=Rows,
    gives_media=(ARROW_OUT,),
    tag="snapshots",
)
async def read_rows(ask: Ask) -> Response:
    """The rows of a range as of now, pinned while they are read."""
    told = read_query(ask, ReadAsk)
    queue = await _find(ask)
    reserved = await ask.server.holding.reserve(ask.principal, "pins", 1)
    try:
        snapshot = await queue.snapshot(seconds=limits.ARROW_PIN_SECONDS).__aenter__()
    except BaseException:
        reserved.cancel()
        raise

    async def let_go() -> None:
        reserved.cancel()
        # Whoever reads may leave while it is let go.
        await asyncio.shield(snapshot.unpin())

    try:
        response = await _read(ask, queue, snapshot, told, let_go)
    except BaseException:
        await let_go()
        raise
    if not isinstance(response.parts, RowStream):
        await let_go()
    return response


async def _find(ask: Ask) -> Queue:
    async def use(queue: Queue) -> Queue:
        # One that was deleted is noticed here, before anything is sent.
        await queue.spec()
        return queue

    return await ask.queue(use)


async def _read(
    ask: Ask,
    queue: Queue,
    snapshot: Snapshot,
    told: ReadAsk,
    let_go: Callable[[], Awaitable[object]] | None = None,
) -> Response:
    engine, shards = engine_and_shards(queue)
    spans = _spans(shards, snapshot, told)
    headers = {"millrace-boundary": ",".join(map(str, snapshot.boundaries))}
    if ARROW not in ask.request.headers.get("accept", ""):
        count = check.count(told.count, "count", limits.PEEK_MESSAGES_MAX)
        rows, left = await _page(engine, shards, spans, count)
        after = b'],"next":%b}' % encode(left)
        return listed(b'{"messages":[', rows, row_out, after, headers=headers)
    if ask.request.method == "HEAD":
        return Response(200, headers={"content-type": ARROW, **headers})
    with_shard = not shards.is_one and told.shard is None
    schema = columns_of(told.columns, with_shard=with_shard)
    parts = RowStream(engine, spans, schema, let_go=let_go)
    await parts.begin()
    ask.waits = True
    return Response(200, type=ARROW, headers=headers, parts=parts)


def _spans(shards: Shards, snapshot: Snapshot, told: ReadAsk) -> list[Span]:
    """What is read of each shard, in their order."""
    low, high = (0, 0), (len(shards.ids), 0)
    if told.after is not None:
        low = _place(shards, told.after, told.shard, "after")
    if told.upto is not None:
        high = _place(shards, told.upto, told.shard, "upto")
    found: list[Span] = []
    for number, (shard, after, boundary, reader) in enumerate(spans_of(snapshot)):
        if number < low[0] or number > high[0] or told.shard not in (None, number):
            continue
        begin = max(after, low[1]) if number == low[0] else after
        end = min(boundary, high[1]) if number == high[0] else boundary
        if begin < end:
            found.append(Span(shard, number, begin, end, reader))
    if told.shard is not None and told.shard >= len(shards.ids):
        most = len(shards.ids) - 1
        raise Invalid(f"shard is {told.shard}; the last one is {most}", field="shard", limit=most)
    return found


def _place(shards: Shards, seq: Seq, shard: int | None, field: str) -> tuple[int, int]:
    number = seq_in(seq, field)
    if shard is not None:
        return shard, check.seq(number, field, least=0)
    at, found = shards.find(number, field, least=0)
    return shards.number(at), found


async def _page(
    engine: Engine, shards: Shards, spans: list[Span], count: int
) -> tuple[list[Row], Seq | None]:
    """The first rows, so many and so large at most, and after which one to go on."""
    rows: list[Row] = []
    room = limits.PEEK_BYTES_MAX
    for span in spans:
        found = engine.batches(span.shard, span.after, span.upto, span.reader)
        async with aclosing(found) as batches:
            async for batch in batches:
                wanted = batch.slice(0, count - len(rows))
                part = wanted.slice(0, fitting(wanted, room) or (0 if rows else 1))
                rows += shards.placed(span.shard, await rows_in_steps(part))
                room -= part.nbytes
                if len(rows) >= count or part.num_rows < batch.num_rows:
                    return rows, seq_out(rows[-1].seq)
    return rows, None


@ROUTES.json(
    "DELETE", f"{QUEUE}/snapshots/{{snapshot}}", "read", Nothing, WasThere, tag="snapshots"
)
async def let_snapshot_go(ask: Ask, _: Nothing) -> WasThere:
    """Let a snapshot go before its time is over."""

    async def use(queue: Queue) -> bool:
        return await read_ticket(queue, ask.params["snapshot"]).unpin()

    was_there = await ask.queue(use)
    ask.server.quotas.let_go(ask.params["snapshot"])
    return WasThere(was_there)
