"""Frames: how calls and answers are cut out of a stream of bytes, without I/O.

    bytes of the head (4) | bytes of the blobs (4) | head, padded to 8 | blobs

Rule 1: both lengths are judged before anything is kept for them.
Rule 2: after an error nothing more of the stream is read: where the next frame begins is unknown.
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
    blobs: memoryview
    """Of bytes that nobody else has, at a multiple of 8."""


class Splitter:
    """Cuts frames out of the bytes of one connection."""

    def __init__(
        self,
        *,
        head_bytes_max: int = limits.WIRE_HEAD_BYTES_MAX,
        blob_bytes_max: int = limits.WIRE_BLOB_BYTES_MAX,
    ) -> None:
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
            TooLarge: a length beyond its bound.
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
        at, size = 0, len(data)
        self._wanted = _LENGTHS.size
        while size - at >= _LENGTHS.size:
            head, blobs = self._lengths(data, at)
            begin = at + _LENGTHS.size
            blobs_at = begin + _padded(head)
            end = blobs_at + blobs
            if end > size:
                self._wanted = end - at
                break
            # The blobs get bytes of their own: rows are kept for longer than what came with them.
            own = memoryview(data[blobs_at:end]) if blobs else _NOTHING
            frames.append(Frame(data[begin : begin + head], own))
            at = end
        self._held = size - at
        if self._held:
            self._parts = [data[at:]]
        return frames

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


_NOTHING = memoryview(b"")


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
