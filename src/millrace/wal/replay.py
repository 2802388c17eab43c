"""WAL replay: reads records from a mark to the end, and tells a torn record from damage.

Rule 1: each record names its predecessor's checksum and its own serial number; the log ends at the
first position without such a record.
Rule 2: a generation ends where the header of the next one says that it begins. Only the newest may
end in a torn record, and only if no valid record of that generation follows: one record is in
flight at a time, so that nothing behind a torn record can have been written.
Rule 3: everything else is `Corrupt` and names file and offset. No record is skipped.
Rule 4: the file is read, not mapped: a bad sector then raises an error instead of killing the
process. Nothing is written here.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from millrace import errors, limits
from millrace.wal.disk import Disk, File
from millrace.wal.record import (
    DATA,
    END,
    FIRST_SERIAL,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    SEGMENT_FAMILY,
    SEGMENT_MAGIC,
    LogMark,
    LogPosition,
    RecordHeader,
    SegmentHeader,
    decode_record,
    decode_segment_header,
    has_valid_checksum,
    record_span,
)
from millrace.wal.segment import Segment, SegmentDamage
from millrace.wal.segment_pool import SEGMENT_SUFFIX

SECTOR = limits.SECTOR_BYTES

ORIGIN = LogMark(generation=0, offset=SECTOR, prev_crc=0, serial=FIRST_SERIAL)
"""The end of an empty log."""


class LastRecord(NamedTuple):
    """Location of the last record of the log, if no generation was begun after it."""

    segment: Segment
    offset: int
    span: int


class Replay:
    """An iterator over the records of the log in `folder` from `start` on; afterwards see `end`.

    `read_again` iterates once more, even after the log was opened.

    Args:
        start: the mark of the last checkpoint; None: the very first record.
        needed_from: the oldest generation that is still needed, at most that of `start`. Older
            segments are free; the default keeps them all.
        is_partial: begin with the oldest existing generation, although older records are gone; for
            read-only tools.

    Raises:
        Corrupt: the folder must not be used; the message says where and what to do.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str = "log",
        *,
        start: LogMark | None = None,
        needed_from: int = 0,
        is_partial: bool = False,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.start = None if start == ORIGIN else start
        if needed_from > self._first():
            raise errors.Invalid("the start itself is needed", field="needed_from")
        self.survey = SegmentSurvey(disk, folder, needed_from=needed_from)
        used = self.survey.used
        chain = [segment for segment in used if segment.generation >= self._first()]
        try:
            self.end = self._begin(chain, is_partial=is_partial)
            """The mark after the last record that was read."""
        except errors.Fatal:
            self.close()
            raise
        self.tail: LastRecord | None = None
        self._chain = chain
        self._read: list[tuple[Segment, LogMark, int]] = []
        """Completed ranges: the segment, its first mark and its end offset."""
        self._records = self._walk_all()

    def __iter__(self) -> Iterator[tuple[LogPosition, memoryview]]:
        """Yield position and payload of every data record, oldest first.

        A payload is a view of a larger buffer and safe to keep; copy payloads that are kept for
        long.
        """
        return self._records

    def read_again(self) -> Iterator[tuple[LogPosition, memoryview]]:
        """Yield the records of the completed iteration once more.

        Records need not be kept in memory: the first pass verifies them, the second one uses them.
        The log may have been opened in between, but must not have released any segment.

        Raises:
            Corrupt: a record has changed since.
        """
        for segment, mark, end in self._read:
            window, header = _Window(segment), _header(segment)
            while mark.offset < end:
                result = _record_at(window, header, mark)
                if result is None:
                    raise corrupt(segment.name, mark.offset, "a record changed while it was read")
                record, payload = result
                if record.kind == DATA:
                    place = mark.offset + RECORD_HEADER_BYTES
                    yield LogPosition(mark.generation, place, record.length), payload
                mark = _mark_after(record, mark)

    def verify_lazily(self) -> None:
        """Verify the segments before the start when they are first read."""
        if self.start is None:
            return
        used = self.survey.used
        for segment, following in itertools.pairwise(used):
            if segment.generation < self.start.generation:
                header = _header(following)
                until = LogMark(header.generation, SECTOR, header.prev_crc, header.first_serial)
                segment.verify_on_first_read(partial(find_damage, segment, until))
        for segment in used:
            if segment.generation == self.start.generation:
                segment.verify_on_first_read(partial(find_damage, segment, self.start))

    def empty_segments(self) -> list[Segment]:
        """Return the segments without records that no mark names; call it after the iteration."""
        return [
            segment
            for segment in self._chain
            if segment.end == SECTOR and segment.generation != self._first()
        ]

    def close(self) -> None:
        """Close the files, unless a log was opened with them."""
        self.survey.close()

    def _first(self) -> int:
        return self.start.generation if self.start is not None else 0

    def _begin(self, chain: list[Segment], *, is_partial: bool) -> LogMark:
        """Return the mark to begin at, after checking that the log contains it."""
        start = self.start
        if start is None:
            if not chain:
                return ORIGIN
            header = _header(chain[0])
            if header.first_serial != FIRST_SERIAL and not is_partial:
                raise corrupt(
                    chain[0].name,
                    0,
                    f"the log begins with record {header.first_serial}, and no checkpoint says "
                    "that the records before it are no longer needed",
                )
            return LogMark(header.generation, SECTOR, header.prev_crc, header.first_serial)
        if not chain or chain[0].generation != start.generation:
            raise corrupt(
                self.folder,
                0,
                f"generation {start.generation}, which the checkpoint names, is gone",
            )
        if self._reach(chain[0], start.offset) != start:
            raise corrupt(
                chain[0].name,
                start.offset,
                "the log is not the one that the checkpoint was made of",
            )
        return start

    def _reach(self, segment: Segment, offset: int) -> LogMark:
        """Follow the record headers of a segment up to `offset`, without verifying payloads."""
        header = _header(segment)
        mark = LogMark(header.generation, SECTOR, header.prev_crc, header.first_serial)
        while mark.offset < offset:
            record = decode_record(segment.file.read(RECORD_HEADER_BYTES, mark.offset))
            if record is None or not _follows(record, header, mark):
                break
            mark = _mark_after(record, mark)
        return mark

    # --- Walking -----------------------------------------------------------------------------

    def _walk_all(self) -> Iterator[tuple[LogPosition, memoryview]]:
        for place, segment in enumerate(self._chain):
            following = self._chain[place + 1] if place + 1 < len(self._chain) else None
            header = _header(segment)
            if header.generation != self.end.generation:
                self.end = self.end._replace(generation=header.generation, offset=SECTOR)
            segment.end = self.end.offset
            begin = self.end
            yield from self._walk(segment, following)
            self._read.append((segment, begin, segment.end))

    def _walk(
        self, segment: Segment, following: Segment | None
    ) -> Iterator[tuple[LogPosition, memoryview]]:
        window = _Window(segment)
        header = _header(segment)
        successor = following.header if following is not None else None
        self.tail = None
        while True:
            mark = self.end
            if successor is not None and mark.serial == successor.first_serial:
                if mark.prev_crc == successor.prev_crc:
                    return
                raise corrupt(
                    segment.name,
                    mark.offset,
                    f"generation {successor.generation} goes on elsewhere",
                )
            result = _record_at(window, header, mark)
            if result is None:
                break
            record, payload = result
            self.end = _mark_after(record, mark)
            segment.end = self.end.offset
            self.tail = LastRecord(segment, mark.offset, segment.end - mark.offset)
            if record.kind == DATA:
                place = mark.offset + RECORD_HEADER_BYTES
                yield LogPosition(mark.generation, place, record.length), payload
        if following is not None:
            raise corrupt(
                segment.name, mark.offset, f"a bad record, but {following.name} follows it"
            )
        later = _find_later_record(window, header, mark)
        if later is not None:
            raise corrupt(
                segment.name, mark.offset, f"a bad record, but a whole one follows at {later}"
            )


