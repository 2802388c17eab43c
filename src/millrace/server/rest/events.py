"""Following a queue and its counters as streams of events.

An event of a queue is a message; its id is the token of a position: how far its reader has come in
each shard, and in which history. A request with the last id as `Last-Event-ID`, which browsers send
by themselves, goes on after it, or is refused where a restore or a takeover took it back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.cursor import Cursor, Snapshot, Start, delete_named
from millrace.client.position import Position, is_position, locate, read_position, see_places
from millrace.client.queue import Queue, engine_and_shards
from millrace.core.model import Position as Place
from millrace.core.model import Row
from millrace.errors import Invalid, MillraceError, NotFound
from millrace.server.access import may
from millrace.server.http.response import Response
from millrace.server.rest.listing import pieces_of
from millrace.server.rest.message import row_out
from millrace.server.rest.route import Ask, encode, read_query
from millrace.server.rest.stream import QUIET, answer, event, event_in_pieces, media
from millrace.server.rest.table import QUEUE, ROUTES, SPACE

Every = Annotated[float, msgspec.Meta(ge=limits.STATS_SECONDS_MIN, le=limits.STATS_SECONDS_MAX)]


class FollowAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin."""

    after: str | None = None
    """The id of the last event that was read, or another position of the queue, or 0 for the
    beginning; else only what comes from now on is told. `Last-Event-ID` says the same. If a restore
    or a takeover took back what was read up to there, the answer is 410 (`rolled_back`)."""


@ROUTES.raw(
    "GET",
    f"{QUEUE}/events",
    "read",
    takes=FollowAsk,
    gives_media=media("The messages of a queue as they come."),
    tag="events",
)
async def follow(ask: Ask) -> Response:
    """Follow a queue: its messages as server-sent events."""
    params = read_query(ask, FollowAsk)
    after = ask.request.headers.get("last-event-id") or params.after

    async def use(queue: Queue) -> tuple[Queue, Start]:
        return queue, await _start(queue, after)

    queue, start = await ask.queue(use)
    return answer(ask, lambda: _follow(ask, queue, start))


async def _start(queue: Queue, after: str | None) -> Start:
    """Return the place after which a stream begins.

    Raises:
        Invalid: `after` is no id of an event of this queue.
        NotFound: it is of another queue.
        RolledBack: what was read up to there was taken back.
        CursorExpired: rows that come next are gone.
    """
    engine, shards = engine_and_shards(queue)
    present = await locate(engine, shards)
    if after is None:
        return "end"
    text = after.strip()
    if text == "0":
        return "beginning"
    position = _position_in(text, present)
    # A browser that follows again and again must be refused by the status, which ends it; so this
    # is judged before the stream begins, and again by the cursor.
    hint = "undo what came after that, and follow from `position`"
    await see_places(engine, shards, read_position(position, shards), hint)
    return position


def _position_in(text: str, present: Position) -> Position:
    """Read the id of an event.

    Earlier versions wrote a bare seq for each shard, which names no history, so that it can only
    mean the present one.

    Raises:
        Invalid: it is neither.
    """
    if is_position(text):
        return Position.parse(text)
    fields = text.split(",")
    if len(fields) == len(present.parts) and all(
        field.isascii() and field.isdigit() and len(field) < 16 for field in fields
    ):
        seqs = [int(field) for field in fields]
        # What lies ahead of the queue is of another one, or of another history of it.
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


async def _follow(ask: Ask, queue: Queue, start: Start) -> AsyncGenerator[bytes, None]:
    # Nobody else knows this cursor; if the process is killed, one cell is left of it.
    name = f"events.{secrets.token_hex(8)}"
    try:
        cursor = await queue.cursor(name, start=start)
        yield event("begin", b"{}", str(cursor.position))
        async with aclosing(_messages(ask, cursor)) as messages:
            async for message in messages:
                yield message
    finally:
        # Also if whoever listened left while it was being made. A queue that has ended has none.
        with suppress(MillraceError):
            await asyncio.shield(delete_named(*engine_and_shards(queue), name))


