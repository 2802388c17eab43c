"""Following a queue and its counters as streams of events.

An event of a queue is a message; its id says how far its reader has come in each shard. Whoever
sends the last one as `Last-Event-ID`, as browsers do by themselves, goes on after it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.cursor import Cursor, delete_named
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.ticket import go_on_at
from millrace.core.place import Place
from millrace.errors import Invalid, MillraceError, NotFound
from millrace.server.access import may
from millrace.server.http.response import Response
from millrace.server.rest.message import row_out
from millrace.server.rest.route import Ask, encode, read_query
from millrace.server.rest.stream import QUIET, answer, event, media
from millrace.server.rest.table import QUEUE, ROUTES, SPACE

Every = Annotated[float, msgspec.Meta(ge=limits.STATS_SECONDS_MIN, le=limits.STATS_SECONDS_MAX)]


class FollowAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin."""

    after: str | None = None
    """The id of the last event that was read, or 0 for the beginning; else only what comes from now
    on is told. `Last-Event-ID` says the same."""


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
    told = read_query(ask, FollowAsk)
    after = ask.request.headers.get("last-event-id") or told.after

    async def use(queue: Queue) -> tuple[Queue, list[int] | None]:
        engine, shards = engine_and_shards(queue)
        lasts = [(await engine.meta(shard)).last_seq for shard in shards.ids]
        return queue, None if after is None else _places(after, lasts)

    queue, places = await ask.queue(use)
    return answer(ask, lambda: _follow(ask, queue, places))


def _places(text: str, lasts: list[int]) -> list[int]:
    """How far an id says that its reader has come."""
    found = text.strip().split(",")
    if found == ["0"]:
        return [0] * len(lasts)
    if len(found) == len(lasts) and all(
        one.isascii() and one.isdigit() and len(one) < 16 for one in found
    ):
        places = [int(one) for one in found]
        # What lies ahead of the queue is of another one, or of another history of it.
        if all(place <= last for place, last in zip(places, lasts, strict=True)):
            return places
    raise Invalid(
        f"after is {text[:40]!r}, not the id of an event of this queue, nor 0", field="after"
    )


async def _follow(ask: Ask, queue: Queue, places: list[int] | None) -> AsyncGenerator[bytes, None]:
    # Nobody else knows this cursor; if the process is killed, one cell is left of it.
    name = f"events.{secrets.token_hex(8)}"
    try:
        cursor = await queue.cursor(name, start="end" if places is None else "beginning")
        if places is None:
            places = [position.seq for position in cursor.positions]
        go_on_at(cursor, places)
        yield event("begin", b"{}", ",".join(map(str, places)))
        async with aclosing(_messages(ask, cursor, places)) as messages:
            async for one in messages:
                yield one
    finally:
        # Also if whoever listened left while it was being made. A queue that has ended has none.
        with suppress(MillraceError):
            await asyncio.shield(delete_named(*engine_and_shards(queue), name))


async def _messages(ask: Ask, cursor: Cursor, places: list[int]) -> AsyncGenerator[bytes, None]:
    seconds = limits.EVENT_PIN_SECONDS
    while not ask.server.is_stopping:
        snapshot = await ask.until(lambda: cursor.next(wait=limits.EVENT_SECONDS, seconds=seconds))
        if snapshot is None:
            yield QUIET
            continue
        async for shard, rows in snapshot.parts():
            for row in rows:
                places[shard] = row.seq.seq if isinstance(row.seq, Place) else row.seq
                yield event("message", encode(row_out(row)), ",".join(map(str, places)))
        places[:] = snapshot.boundaries


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
