"""Large bodies: read from the socket into the bytes that the engine writes, without a copy between.

Rule 1: nothing is kept ready beyond `HTTP_LARGE_STEP_BYTES`, or twice what has come: what a head
claims costs nothing.
Rule 2: no byte behind the body is read by whoever reads it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from millrace import limits

if TYPE_CHECKING:
    from millrace.server.http.connection import Connection


class LargeBody:
    """The bytes of one body, as they come."""

    __slots__ = ("_bytes", "filled", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        self.filled = 0
        # Memory that nobody has written to takes no room, so it is not filled with zeros either.
        self._bytes = _empty(min(length, limits.HTTP_LARGE_STEP_BYTES))

    @property
    def is_whole(self) -> bool:
        """Whether its last byte is there."""
        return self.filled == self.length

    def room(self) -> memoryview:
        """Where the next bytes go; never empty before it is whole."""
        if self.filled == len(self._bytes):
            more = _empty(min(self.length, 2 * len(self._bytes)))
            more[: self.filled] = self._bytes
            self._bytes = more
        return self._bytes[self.filled :]

    def take(self, data: memoryview) -> int:
        """Take in what is its own of some bytes; returns how many that are."""
        at = 0
        while at < len(data) and not self.is_whole:
            room = self.room()
            size = min(len(room), len(data) - at)
            room[:size] = data[at : at + size]
            self.filled += size
            at += size
        return at

    def whole(self) -> memoryview:
        """All of it, at a multiple of 8."""
        assert self.is_whole
        return self._bytes


def _empty(size: int) -> memoryview:
    return np.empty(size, np.uint8).data


class BodyReader(asyncio.BufferedProtocol):
    """Stands in for a connection while a large body is read."""

    def __init__(self, connection: Connection, body: LargeBody) -> None:
        self._connection = connection
        self._body = body

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._body.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.body_received(nbytes)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)
