"""Frames: how calls and answers are cut out of a stream of bytes, without I/O.

    bytes of the head (4) | bytes of the blobs (4) | head, padded to 8 | blobs

Rule 1: both lengths are judged before anything is kept for them.
Rule 2: after an error nothing more of the stream is read: where the next frame begins is unknown.
Rule 3: each byte of the blobs is read once, so that a frame holds no more than it has bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from millrace import limits
from millrace.errors import TooLarge

Buffer = bytes | bytearray | memoryview

_LENGTHS = struct.Struct("<II")
_ZEROS = bytes(8)


class Frame(NamedTuple):
    """What was sent at once."""

    head: Buffer
    blobs: Pieces
    """Over bytes that nobody else has, at a multiple of 8."""


class Pieces:
    """The blobs of a frame, as its calls or answers read them: in their order, each byte once."""

    __slots__ = ("_data", "_end")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._end = 0
        """Where the last piece ends that was read."""

    def take(self, begin: int, size: int) -> memoryview | None:
        """Return the piece at `begin`, or None where it is out of place or was read before."""
        if begin & 7 or size < 0 or not self._end <= begin <= begin + size <= len(self._data):
            return None
        self._end = begin + size
        return self._data[begin : self._end]


class Splitter:
    """Cuts frames out of the bytes of one connection."""

    def __init__(
        self,
        *,
        head_bytes_max: int = limits.WIRE_HEAD_BYTES_MAX,
        blob_bytes_max: int = limits.WIRE_BLOB_BYTES_MAX,
        frames_max: int | None = None,
        heads_bytes_max: int | None = None,
    ) -> None:
        """Bound the frames that one `feed` returns, too, and their heads together: each frame is
        an object, though it may have no calls."""
        self._frames_max = frames_max
        self._heads_bytes_max = heads_bytes_max
        self._is_bounded = frames_max is not None or heads_bytes_max is not None
        self._head_bytes_max = head_bytes_max
        self._blob_bytes_max = blob_bytes_max
        self._parts: list[Buffer] = []
        self._held = 0
        self._wanted = _LENGTHS.size
        """So many bytes are needed before it is worth looking."""

    @property
    def is_between(self) -> bool:
        """Whether nothing of a next frame has come."""
        return not self._held

    def feed(self, data: Buffer) -> list[Frame]:
        """Take bytes in; returns the frames that are whole now.

        Of a view, which is of bytes that nobody else has, nothing is copied if it is whole frames.

        Raises:
            TooLarge: a length beyond its bound, or too many frames.
        """
        if self._held + len(data) < self._wanted:
            if data:
                self._parts.append(data)
                self._held += len(data)
            return []
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts = []
        frames: list[Frame] = []
        at, size, heads = 0, len(data), 0
        self._wanted = _LENGTHS.size
        while size - at >= _LENGTHS.size:
            head, blobs = self._lengths(data, at)
            begin = at + _LENGTHS.size
            blobs_at = begin + _padded(head)
            end = blobs_at + blobs
            if end > size:
                self._wanted = end - at
                break
            if self._is_bounded:
                heads += head
                self._check(len(frames), heads)
            # The blobs get bytes of their own: rows are kept for longer than what came with them.
            own = Pieces(memoryview(data[blobs_at:end])) if blobs else NO_BLOBS
            frames.append(Frame(data[begin : begin + head], own))
            at = end
        self._held = size - at
        if self._held:
            self._parts = [data[at:]]
        return frames

    def _check(self, frames: int, heads: int) -> None:
        """Check how many frames were cut out before, and the bytes of all heads."""
        for size, limit, what in (
            (frames + 1, self._frames_max, "frames"),
            (heads, self._heads_bytes_max, "bytes of heads"),
        ):
            if limit is not None and size > limit:
                raise TooLarge(
                    f"there are {size} {what}, up to {limit} are allowed; ask for less at once",
                    field="body",
                    limit=limit,
                )

    def _lengths(self, data: Buffer, at: int) -> tuple[int, int]:
        head, blobs = _LENGTHS.unpack_from(data, at)
        for size, most, what in (
            (head, self._head_bytes_max, "head"),
            (blobs, self._blob_bytes_max, "blobs"),
        ):
            if size > most:
                raise TooLarge(
                    f"the {what} of a frame has {size} bytes, up to {most} are allowed; ask for "
                    "less at once",
                    field="frame",
                    limit=most,
                )
        return head, blobs


NO_BLOBS = Pieces(memoryview(b""))
"""The blobs of a frame that has none."""


def frame(head: bytes, blobs: Blobs | None = None) -> list[Buffer]:
    """A frame as buffers to be written one after the other."""
    size = blobs.size if blobs is not None else 0
    out: list[Buffer] = [b"".join((_LENGTHS.pack(len(head), size), head, _ZEROS[: -len(head) & 7]))]
    if blobs is not None:
        out += blobs.buffers
    return out


def _padded(length: int) -> int:
    return (length + 7) & ~7


class Blobs:
    """What is sent beside the calls of a frame: each piece begins at a multiple of 8."""

    __slots__ = ("buffers", "inline", "size")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.size = 0
        self.inline = 0
        """Bytes of messages that stand in the head instead."""

    def takes_inline(self, size: int) -> bool:
        """Whether a message of so many bytes may stand in the head."""
        if size > limits.WIRE_INLINE_BYTES_MAX or self.inline > limits.WIRE_BURST_BYTES:
            return False
        self.inline += size
        return True

    def add(self, buffers: Sequence[Buffer], size: int) -> list[int]:
        """Where these buffers begin, and how many bytes they have."""
        place = [self.size, size]
        self.buffers += buffers
        self.size += size
        pad = -size & 7
        if pad:
            self.buffers.append(_ZEROS[:pad])
            self.size += pad
        return place