def verify_segment(segment: Segment, until: LogMark) -> None:
    """Verify every record of the segment up to the mark `until`, which must follow the last one.

    Replay begins at a mark; older records are needed, too, until their rows are sealed.

    Raises:
        Corrupt: a record is damaged.
    """
    for _ in read_segment(segment, until):
        pass


def find_damage(segment: Segment, until: LogMark) -> SegmentDamage | None:
    """Verify the segment; return its damage with the ranges of valid records, or None.

    Each record has its own checksum and names its generation: if one is damaged, the rows in the
    others are valid all the same. Only rows are read here; all other changes of these records are
    in the index.
    """
    try:
        verify_segment(segment, until)
    except errors.Corrupt as error:
        return SegmentDamage(error, _valid_ranges(segment, until))
    return None


def _valid_ranges(segment: Segment, until: LogMark) -> list[tuple[int, int]]:
    """Return begin and end offsets of the valid records."""
    window, header = _Window(segment), _header(segment)
    ranges: list[tuple[int, int]] = []
    mark = first_mark(header)
    while mark.serial < until.serial:
        record = _record_at(window, header, mark)
        if record is not None:
            end = mark.offset + RECORD_HEADER_BYTES + record[0].length
            ranges.append((mark.offset, end))
            mark = _mark_after(record[0], mark)
            continue
        offset = _find_later_record(window, header, mark)
        later = None if offset is None else decode_record(window.at(offset, RECORD_HEADER_BYTES))
        if offset is None or later is None:
            break
        mark = mark._replace(offset=offset, prev_crc=later.prev_crc, serial=later.serial)
    if until.generation == header.generation:
        # The replay has verified the records after this mark.
        ranges = [(begin, end) for begin, end in ranges if end <= until.offset]
        ranges.append((until.offset, segment.size))
    return ranges


