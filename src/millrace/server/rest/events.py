"""Server-sent events of a queue's messages and counters.

An event of a queue is a message; its id is the token of a position: the reader's progress in each
shard, with the history. A request with the last id as `Last-Event-ID`, which browsers send
automatically, continues after it. It is refused if a restore or a takeover removed that position.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.cursor import (
    Cursor,
    Snapshot,
    Start,
    delete_cursor,
)
from millrace.client.position import Position, is_position, locate, read_position, see_places
from millrace.client.queue import Queue, engine_and_shards
from millrace.core.model import CursorPosition as Place
from millrace.core.model import Row
from millrace.errors import Invalid, MillraceError, NotFound
from millrace.server.auth.access import may
from millrace.server.http.response import Response
from millrace.server.rest.route_table import QUEUE, ROUTES, SPACE
from millrace.server.web.event_stream import (
    QUIET,
    answer,
    event,
    event_in_pieces,
    media,
)
from millrace.server.web.message import row_out
from millrace.server.web.message_listing import pieces_of
from millrace.server.web.route import RequestContext, encode, read_query

Every = Annotated[float, msgspec.Meta(ge=limits.STATS_SECONDS_MIN, le=limits.STATS_SECONDS_MAX)]


class FollowAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The start of the stream."""

    after: str | None = None
    """The id of the last event that was read, another position of the queue, or 0 for the
    beginning. By default, the stream begins with messages published from now on. `Last-Event-ID`
    has the same meaning. If a restore or a takeover removed changes before that position, the
    response is 410 (`rolled_back`).
    """


@ROUTES.raw(
    "GET",
    f"{QUEUE}/events",
    "read",
    takes=FollowAsk,
    gives_media=media("The messages of a queue as they come."),
    tag="events",
)
async def follow(ask: RequestContext) -> Response:
    """Stream the messages of a queue as server-sent events."""
    params = read_query(ask, FollowAsk)
    after = ask.request.headers.get("last-event-id") or params.after

    async def use(queue: Queue) -> tuple[Queue, Start]:
        return queue, await _start(queue, after)

    queue, start = await ask.queue(use)
    return answer(ask, lambda: _follow(ask, queue, start))


async def _start(queue: Queue, after: str | None) -> Start:
    """Return the position after which a stream begins.

    Raises:
        Invalid: `after` is not an event id of this queue.
        NotFound: the position is of another queue.
        RolledBack: changes before the position were rolled back.
        CursorExpired: rows after the position are gone.
    """
    engine, shards = engine_and_shards(queue)
    present = await locate(engine, shards)
    if after is None:
        return "end"
    text = after.strip()
    if text == "0":
        return "beginning"
    position = _position_in(text, present)
    # Browsers reconnect until they get an error status. So the position is checked before the
    # stream begins, and again by the cursor.
    hint = "undo what came after that, and follow from `position`"
    await see_places(engine, shards, read_position(position, shards), hint)
    return position


def _position_in(text: str, present: Position) -> Position:
    """Parse the id of an event.

    Earlier versions wrote one bare seq per shard, without a history; it can only be taken as one of
    the present history.

    Raises:
        Invalid: the text has neither form.
    """
    if is_position(text):
        return Position.parse(text)
    fields = text.split(",")
    if len(fields) == len(present.parts) and all(
        field.isascii() and field.isdigit() and len(field) < 16 for field in fields
    ):
        seqs = [int(field) for field in fields]
        # A seq beyond the queue's end belongs to another queue, or to another history of it.
        if all(seq <= last for seq, last in zip(seqs, present.seqs, strict=True)):
            return Position(
                tuple(
                    (shard, Place(place.history, seq, seq, seq))
                    for (shard, place), seq in zip(present.parts, seqs, strict=True)
                )
            )
    raise Invalid(
        f"after is {text[:40]!r}, not the id of an event of this queue, nor 0", field="after"
    )


async def _follow(ask: RequestContext, queue: Queue, start: Start) -> AsyncGenerator[bytes, None]:
    # The cursor's name is random, and private to this stream; if the process is killed, one cell of
    # it remains.
    name = f"events.{secrets.token_hex(8)}"
    try:
        cursor = await queue.cursor(name, start=start)
        yield event("begin", b"{}", str(cursor.position))
        async with aclosing(_messages(ask, cursor)) as messages:
            async for message in messages:
                yield message
    finally:
        # Also delete the cursor if the client left while it was being made. A deleted queue has
        # none.
        with suppress(MillraceError):
            await asyncio.shield(delete_cursor(*engine_and_shards(queue), name))


