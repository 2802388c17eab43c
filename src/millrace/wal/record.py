"""Binary format of the WAL: segment header and record header; see docs/formats/log.md.

Rule 1: nothing here reads or writes a file; buffers come in and go out.
Rule 2: a checksum is computed buffer by buffer; the payload is never joined.
Rule 3: a header that does not decode is `None`; `replay` decides whether it is torn or damaged.
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
"""Prefix of the magic of all versions: a later version is refused, not overwritten."""

RECORD_MAGIC = b"MRR1"
RECORD_HEADER_BYTES = 64

DATA = 1
"""A record that carries a payload."""

END = 2
"""An end mark without a payload; it proves that the record before it was written completely."""

FIRST_SERIAL = 1
"""Serial number of the first record of a log."""

_SEGMENT = struct.Struct("<8s16sQQIQQ")
_CRC = struct.Struct("<I")
SEGMENT_USED_BYTES = _SEGMENT.size + _CRC.size
"""Used bytes of a segment's first sector; they fit into one 512-byte sector."""

_HEAD = struct.Struct("<4sI")
_REST = struct.Struct("<IB3xQQQQ16x")
_REST_OFFSET = _HEAD.size

ZEROS = memoryview(bytes(SECTOR_BYTES))
"""Source of the padding."""


class LogMark(NamedTuple):
    """A point between two records at which replay can begin; marks of one log compare by age."""

    generation: int
    offset: int
    """Offset of the next record of this generation, if there is one."""
    prev_crc: int
    """Checksum of the previous record, which the next record must repeat."""
    serial: int
    """Serial number of the next record."""


class LogPosition(NamedTuple):
    """Location of a payload, or of a part of one, while its generation is in the log."""

    generation: int
    offset: int
    """Offset of the first byte in the segment's file."""
    length: int

    def part(self, *, start: int, length: int) -> LogPosition:
        """Return the location of `length` of its bytes, from byte `start` on."""
        return LogPosition(self.generation, self.offset + start, length)


class RecordHeader(NamedTuple):
    """The header before a payload."""

    crc: int
    prev_crc: int
    kind: int
    generation: int
    nonce: int
    serial: int
    length: int


class SegmentHeader(NamedTuple):
    """The first sector of a segment in use."""

    log_id: bytes
    generation: int
    nonce: int
    prev_crc: int
    first_serial: int
    size: int
    """Size of the file in bytes: a truncated file is damage, not the end of the log."""


def record_span(length: int) -> int:
    """Return the size of a record with a payload of `length` bytes, in whole sectors."""
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
    """Return the header of the record and its checksum; `length` is the sum over all buffers."""
    rest = _REST.pack(prev_crc, kind, segment.generation, segment.nonce, serial, length)
    crc = crc32c(rest)
    for buffer in buffers:
        # crc32c releases the GIL from 32 KiB on.
        crc = crc32c(buffer, crc)
    return _HEAD.pack(RECORD_MAGIC, crc) + rest, crc


def decode_record(data: Buffer) -> RecordHeader | None:
    """Return the header at the beginning of `data`, or None; the checksum is not verified."""
    if len(view := memoryview(data)) < RECORD_HEADER_BYTES:
        return None
    magic, crc = _HEAD.unpack_from(view)
    if magic != RECORD_MAGIC:
        return None
    return RecordHeader(crc, *_REST.unpack_from(view, _REST_OFFSET))


def has_valid_checksum(header: RecordHeader, data: memoryview, payload: Buffer) -> bool:
    """Return True if the checksum in `header`, decoded from `data`, matches header and payload."""
    rest = data[_REST_OFFSET:RECORD_HEADER_BYTES]
    return crc32c(payload, crc32c(rest)) == header.crc


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first sector of a segment with this header."""
    body = _SEGMENT.pack(SEGMENT_MAGIC, *header)
    return (body + _CRC.pack(crc32c(body))).ljust(SECTOR_BYTES, b"\0")


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """Return the segment header, or None if the sector holds no valid one."""
    if len(data) < SEGMENT_USED_BYTES:
        return None
    magic, *fields = _SEGMENT.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _SEGMENT.size)
    if magic != SEGMENT_MAGIC or crc32c(data[: _SEGMENT.size]) != crc:
        return None
    return SegmentHeader(*fields)