def read_segment(segment: Segment, until: LogMark) -> Iterator[tuple[LogPosition, memoryview]]:
    """Yield position and payload of the segment's data records up to `until`, each verified.

    Raises:
        Corrupt: a record is damaged, or they do not lead to `until`.
    """
    window, header = _Window(segment), _header(segment)
    mark = LogMark(header.generation, SECTOR, header.prev_crc, header.first_serial)
    while mark.serial < until.serial:
        result = _record_at(window, header, mark)
        if result is None:
            raise corrupt(segment.name, mark.offset, "a record that is still needed is damaged")
        record, payload = result
        if record.kind == DATA:
            place = mark.offset + RECORD_HEADER_BYTES
            yield LogPosition(mark.generation, place, record.length), payload
        mark = _mark_after(record, mark)
    if (mark.serial, mark.prev_crc) != (until.serial, until.prev_crc):
        raise corrupt(segment.name, mark.offset, "the records do not lead to what follows them")


class ReplayedRecord(NamedTuple):
    """A verified record, and the mark at which it begins."""

    mark: LogMark
    header: RecordHeader
    payload: memoryview

    def after(self) -> LogMark:
        """Return the mark after the record."""
        return _mark_after(self.header, self.mark)


def scan_records(
    segment: Segment, mark: LogMark, until: int | None
) -> Generator[ReplayedRecord, None, LogMark]:
    """Yield verified records from the mark on, up to the serial number `until` or to the end.

    Returns the mark after the last one. For tools that inspect a single segment.

    Raises:
        Corrupt: a valid record follows a bad one.
    """
    window, header = _Window(segment), _header(segment)
    while until is None or mark.serial < until:
        result = _record_at(window, header, mark)
        if result is None:
            valid_ranges = _find_later_record(window, header, mark)
            if valid_ranges is not None:
                what = f"a bad record, but a whole one follows at {valid_ranges}"
                raise corrupt(segment.name, mark.offset, what)
            break
        yield ReplayedRecord(mark, *result)
        mark = _mark_after(result[0], mark)
    return mark


