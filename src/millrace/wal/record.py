"""The bytes of the log: segment header and record header; docs/formats/log.md shows them.

Rule 1: nothing here reads or writes a file; buffers come in and go out.
Rule 2: a payload is summed buffer by buffer and never joined.
Rule 3: what does not decode is `None`; the reader decides whether that is an end or damage.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from millrace.limits import SECTOR_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEGMENT_MAGIC = b"MRSEG1\0\0"
SEGMENT_FAMILY = b"MRSEG"
"""What the magic of every version begins with: a later one is refused, not overwritten."""

RECORD_MAGIC = b"MRR1"
RECORD_HEADER_BYTES = 64

DATA = 1
"""A record that carries a payload."""

END = 2
"""An end mark: no payload; it proves that the record before it was whole."""

FIRST_SERIAL = 1
"""The number of the first record of a log."""

_SEGMENT = struct.Struct("<8s16sQQIQQ")
_CRC = struct.Struct("<I")
SEGMENT_USED_BYTES = _SEGMENT.size + _CRC.size
"""The part of a segment's first sector that means something; it lies in one 512-byte sector."""

_HEAD = struct.Struct("<4sI")
_REST = struct.Struct("<IB3xQQQQ16x")
_REST_OFFSET = _HEAD.size

ZEROS = memoryview(bytes(SECTOR_BYTES))
"""Padding is sliced from it."""


class Mark(NamedTuple):
    """A place between two records, where replay can begin; marks of one log compare by age."""

    generation: int
    offset: int
    """Where the next record of this generation begins, if it holds one."""
    prev_crc: int
    """The checksum that the next record must name as its predecessor's."""
    serial: int
    """The next record's number."""


class Position(NamedTuple):
    """Where a payload, or a part of one, lies while its generation is in the log."""

    generation: int
    offset: int
    """Of the first byte, in the segment's file."""
    length: int

    def part(self, *, start: int, length: int) -> Position:
        """Return the place of `length` bytes of it, from its byte `start` on."""
        return Position(self.generation, self.offset + start, length)


class RecordHeader(NamedTuple):
    """What stands before a payload."""

    crc: int
    prev_crc: int
    kind: int
    generation: int
    nonce: int
    serial: int
    length: int


class SegmentHeader(NamedTuple):
    """What stands in the first sector of a segment in use."""

    log_id: bytes
    generation: int
    nonce: int
    prev_crc: int
    first_serial: int
    size: int
    """Bytes of the whole file: a file that was cut short is damage, not an end."""


def span_of(length: int) -> int:
    """Return how many bytes a record with such a payload takes: whole sectors."""
    return (RECORD_HEADER_BYTES + length + SECTOR_BYTES - 1) & -SECTOR_BYTES


def encode_record(
    kind: int,
    segment: SegmentHeader,
    *,
    serial: int,
    prev_crc: int,
    buffers: Sequence[Buffer],
    length: int,
) -> tuple[bytes, int]:
    """Return the header of the record and its checksum; `length` is that of all buffers."""
    rest = _REST.pack(prev_crc, kind, segment.generation, segment.nonce, serial, length)
    crc = crc32c(rest)
    for buffer in buffers:
        # From 32 KiB on this releases the GIL by itself.
        crc = crc32c(buffer, crc)
    return _HEAD.pack(RECORD_MAGIC, crc) + rest, crc


def decode_record(data: Buffer) -> RecordHeader | None:
    """Return the header at the beginning of `data`, or None if none is there. Nothing is summed."""
    if len(view := memoryview(data)) < RECORD_HEADER_BYTES:
        return None
    magic, crc = _HEAD.unpack_from(view)
    if magic != RECORD_MAGIC:
        return None
    return RecordHeader(crc, *_REST.unpack_from(view, _REST_OFFSET))


def is_whole(header: RecordHeader, data: memoryview, payload: Buffer) -> bool:
    """Tell whether `header`, decoded from `data`, and the payload have the sum that it states."""
    rest = data[_REST_OFFSET:RECORD_HEADER_BYTES]
    return crc32c(payload, crc32c(rest)) == header.crc


def encode_segment(header: SegmentHeader) -> bytes:
    """Return the segment's first sector."""
    body = _SEGMENT.pack(SEGMENT_MAGIC, *header)
    return (body + _CRC.pack(crc32c(body))).ljust(SECTOR_BYTES, b"\0")


def decode_segment(data: bytes) -> SegmentHeader | None:
    """Return the header, or None where the sector holds no whole one."""
    if len(data) < SEGMENT_USED_BYTES:
        return None
    magic, *fields = _SEGMENT.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _SEGMENT.size)
    if magic != SEGMENT_MAGIC or crc32c(data[: _SEGMENT.size]) != crc:
        return None
    return SegmentHeader(*fields)
