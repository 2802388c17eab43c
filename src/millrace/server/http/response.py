"""What is answered, and its bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus

Buffer = bytes | bytearray | memoryview
Part = Buffer | Sequence[Buffer]
"""What is sent at once, in one piece or in several, which are not put together before."""

_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
BODILESS = frozenset({204, 304})


def pieces_of(part: Part) -> Sequence[Buffer]:
    """The pieces that a part goes in."""
    return [part] if isinstance(part, bytes | bytearray | memoryview) else part


def size_of(part: Part) -> int:
    """The bytes of a part."""
    return sum(map(len, pieces_of(part)))


class Counted:
    """The parts of a body, and how large each of them is."""

    def __init__(self, parts: AsyncIterator[Part], note: Callable[[int], None]) -> None:
        self._parts = parts
        self._note = note

    def __aiter__(self) -> Counted:
        return self

    async def __anext__(self) -> Part:
        part = await anext(self._parts)
        self._note(size_of(part))
        return part

    async def aclose(self) -> None:
        """End it, wherever it is."""
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()


class Response:
    """An answer with a body that is there, or one that is still being made.

    A body that is made while it is sent goes in chunks, and its `aclose` is awaited at the end;
    an error in the middle of it cuts the connection, so that nobody takes a part for the whole.
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
        """The bytes before the body."""
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
