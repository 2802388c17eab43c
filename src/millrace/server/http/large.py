"""Large bodies: read from the socket into the bytes that the engine writes, without a copy between.

Rule 1: nothing is kept ready beyond `HTTP_LARGE_STEP_BYTES`, or twice what has come: what a head
claims costs nothing.
Rule 2: no byte behind the body is read by whoever reads it.
Rule 3: memory is used again only when nothing refers to it any more, so that its pages need not be
made anew for each body.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from millrace import limits

if TYPE_CHECKING:
    from millrace.server.http.connection import Connection


Bytes = NDArray[np.uint8]


class Spare:
    """Memory of bodies that are over, for those that come."""

    def __init__(self, bytes_max: int = limits.HTTP_SPARE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._ready: dict[int, deque[Bytes]] = {}
        self._lent: dict[int, tuple[ref[Bytes], Bytes]] = {}

    @property
    def size(self) -> int:
        """Bytes that lie ready."""
        return sum(whole * len(ready) for whole, ready in tuple(self._ready.items()))

    def take(self, size: int) -> memoryview:
        """So many bytes that hold anything, at a multiple of 16.

        Memory that nobody has written to takes no room, so new one is not filled with zeros.
        """
        whole = 1 << (size - 1).bit_length()
        ready = self._ready.get(whole)
        if ready:
            memory = ready.pop()
        else:
            memory = np.empty(whole, np.uint8)
        part = memory[:size]
        # Whatever is made of these bytes refers to `part`.
        lent = ref(part, self._over)
        self._lent[id(lent)] = (lent, memory)
        return part.data

    def _over(self, lent: ref[Bytes]) -> None:
        """Nothing refers to it any more; on any thread, so that the bound is not exact."""
        _, memory = self._lent.pop(id(lent))
        if self.size + len(memory) <= self._bytes_max:
            self._ready.setdefault(len(memory), deque()).append(memory)


class LargeBody:
    """The bytes of one body, as they come."""

    __slots__ = ("_bytes", "_spare", "filled", "length")

    def __init__(self, length: int, spare: Spare) -> None:
        self.length = length
        self.filled = 0
        self._spare = spare
        self._bytes = spare.take(min(length, limits.HTTP_LARGE_STEP_BYTES))

    @property
    def is_whole(self) -> bool:
        """Whether its last byte is there."""
        return self.filled == self.length

    def room(self) -> memoryview:
        """Where the next bytes go; never empty before it is whole."""
        if self.filled == len(self._bytes):
            more = self._spare.take(min(self.length, 2 * len(self._bytes)))
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
