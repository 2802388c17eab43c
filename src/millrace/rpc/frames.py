"""Frames: the unit of calls and answers on a stream of bytes. No I/O.

    bytes of the head (4) | bytes of the blobs (4) | head, padded to 8 | blobs

Rule 1: both lengths are checked before memory is allocated for them.
Rule 2: after an error the rest of the stream is not read: the start of the next frame is unknown.
Rule 3: each byte of the blobs is read once, so that a frame never yields more than its size.
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
    """A received frame: its head and its blobs."""

    head: Buffer
    blobs: BlobReader
    """Reader over memory that nobody else uses, aligned to 8 bytes."""


class BlobReader:
    """Reads the blobs of a frame in order, each byte at most once."""

    __slots__ = ("_data", "_end")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._end = 0
        """End of the blob that was read last."""

    def take(self, begin: int, size: int) -> memoryview | None:
        """Return the blob at `begin`, or None if it is out of order, out of bounds or was read
        before."""
        if begin & 7 or size < 0 or not self._end <= begin <= begin + size <= len(self._data):
            return None
        self._end = begin + size
        return self._data[begin : self._end]


class FrameReader:
    """Splits the byte stream of one connection into frames."""

    def __init__(
        self,
        *,
        head_bytes_max: int = limits.WIRE_HEAD_BYTES_MAX,
        blob_bytes_max: int = limits.WIRE_BLOB_BYTES_MAX,
        frames_max: int | None = None,
        heads_bytes_max: int | None = None,
    ) -> None:
        """Set bounds for the lengths of heads and blobs, and optionally for each call of `feed`.

        `frames_max` and `heads_bytes_max` bound the frames that one `feed` returns, and the sum of
        their heads: each frame costs an object, even without calls.
        """
        self._frames_max = frames_max
        self._heads_bytes_max = heads_bytes_max
        self._is_bounded = frames_max is not None or heads_bytes_max is not None
        self._head_bytes_max = head_bytes_max
        self._blob_bytes_max = blob_bytes_max
        self._parts: list[Buffer] = []
        self._held = 0
        self._wanted = _LENGTHS.size
        """Number of bytes before which no frame can be complete."""

    @property
    def is_between(self) -> bool:
        """True if no byte of a next frame was received."""
        return not self._held

    def feed(self, data: Buffer) -> list[Frame]:
        """Add received bytes; return the frames that are complete now.

        If the buffer is a view that nobody else uses, complete frames are not copied.

        Raises:
            TooLarge: a length exceeds its bound, or there are too many frames.
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
            # Blobs get their own memory: rows are retained longer than the rest of the buffer.
            own = BlobReader(memoryview(data[blobs_at:end])) if blobs else NO_BLOBS
            frames.append(Frame(data[begin : begin + head], own))
            at = end
        self._held = size - at
        if self._held:
            self._parts = [data[at:]]
        return frames

    def _check(self, frames: int, heads: int) -> None:
        """Check the bounds, given the number of earlier frames and the sum of all heads."""
        for size, limit, unit in (
            (frames + 1, self._frames_max, "frames"),
            (heads, self._heads_bytes_max, "bytes of heads"),
        ):
            if limit is not None and size > limit:
                raise TooLarge(
                    f"there are {size} {unit}, up to {limit} are allowed; ask for less at once",
                    field="body",
                    limit=limit,
                )

    def _lengths(self, data: Buffer, at: int) -> tuple[int, int]:
        head, blobs = _LENGTHS.unpack_from(data, at)
        for size, limit, part in (
            (head, self._head_bytes_max, "head"),
            (blobs, self._blob_bytes_max, "blobs"),
        ):
            if size > limit:
                raise TooLarge(
                    f"the {part} of a frame has {size} bytes, up to {limit} are allowed; ask for "
                    "less at once",
                    field="frame",
                    limit=limit,
                )
        return head, blobs


NO_BLOBS = BlobReader(memoryview(b""))
"""The reader of a frame without blobs."""


def encode_frame(head: bytes, blobs: BlobWriter | None = None) -> list[Buffer]:
    """Encode a frame as buffers, to be written one after the other."""
    size = blobs.size if blobs is not None else 0
    out: list[Buffer] = [b"".join((_LENGTHS.pack(len(head), size), head, _ZEROS[: -len(head) & 7]))]
    if blobs is not None:
        out += blobs.buffers
    return out


def _padded(length: int) -> int:
    return (length + 7) & ~7


class BlobWriter:
    """Collects the blobs that follow the head of a frame, each aligned to 8 bytes."""

    __slots__ = ("buffers", "inline", "size")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.size = 0
        self.inline = 0
        """Bytes of messages that are in the head instead."""

    def takes_inline(self, size: int) -> bool:
        """Return True if a message of `size` bytes may be put in the head, and count it."""
        if size > limits.WIRE_INLINE_BYTES_MAX or self.inline > limits.WIRE_BURST_BYTES:
            return False
        self.inline += size
        return True

    def add(self, buffers: Sequence[Buffer], size: int) -> list[int]:
        """Add a blob; return its offset and its size in bytes."""
        place = [self.size, size]
        self.buffers += buffers
        self.size += size
        pad = -size & 7
        if pad:
            self.buffers.append(_ZEROS[:pad])
            self.size += pad
        return place