async def _messages(ask: RequestContext, cursor: Cursor) -> AsyncGenerator[bytes, None]:
    seconds = limits.EVENT_PIN_SECONDS
    while not ask.server.is_stopping:
        snapshot = await ask.until(lambda: cursor.next(wait=limits.EVENT_SECONDS, seconds=seconds))
        if snapshot is None:
            yield QUIET
            continue
        async with aclosing(_rows(snapshot)) as rows:
            async for row, position in rows:
                if len(row.body or b"") > limits.ANSWER_STEP_BYTES:
                    # Encoded in pieces, with other requests served in between, so that no step of
                    # the event loop encodes all of a large body.
                    pieces = pieces_of(row_out(row))
                    for part in event_in_pieces("message", pieces, str(position)):
                        yield part
                        await asyncio.sleep(0)
                    continue
                yield event("message", encode(row_out(row)), str(position))


async def _rows(snapshot: Snapshot) -> AsyncGenerator[tuple[Row, Position], None]:
    """Yield each row with the position of a reader that has read up to it.

    The last row has the position of the snapshot's end: a reader in the middle of a snapshot would
    have to return to its start if a restore removed any part of it.
    """
    last: Row | None = None
    async for row in snapshot.rows():
        if last is not None:
            yield last, snapshot.position_at(last.seq)
        last = row
    if last is not None:
        yield last, snapshot.position


# --- Counters ------------------------------------------------------------------------------------


class StatsAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The interval of the updates."""

    every: Every = 1
    """Seconds between two readings; unchanged counters are not sent again."""


@ROUTES.raw(
    "GET",
    f"{QUEUE}/stats/events",
    "read",
    takes=StatsAsk,
    gives_media=media("The counters of a queue, whenever they have changed."),
    tag="events",
)
async def follow_stats(ask: RequestContext) -> Response:
    """Stream the counters of a queue as server-sent events."""
    params = read_query(ask, StatsAsk)
    await ask.queue(lambda queue: queue.stats())

    async def look() -> dict[str, int]:
        return await ask.queue(lambda queue: queue.stats())

    async def make() -> AsyncGenerator[bytes, None]:
        last: dict[str, int] = {}
        async for _ in _ticks(ask, params.every):
            found = await look()
            yield event("stats", encode(found)) if found != last else b""
            last = found

    return answer(ask, lambda: _with_quiet(make(), params.every))


@ROUTES.raw(
    "GET",
    f"{SPACE}/stats/events",
    "known",
    takes=StatsAsk,
    gives_media=media("The counters of every queue that the caller may read, as they change."),
    tag="events",
)
async def follow_all_stats(ask: RequestContext) -> Response:
    """Stream the counters of all queues of a space that the caller may read."""
    params = read_query(ask, StatsAsk)
    space = ask.params["space"]
    await ask.desk.millrace.queues(space=space)

    async def make() -> AsyncGenerator[bytes, None]:
        last: dict[str, dict[str, int]] = {}
        async for _ in _ticks(ask, params.every):
            found = await _all_stats(ask, space)
            changed = {name: one for name, one in found.items() if last.get(name) != one}
            gone = [name for name in last if name not in found]
            said = {"queues": changed, "gone": gone}
            yield event("stats", encode(said)) if changed or gone else b""
            last = found

    return answer(ask, lambda: _with_quiet(make(), params.every))


async def _all_stats(ask: RequestContext, space: str) -> dict[str, dict[str, int]]:
    names = [
        name
        for name in await ask.desk.millrace.queues(space=space)
        if may(ask.principal.rules, "read", space, name)
    ]
    found: dict[str, dict[str, int]] = {}
    for name in names[: limits.STATS_QUEUES_MAX]:
        # The queue may have been deleted since the listing.
        with suppress(NotFound):
            found[name] = await ask.desk.queue(space, name, lambda queue: queue.stats())
    return found


async def _ticks(ask: RequestContext, every: float) -> AsyncGenerator[None, None]:
    """Yield immediately, and again after each interval until the server stops."""
    while not ask.server.is_stopping:
        yield None
        await ask.until(lambda: asyncio.sleep(every))


async def _with_quiet(
    events: AsyncGenerator[bytes, None], every: float
) -> AsyncGenerator[bytes, None]:
    """Yield the events, and a heartbeat after an interval without events."""
    silent = 0.0
    try:
        async for one in events:
            if one:
                silent = 0.0
                yield one
            elif (silent := silent + every) >= limits.EVENT_SECONDS:
                silent = 0.0
                yield QUIET
    finally:
        await events.aclose()
