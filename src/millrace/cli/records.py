"""The records of a log as far as they can be read, damaged or not.

`millrace.wal.replay` refuses a damaged log; here the damage is one more thing to show. Nothing is
decided by what is found here.

Rule 1: a record counts if its own checksum is right and it names the generation and nonce of its
segment. Whether it follows its predecessor is said, and not required.
Rule 2: behind a bad record, the next whole one of the generation is looked for, at every sector.
Rule 3: no index is needed, so that the log can be shown when the index cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from millrace import limits
from millrace.errors import MillraceError
from millrace.wal.files import Disk, File
from millrace.wal.record import (
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RecordHeader,
    SegmentHeader,
    decode_record,
    decode_segment,
    is_whole,
    span_of,
)
from millrace.wal.segment_pool import SEGMENT_SUFFIX

SECTOR = limits.SECTOR_BYTES


class SegmentFile(NamedTuple):
    """A segment, and what its header says; None if it has no whole one."""

    name: str
    size: int
    header: SegmentHeader | None
    problem: str | None = None

    @property
    def generation(self) -> int:
        return self.header.generation if self.header is not None else 0


class Record(NamedTuple):
    """A whole record."""

    segment: SegmentFile
    offset: int
    header: RecordHeader
    payload: memoryview
    follows: bool
    """It names the checksum and the number of the record before it."""


class Gap(NamedTuple):
    """Bytes between two records of a generation that hold no whole record: damage."""

    segment: SegmentFile
    offset: int
    end: int


def list_segments(disk: Disk, folder: str) -> list[SegmentFile]:
    """Every segment, oldest generation first, those that were never used last."""
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
                found.append(SegmentFile(path, file.size, decode_segment(file.read(SECTOR, 0))))
        except MillraceError as error:
            found.append(SegmentFile(path, 0, None, str(error)))
    return sorted(found, key=lambda one: (one.header is None, one.generation, one.name))


def read_records(disk: Disk, segment: SegmentFile) -> Iterator[Record | Gap]:
    """The records of a segment's present life, and the damage between them."""
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
                yield Gap(segment, offset, later)
                offset = later
                found = _whole_at(file, segment.size, header, offset)
                if found is None:
                    return
            record, payload = found
            follows = record.serial == serial and record.prev_crc == crc
            yield Record(segment, offset, record, payload, follows)
            offset += span_of(record.length)
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
    return (record, payload) if is_whole(record, memoryview(data), payload) else None


def _find_later(
    file: File, size: int, segment: SegmentHeader, offset: int, serial: int
) -> int | None:
    """Where the next whole record with a higher number than the missing one begins.

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
