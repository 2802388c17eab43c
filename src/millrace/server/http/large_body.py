"""Large bodies: read from the socket straight into the buffer that the engine writes, without a
copy.

Rule 1: no buffer is larger than `HTTP_LARGE_STEP_BYTES`, or twice the bytes received: a declared
length alone costs no memory.
Rule 2: a reader of a body never reads a byte behind it.
Rule 3: memory is reused only when no reference to it is left, so that its pages need not be
allocated again for each body.
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
    from millrace.server.http.connection import ClientConnection


Bytes = NDArray[np.uint8]


class BufferPool:
    """A pool of buffers for large bodies."""

    def __init__(self, bytes_max: int = limits.HTTP_SPARE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._ready: dict[int, deque[Bytes]] = {}
        self._lent: dict[int, tuple[ref[Bytes], Bytes]] = {}

    @property
    def size(self) -> int:
        """Number of bytes that are ready for reuse."""
        return sum(whole * len(ready) for whole, ready in tuple(self._ready.items()))

    def take(self, size: int) -> memoryview:
        """Return a buffer of `size` bytes with arbitrary content, aligned to 16.

        Untouched memory takes no physical pages, so a new buffer is not zeroed.
        """
        whole = 1 << (size - 1).bit_length()
        ready = self._ready.get(whole)
        if ready:
            memory = ready.pop()
        else:
            memory = np.empty(whole, np.uint8)
        part = memory[:size]
        # Every view of these bytes refers to `part`, whose weak reference returns them to the pool.
        lent = ref(part, self._over)
        self._lent[id(lent)] = (lent, memory)
        return part.data

    def _over(self, lent: ref[Bytes]) -> None:
        """Return a buffer to the pool when no reference is left; runs on any thread, so that the
        bound is not exact."""
        _, memory = self._lent.pop(id(lent))
        if self.size + len(memory) <= self._bytes_max:
            self._ready.setdefault(len(memory), deque()).append(memory)


class LargeBody:
    """The buffer of one body while it is received."""

    __slots__ = ("_bytes", "_spare", "filled", "length")

    def __init__(self, length: int, spare: BufferPool) -> None:
        self.length = length
        self.filled = 0
        self._spare = spare
        self._bytes = spare.take(min(length, limits.HTTP_LARGE_STEP_BYTES))

    @property
    def is_whole(self) -> bool:
        """True if the last byte was received."""
        return self.filled == self.length

    def room(self) -> memoryview:
        """Return the free part of the buffer, growing it if full; never empty before the body is
        whole."""
        if self.filled == len(self._bytes):
            more = self._spare.take(min(self.length, 2 * len(self._bytes)))
            more[: self.filled] = self._bytes
            self._bytes = more
        return self._bytes[self.filled :]

    def take(self, data: memoryview) -> int:
        """Copy the body's part of `data` into the buffer and return its size."""
        at = 0
        while at < len(data) and not self.is_whole:
            room = self.room()
            size = min(len(room), len(data) - at)
            room[:size] = data[at : at + size]
            self.filled += size
            at += size
        return at

    def whole(self) -> memoryview:
        """Return the whole body, aligned to 8."""
        assert self.is_whole
        return self._bytes


class BodyReader(asyncio.BufferedProtocol):
    """Replaces the connection as asyncio protocol while a large body is read."""

    def __init__(self, connection: ClientConnection, body: LargeBody) -> None:
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
