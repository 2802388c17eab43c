"""Streams of events, as browsers and everything else read them (server-sent events)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

from millrace.errors import MillraceError
from millrace.server.http.response import Response
from millrace.server.rest.problem import problem_of
from millrace.server.rest.route import Ask, Media, encode

EVENTS = "text/event-stream"
QUIET = b":\n\n"
"""Nothing has happened."""


def media(text: str) -> tuple[Media, ...]:
    """What a route gives that streams events."""
    return (Media(EVENTS, text),)


def event(name: str, data: bytes, id: str | None = None) -> bytes:
    """One event; `data` has no line ends."""
    return b"".join((_head(name, id), data, b"\n\n"))


def event_in_pieces(name: str, data: Iterable[bytes], id: str | None = None) -> Iterator[bytes]:
    """One event, as `event` makes it, whose data is made piece by piece."""
    yield _head(name, id)
    yield from data
    yield b"\n\n"


def _head(name: str, id: str | None) -> bytes:
    return (f"event: {name}\n" if id is None else f"event: {name}\nid: {id}\n").encode() + b"data: "


class Stream:
    """Events as they come, until nobody reads them, the server stops, or an error ends them."""

    def __init__(self, events: AsyncGenerator[bytes, None], end: Callable[[], None]) -> None:
        self._events = events
        self._end: Callable[[], None] | None = end

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        """End it, wherever it is."""
        try:
            await self._events.aclose()
        finally:
            if self._end is not None:
                end, self._end = self._end, None
                end()


def answer(ask: Ask, make: Callable[[], AsyncGenerator[bytes, None]]) -> Response:
    """Have events sent; an error in the middle is the last of them."""
    headers = {"cache-control": "no-store"}
    if ask.request.method == "HEAD":
        return Response(200, headers={"content-type": EVENTS, **headers})
    slots = ask.server.streams
    principal = ask.principal
    slots.take(principal)

    def give_back() -> None:
        slots.give_back(principal)

    ask.waits = True
    parts = Stream(_told(make()), give_back)
    return Response(200, type=EVENTS, headers=headers, parts=parts)


async def _told(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for one in events:
            yield one
    except MillraceError as error:
        yield event("problem", encode(problem_of(error)))
    finally:
        await events.aclose()
