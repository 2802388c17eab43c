"""Snapshots and ranges: repeatable reads of the same rows, as JSON or Arrow.

Rule 1: the server keeps no state of a snapshot. The token contains everything; the queue has the
pin, until it expires or is released.
Rule 2: an interrupted reader continues after the last row that it has received.
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
from millrace.client.message import rows_in_steps, rows_that_fit
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.shards import Shards
from millrace.client.snapshot_token import read_snapshot_token, shard_ranges, write_snapshot_token
from millrace.core import validate
from millrace.core.model import Row
from millrace.errors import Invalid
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.rest.arrow import RowStream, ShardRange, columns_of
from millrace.server.rest.publish import ARROW
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route_table import QUEUE, ROUTES
from millrace.server.web.message import (
    MessageOut,
    Seq,
    row_out,
    seq_in,
    seq_out,
)
from millrace.server.web.message_listing import listed
from millrace.server.web.route import (
    Media,
    Nothing,
    RequestContext,
    encode,
    read_query,
)

ARROW_OUT = Media(
    ARROW,
    "All of the rows as an Arrow IPC stream: `seq`, `key`, `headers`, `time`, `value`; before them "
    "`shard`, where rows of several shards come in one stream.",
)


class SnapshotAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The duration of a snapshot."""

    seconds: float = 3600
    """Seconds for which the snapshot is pinned at most."""


class SnapshotOut(msgspec.Struct, frozen=True):
    """The rows of a queue between two boundaries, as of one moment."""

    snapshot: str
    """The token for reading and releasing the snapshot, and for committing it if it is a
    cursor's.
    """
    afters: list[int]
    """The seq after which the snapshot begins, for each shard."""
    boundaries: list[int]
    """The last seq that the snapshot may contain, for each shard."""
    position: str
    """The position of a follower that has read the whole snapshot; store it with the results."""


def snapshot_out(snapshot: Snapshot) -> SnapshotOut:
    """Return a snapshot as a response body."""
    text = write_snapshot_token(snapshot)
    position = str(snapshot.position)
    return SnapshotOut(text, list(snapshot.afters), list(snapshot.boundaries), position)


@ROUTES.json(
    "POST", f"{QUEUE}/snapshots", "read", SnapshotAsk, SnapshotOut, status=201, tag="snapshots"
)
async def take_snapshot(ask: RequestContext, params: SnapshotAsk) -> SnapshotOut:
    """Take a snapshot of the queue as of now."""

    async def use(queue: Queue) -> Snapshot:
        return await queue.snapshot(seconds=params.seconds).__aenter__()

    reserved = await ask.server.holding.reserve(ask.principal, "pins", 1)
    try:
        found = snapshot_out(await ask.queue(use))
        reserved.keep(found.snapshot, 1, now_ms() + int(params.seconds * 1000))
    finally:
        reserved.cancel()
    return found


class TokenOut(msgspec.Struct, frozen=True):
    """A position in a queue."""

    position: str
    """The position's token: it contains the history, and is refused after that was rolled back."""


@ROUTES.json("GET", f"{QUEUE}/position", "read", Nothing, TokenOut, tag="snapshots")
async def read_position(ask: RequestContext, _: Nothing) -> TokenOut:
    """Return the queue's end position, which is after everything published before."""
    return TokenOut(str(await ask.queue(lambda queue: queue.position())))


class ReadAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The range of rows."""

    after: Seq | None = None
    """Return rows after this seq; with `shard`, a seq of that shard."""
    count: int = 1000
    """The maximum number of rows in JSON; Arrow responses contain all of them."""
    shard: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Return rows of this shard only, numbered from 0, so that shards can be read in parallel."""
    upto: Seq | None = None
    """Return rows up to this seq."""
    columns: str | None = None
    """The columns of an Arrow response, separated by commas; JSON has all of them."""


class RowPage(msgspec.Struct, frozen=True):
    """Rows in order."""

    messages: list[MessageOut]
    next: Seq | None = None
    """Continue after this seq; null at the end."""


@ROUTES.raw(
    "GET",
    f"{QUEUE}/snapshots/{{snapshot}}",
    "read",
    takes=ReadAsk,
    gives=RowPage,
    gives_media=(ARROW_OUT,),
    tag="snapshots",
)
async def read_snapshot(ask: RequestContext) -> Response:
    """Read the rows of a snapshot."""
    params = read_query(ask, ReadAsk)
    queue = await _find(ask)
    snapshot = read_snapshot_token(queue, ask.params["snapshot"])
    return await _read(ask, queue, snapshot, params)


