"""A lenient reader of WAL records, for damaged logs.

`millrace.wal.replay` refuses a damaged log; this reader returns damage as gaps between records. It
is for display and diagnosis only.

Rule 1: a record is valid if its checksum matches and it names the generation and nonce of its
segment. `follows` says whether it continues its predecessor, which is not required.
Rule 2: after a damaged record, every sector is searched for the next valid one of the generation.
Rule 3: no index is needed, so that the log can be shown when the index is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from millrace import limits
from millrace.errors import MillraceError
from millrace.wal.disk import Disk, File
from millrace.wal.record import (
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RecordHeader,
    SegmentHeader,
    decode_record,
    decode_segment_header,
    has_valid_checksum,
    record_span,
)
from millrace.wal.segment_pool import SEGMENT_SUFFIX

SECTOR = limits.SECTOR_BYTES


class SegmentFile(NamedTuple):
    """A segment file with its header; None if the header is invalid."""

    name: str
    size: int
    header: SegmentHeader | None
    problem: str | None = None

    @property
    def generation(self) -> int:
        return self.header.generation if self.header is not None else 0


class WalRecord(NamedTuple):
    """A valid record."""

    segment: SegmentFile
    offset: int
    header: RecordHeader
    payload: memoryview
    follows: bool
    """True if it names the checksum and number of the record before it."""


class WalGap(NamedTuple):
    """Damage: bytes between two records of a generation without a valid record."""

    segment: SegmentFile
    offset: int
    end: int


def list_segments(disk: Disk, folder: str) -> list[SegmentFile]:
    """Return all segments, oldest generation first, unused ones last."""
    found: list[SegmentFile] = []
    for name in disk.names(folder):
        stem = name.removesuffix(SEGMENT_SUFFIX)
        if stem == name or not stem.isdigit():
            continue
        path = f"{folder}/{name}"
        try:
            with ExitStack() as stack:
                file = disk.open(path)
                stack.callback(file.close)
                found.append(
                    SegmentFile(path, file.size, decode_segment_header(file.read(SECTOR, 0)))
                )
        except MillraceError as error:
            found.append(SegmentFile(path, 0, None, str(error)))
    return sorted(found, key=lambda one: (one.header is None, one.generation, one.name))


def read_records(disk: Disk, segment: SegmentFile) -> Iterator[WalRecord | WalGap]:
    """Yield the records of a segment's current generation, and the gaps between them."""
    header = segment.header
    if header is None:
        return
    file = disk.open(segment.name)
    try:
        offset, serial, crc = SECTOR, header.first_serial, header.prev_crc
        while True:
            found = _whole_at(file, segment.size, header, offset)
            if found is None:
                later = _find_later(file, segment.size, header, offset, serial)
                if later is None:
                    return
                yield WalGap(segment, offset, later)
                offset = later
                found = _whole_at(file, segment.size, header, offset)
                if found is None:
                    return
            record, payload = found
            follows = record.serial == serial and record.prev_crc == crc
            yield WalRecord(segment, offset, record, payload, follows)
            offset += record_span(record.length)
            serial, crc = record.serial + 1, record.crc
    finally:
        file.close()


def _whole_at(
    file: File, size: int, segment: SegmentHeader, offset: int
) -> tuple[RecordHeader, memoryview] | None:
    if offset + RECORD_HEADER_BYTES > size:
        return None
    data = file.read(RECORD_HEADER_BYTES, offset)
    record = decode_record(data)
    if (
        record is None
        or record.generation != segment.generation
        or record.nonce != segment.nonce
        or record.length > size - offset - RECORD_HEADER_BYTES
    ):
        return None
    payload = memoryview(file.read(record.length, offset + RECORD_HEADER_BYTES))
    return (record, payload) if has_valid_checksum(record, memoryview(data), payload) else None


def _find_later(
    file: File, size: int, segment: SegmentHeader, offset: int, serial: int
) -> int | None:
    """Return the offset of the next valid record with a higher number than the missing one.

    A payload may contain a copy of an earlier record, but none of a later one.
    """
    offset += SECTOR
    while offset < size:
        piece = file.read(min(limits.REPLAY_READ_BYTES, size - offset), offset)
        if not piece:
            return None
        for place in range(0, len(piece), SECTOR):
            if piece[place : place + len(RECORD_MAGIC)] == RECORD_MAGIC:
                found = _whole_at(file, size, segment, offset + place)
                if found is not None and found[0].serial > serial:
                    return offset + place
        offset += len(piece)
    return None