def first_mark(header: SegmentHeader) -> LogMark:
    """Return the mark of a generation's first record."""
    return LogMark(header.generation, SECTOR, header.prev_crc, header.first_serial)


class _Window:
    """A read buffer over a segment, filled in large pieces."""

    def __init__(self, segment: Segment) -> None:
        self._file = segment.file
        self.size = segment.size
        self._base = 0
        self._view = memoryview(b"")

    def at(self, offset: int, count: int) -> memoryview:
        """Return the bytes from `offset` on; fewer where the segment ends."""
        begin = offset - self._base
        if begin < 0 or begin + count > len(self._view):
            wanted = min(max(count, limits.REPLAY_READ_BYTES), self.size - offset)
            self._view = memoryview(self._file.read(wanted, offset))
            self._base, begin = offset, 0
        return self._view[begin : begin + count]


def _record_at(
    window: _Window, segment: SegmentHeader, mark: LogMark
) -> tuple[RecordHeader, memoryview] | None:
    """Return the record at the mark, or None if it is torn, damaged, or not the next one."""
    data = window.at(mark.offset, RECORD_HEADER_BYTES)
    header = decode_record(data)
    if header is None or not _follows(header, segment, mark):
        return None
    if header.length > window.size - mark.offset - RECORD_HEADER_BYTES:
        return None
    payload = window.at(mark.offset + RECORD_HEADER_BYTES, header.length)
    return (header, payload) if has_valid_checksum(header, data, payload) else None


def _follows(record: RecordHeader, segment: SegmentHeader, mark: LogMark) -> bool:
    return (
        record.generation == segment.generation
        and record.nonce == segment.nonce
        and record.serial == mark.serial
        and record.prev_crc == mark.prev_crc
        and record.kind in (DATA, END)
    )


def _mark_after(record: RecordHeader, mark: LogMark) -> LogMark:
    return LogMark(
        mark.generation, mark.offset + record_span(record.length), record.crc, record.serial + 1
    )


def _find_later_record(window: _Window, segment: SegmentHeader, mark: LogMark) -> int | None:
    """Return the offset of a valid record of this generation behind a bad one, or None.

    Its serial number must be above the bad one's: a payload may contain a copy of an earlier
    record, but none of a later one.
    """
    offset = mark.offset + SECTOR
    while offset < window.size:
        piece = window.at(offset, min(limits.REPLAY_READ_BYTES, window.size - offset))
        firsts = bytes(piece[::SECTOR])
        sector = firsts.find(RECORD_MAGIC[:1])
        while sector >= 0:
            candidate = offset + sector * SECTOR
            header = decode_record(piece[sector * SECTOR : sector * SECTOR + RECORD_HEADER_BYTES])
            if header is not None and header.serial > mark.serial:
                expected = mark._replace(
                    offset=candidate, prev_crc=header.prev_crc, serial=header.serial
                )
                if _record_at(window, segment, expected) is not None:
                    return candidate
            sector = firsts.find(RECORD_MAGIC[:1], sector + 1)
        offset += len(piece)
    return None


def _header(segment: Segment) -> SegmentHeader:
    assert segment.header is not None, "only segments with a header are in use"
    return segment.header


# --- Survey of the segment files ---------------------------------------------------------------
#
# Rule 5: a segment without a valid header was never used, or its first life ended before it began:
# a header is durable before the first record, and the next header overwrites it atomically. If a
# valid record exists all the same, the header was damaged, and the folder is refused.
# Rule 6: a header that is older than the segment's first record, a truncated file and a segment of
# another log are damage, too.