async def _messages(ask: Ask, cursor: Cursor) -> AsyncGenerator[bytes, None]:
    seconds = limits.EVENT_PIN_SECONDS
    while not ask.server.is_stopping:
        snapshot = await ask.until(lambda: cursor.next(wait=limits.EVENT_SECONDS, seconds=seconds))
        if snapshot is None:
            yield QUIET
            continue
        async with aclosing(_rows(snapshot)) as rows:
            async for row, position in rows:
                if len(row.body or b"") > limits.ANSWER_STEP_BYTES:
                    # As below, so that no step encodes all of a large body.
                    pieces = pieces_of(row_out(row))
                    for part in event_in_pieces("message", pieces, str(position)):
                        yield part
                        await asyncio.sleep(0)
                    continue
                yield event("message", encode(row_out(row)), str(position))


async def _rows(snapshot: Snapshot) -> AsyncGenerator[tuple[Row, Position], None]:
    """Yield each row with the position of a reader that has read so far.

    With the last row that is the snapshot's end: a reader in the middle of a snapshot would have to
    go back to its start if a restore took back anything of it.
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
    """How often."""

    every: Every = 1
    """Seconds between two looks; what has not changed is not told again."""


@ROUTES.raw(
    "GET",
    f"{QUEUE}/stats/events",
    "read",
    takes=StatsAsk,
    gives_media=media("The counters of a queue, whenever they have changed."),
    tag="events",
)
async def follow_stats(ask: Ask) -> Response:
    """Follow the counters of a queue."""
    told = read_query(ask, StatsAsk)
    await ask.queue(lambda queue: queue.stats())

    async def look() -> dict[str, int]:
        return await ask.queue(lambda queue: queue.stats())

    async def make() -> AsyncGenerator[bytes, None]:
        last: dict[str, int] = {}
        async for _ in _ticks(ask, told.every):
            found = await look()
            yield event("stats", encode(found)) if found != last else b""
            last = found

    return answer(ask, lambda: _with_quiet(make(), told.every))


@ROUTES.raw(
    "GET",
    f"{SPACE}/stats/events",
    "known",
    takes=StatsAsk,
    gives_media=media("The counters of every queue that the caller may read, as they change."),
    tag="events",
)
async def follow_all_stats(ask: Ask) -> Response:
    """Follow the counters of all queues of a space that the caller may read."""
    told = read_query(ask, StatsAsk)
    space = ask.params["space"]
    await ask.desk.millrace.queues(space=space)

    async def make() -> AsyncGenerator[bytes, None]:
        last: dict[str, dict[str, int]] = {}
        async for _ in _ticks(ask, told.every):
            found = await _all_stats(ask, space)
            changed = {name: one for name, one in found.items() if last.get(name) != one}
            gone = [name for name in last if name not in found]
            said = {"queues": changed, "gone": gone}
            yield event("stats", encode(said)) if changed or gone else b""
            last = found

    return answer(ask, lambda: _with_quiet(make(), told.every))


async def _all_stats(ask: Ask, space: str) -> dict[str, dict[str, int]]:
    names = [
        name
        for name in await ask.desk.millrace.queues(space=space)
        if may(ask.principal.rules, "read", space, name)
    ]
    found: dict[str, dict[str, int]] = {}
    for name in names[: limits.STATS_QUEUES_MAX]:
        # One may have ended a moment ago.
        with suppress(NotFound):
            found[name] = await ask.desk.queue(space, name, lambda queue: queue.stats())
    return found


async def _ticks(ask: Ask, every: float) -> AsyncGenerator[None, None]:
    """Now, and again each time; until the server stops."""
    while not ask.server.is_stopping:
        yield None
        await ask.until(lambda: asyncio.sleep(every))


async def _with_quiet(
    events: AsyncGenerator[bytes, None], every: float
) -> AsyncGenerator[bytes, None]:
    """The events, and a sign of life where none came for a while."""
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
