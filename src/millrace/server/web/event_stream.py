"""Server-sent events: the stream format of browsers' `EventSource`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

from millrace.errors import MillraceError
from millrace.server.http.response import Response
from millrace.server.web.problem import problem_of
from millrace.server.web.route import Media, RequestContext, encode

EVENTS = "text/event-stream"
QUIET = b":\n\n"
"""A heartbeat: a comment, sent when there are no events."""


def media(text: str) -> tuple[Media, ...]:
    """Return the response media of a route that streams events."""
    return (Media(EVENTS, text),)


def event(name: str, data: bytes, id: str | None = None) -> bytes:
    """Return one encoded event; `data` contains no line breaks."""
    return b"".join((_head(name, id), data, b"\n\n"))


def event_in_pieces(name: str, data: Iterable[bytes], id: str | None = None) -> Iterator[bytes]:
    """Yield one event, encoded as by `event`, from data in pieces."""
    yield _head(name, id)
    yield from data
    yield b"\n\n"


def _head(name: str, id: str | None) -> bytes:
    return (f"event: {name}\n" if id is None else f"event: {name}\nid: {id}\n").encode() + b"data: "


class EventStream:
    """A stream of events until the client disconnects, the server stops, or an error ends it."""

    def __init__(self, events: AsyncGenerator[bytes, None], end: Callable[[], None]) -> None:
        self._events = events
        self._end: Callable[[], None] | None = end

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Close the stream at any point, and release its slot."""
        try:
            await self._events.aclose()
        finally:
            if self._end is not None:
                end, self._end = self._end, None
                end()


def answer(ask: RequestContext, make: Callable[[], AsyncGenerator[bytes, None]]) -> Response:
    """Return a response that streams events; an error in the middle becomes the last event."""
    headers = {"cache-control": "no-store"}
    if ask.request.method == "HEAD":
        return Response(200, headers={"content-type": EVENTS, **headers})
    slots = ask.server.streams
    principal = ask.principal
    slots.take(principal)

    def give_back() -> None:
        slots.give_back(principal)

    ask.waits = True
    parts = EventStream(_told(make()), give_back)
    return Response(200, type=EVENTS, headers=headers, parts=parts)


async def _told(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for one in events:
            yield one
    except MillraceError as error:
        yield event("problem", encode(problem_of(error)))
    finally:
        await events.aclose()