class SegmentSurvey:
    """The segment files of `folder`; generations below `needed_from` are free.

    Raises:
        Corrupt: the folder must not be used; the message says where and what to do.
    """

    def __init__(self, disk: Disk, folder: str, *, needed_from: int) -> None:
        self.used: list[Segment] = []
        """Needed segments, oldest generation first; `end` is not known yet."""
        self.free: list[Segment] = []
        """Segments without needed records."""
        self.log_id: bytes | None = None
        self.number = 0
        """Highest number of a file name."""
        self.generation = 0
        """Highest generation that was ever begun."""
        self._needed_from = needed_from
        with ExitStack() as stack:
            for name in disk.names(folder):
                stem = name.removesuffix(SEGMENT_SUFFIX)
                if stem != name and stem.isdigit():
                    self.number = max(self.number, int(stem))
                    file = disk.open(f"{folder}/{name}")
                    stack.callback(file.close)
                    self._add(file)
            self.used.sort(key=lambda segment: segment.generation)
            for older, newer in zip(self.used, self.used[1:], strict=False):
                if older.generation == newer.generation:
                    raise corrupt(newer.name, 0, f"it has the same generation as {older.name}")
            stack.pop_all()

    def close(self) -> None:
        """Close the files."""
        for segment in (*self.used, *self.free):
            segment.file.close()

    def _add(self, file: File) -> None:
        head, size = file.read(limits.SECTOR_BYTES, 0), file.size
        header = decode_segment_header(head)
        if header is not None:
            self._check(file, header, size)
        elif head.startswith(SEGMENT_FAMILY) and not head.startswith(SEGMENT_MAGIC):
            raise corrupt(file.name, 0, "its format is that of a later version, or damaged")
        oldest = self._needed_from if header is None else header.generation + 1
        if header is None:
            record_offset = _find_record(file, size, oldest)
        else:
            # A generation with records has one directly after its header.
            record_offset = (
                limits.SECTOR_BYTES if _is_record(file, size, limits.SECTOR_BYTES, oldest) else None
            )
        if record_offset is not None:
            what = f"its header is damaged, but records follow it, at offset {record_offset}"
            raise corrupt(file.name, 0, what)
        segment = Segment(file, header, size=size, end=size)
        self.generation = max(self.generation, segment.generation)
        if header is not None and header.generation >= self._needed_from:
            self.used.append(segment)
        else:
            self.free.append(segment)

    def _check(self, file: File, header: SegmentHeader, size: int) -> None:
        if size != header.size:
            raise corrupt(file.name, size, f"it had {header.size} bytes and has {size}")
        if self.log_id not in (None, header.log_id):
            raise corrupt(file.name, 0, "it belongs to another log")
        self.log_id = header.log_id


def _find_record(file: File, size: int, oldest: int) -> int | None:
    """Return the offset of a valid record of generation `oldest` or later, or None.

    A segment that was never used holds only zeros; if its first `REPLAY_READ_BYTES` are zeros, the
    rest is not read.
    """
    for offset in range(0, size, limits.REPLAY_READ_BYTES):
        piece = file.read(min(limits.REPLAY_READ_BYTES, size - offset), offset)
        if offset == 0 and piece == bytes(len(piece)):
            return None
        firsts = piece[:: limits.SECTOR_BYTES]
        at = firsts.find(RECORD_MAGIC[:1])
        while at >= 0:
            if _is_record(file, size, offset + at * limits.SECTOR_BYTES, oldest):
                return offset + at * limits.SECTOR_BYTES
            at = firsts.find(RECORD_MAGIC[:1], at + 1)
    return None


def _is_record(file: File, size: int, offset: int, oldest: int) -> bool:
    """Return True if there is a valid record of generation `oldest` or later at `offset`."""
    data = file.read(RECORD_HEADER_BYTES, offset)
    record = decode_record(data)
    if record is None or record.generation < oldest or record.length > size:
        return False
    payload = file.read(record.length, offset + RECORD_HEADER_BYTES)
    return has_valid_checksum(record, memoryview(data), payload)


def corrupt(name: str, offset: int, what: str) -> errors.Corrupt:
    """Return the error that names file and offset of the damage, and the remedy."""
    return errors.Corrupt(
        f"{name}, offset {offset}: {what}. Nothing was changed. Restore the folder from a backup "
        "or from a replica; `millrace dump` shows what can still be read",
        field=name,
    )