@ROUTES.raw(
    "GET",
    f"{QUEUE}/rows",
    "read",
    takes=ReadAsk,
    gives=RowPage,
    gives_media=(ARROW_OUT,),
    tag="snapshots",
)
async def read_rows(ask: RequestContext) -> Response:
    """Read a range of rows as of now, pinned until the response is sent."""
    params = read_query(ask, ReadAsk)
    queue = await _find(ask)
    reserved = await ask.server.holding.reserve(ask.principal, "pins", 1)
    try:
        snapshot = await queue.snapshot(seconds=limits.ARROW_PIN_SECONDS).__aenter__()
    except BaseException:
        reserved.cancel()
        raise

    async def let_go() -> None:
        reserved.cancel()
        # The client may disconnect during the release.
        await asyncio.shield(snapshot.unpin())

    try:
        response = await _read(ask, queue, snapshot, params, let_go)
    except BaseException:
        await let_go()
        raise
    if not isinstance(response.parts, RowStream):
        await let_go()
    return response


async def _find(ask: RequestContext) -> Queue:
    async def use(queue: Queue) -> Queue:
        # Notices a queue that was deleted since it was cached, before anything is sent.
        await queue.spec()
        return queue

    return await ask.queue(use)


async def _read(
    ask: RequestContext,
    queue: Queue,
    snapshot: Snapshot,
    params: ReadAsk,
    let_go: Callable[[], Awaitable[object]] | None = None,
) -> Response:
    engine, shards = engine_and_shards(queue)
    spans = _spans(shards, snapshot, params)
    headers = {"millrace-boundary": ",".join(map(str, snapshot.boundaries))}
    if ARROW not in ask.request.headers.get("accept", ""):
        count = validate.count(params.count, "count", limits.PEEK_MESSAGES_MAX)
        rows, left = await _page(engine, shards, spans, count)
        after = b'],"next":%b}' % encode(left)
        return listed(b'{"messages":[', rows, row_out, after, headers=headers)
    if ask.request.method == "HEAD":
        return Response(200, headers={"content-type": ARROW, **headers})
    with_shard = not shards.is_one and params.shard is None
    schema = columns_of(params.columns, with_shard=with_shard)
    parts = RowStream(engine, spans, schema, let_go=let_go)
    await parts.begin()
    ask.waits = True
    return Response(200, type=ARROW, headers=headers, parts=parts)


def _spans(shards: Shards, snapshot: Snapshot, params: ReadAsk) -> list[ShardRange]:
    """Return the range to read in each shard, in the order of shards."""
    low, high = (0, 0), (len(shards.ids), 0)
    if params.after is not None:
        low = _place(shards, params.after, params.shard, "after")
    if params.upto is not None:
        high = _place(shards, params.upto, params.shard, "upto")
    found: list[ShardRange] = []
    for number, (shard, after, boundary, reader) in enumerate(shard_ranges(snapshot)):
        if number < low[0] or number > high[0] or params.shard not in (None, number):
            continue
        begin = max(after, low[1]) if number == low[0] else after
        end = min(boundary, high[1]) if number == high[0] else boundary
        if begin < end:
            found.append(ShardRange(shard, number, begin, end, reader))
    if params.shard is not None and params.shard >= len(shards.ids):
        most = len(shards.ids) - 1
        raise Invalid(f"shard is {params.shard}; the last one is {most}", field="shard", limit=most)
    return found


def _place(shards: Shards, seq: Seq, shard: int | None, field: str) -> tuple[int, int]:
    number = seq_in(seq, field)
    if shard is not None:
        return shard, validate.seq(number, field, least=0)
    at, found = shards.find(number, field, least=0)
    return shards.number(at), found


async def _page(
    engine: Engine, shards: Shards, spans: list[ShardRange], count: int
) -> tuple[list[Row], Seq | None]:
    """Return the first rows within the limits of number and size, and the seq to continue after."""
    rows: list[Row] = []
    room = limits.PEEK_BYTES_MAX
    for span in spans:
        found = engine.batches(span.shard, span.after, span.upto, span.reader)
        async with aclosing(found) as batches:
            async for batch in batches:
                wanted = batch.slice(0, count - len(rows))
                part = wanted.slice(0, rows_that_fit(wanted, room) or (0 if rows else 1))
                rows += shards.placed(span.shard, await rows_in_steps(part))
                room -= part.nbytes
                if len(rows) >= count or part.num_rows < batch.num_rows:
                    return rows, seq_out(rows[-1].seq)
    return rows, None


@ROUTES.json(
    "DELETE", f"{QUEUE}/snapshots/{{snapshot}}", "read", Nothing, WasThere, tag="snapshots"
)
async def let_snapshot_go(ask: RequestContext, _: Nothing) -> WasThere:
    """Release a snapshot before it expires."""

    async def use(queue: Queue) -> bool:
        return await read_snapshot_token(queue, ask.params["snapshot"]).unpin()

    was_there = await ask.queue(use)
    ask.server.quotas.let_go(ask.params["snapshot"])
    return WasThere(was_there)
