"""HTTP responses and their encoding."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus

Buffer = bytes | bytearray | memoryview
Part = Buffer | Sequence[Buffer]
"""A part that is sent at once, of one buffer or of several that are not joined before."""

_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
BODILESS = frozenset({204, 304})


def pieces_of(part: Part) -> Sequence[Buffer]:
    """Return the buffers of a part."""
    return [part] if isinstance(part, bytes | bytearray | memoryview) else part


def size_of(part: Part) -> int:
    """Return the number of bytes of a part."""
    return sum(map(len, pieces_of(part)))


class CountedBody:
    """Iterates over the parts of a body and reports the size of each to a callback."""

    def __init__(self, parts: AsyncIterator[Part], note: Callable[[int], None]) -> None:
        self._parts = parts
        self._note = note

    def __aiter__(self) -> CountedBody:
        return self

    async def __anext__(self) -> Part:
        part = await anext(self._parts)
        self._note(size_of(part))
        return part

    async def aclose(self) -> None:
        """Close the iterator at any point."""
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()


class Response:
    """A response with a complete body, or with one that is generated while it is sent.

    A generated body is sent in chunks, and its `aclose` is awaited at the end. An error in the
    middle of it aborts the connection, so that no client takes a part for the whole.
    """

    __slots__ = ("body", "headers", "parts", "status")

    def __init__(
        self,
        status: int,
        body: Buffer = b"",
        *,
        type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        parts: AsyncIterator[Part] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.parts = parts
        self.headers: dict[str, str] = {"content-type": type} if body or parts else {}
        if headers:
            self.headers.update(headers)

    def head(self, *, keep_alive: bool, date: bytes, chunked: bool) -> bytes:
        """Return the encoded status line and headers."""
        lines = [_LINES[self.status], date]
        if chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        elif self.parts is None and self.status not in BODILESS:
            lines.append(b"content-length: %d\r\n" % len(self.body))
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        for name, value in self.headers.items():
            lines.append(f"{name}: {value}\r\n".encode("latin-1"))
        lines.append(b"\r\n")
        return b"".join(lines)
