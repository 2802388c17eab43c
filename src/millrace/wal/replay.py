"""Reading a log from a mark to its end; nothing is written here.

Rule 1: each record names its predecessor's checksum and number; where none does, the log ends.
Rule 2: a generation ends where the next one's header says that it begins. Only the newest may end
in a bad record, and only if no whole record of that generation comes after it: one record is in
flight at a time, so that nothing behind a torn one can have been written.
Rule 3: everything else is `Corrupt` and names file and offset. Nothing is skipped.
Rule 4: the file is read, not mapped: a bad sector is then an error and not the end of the process.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from functools import partial
from typing import NamedTuple

from millrace import errors, limits
from millrace.wal.files import Disk
from millrace.wal.record import (
    DATA,
    END,
    FIRST_SERIAL,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    Mark,
    Position,
    RecordHeader,
    SegmentHeader,
    decode_record,
    is_whole,
    span_of,
)
from millrace.wal.segment import Damage, Segment
from millrace.wal.survey import Survey, corrupt

SECTOR = limits.SECTOR_BYTES

ORIGIN = Mark(generation=0, offset=SECTOR, prev_crc=0, serial=FIRST_SERIAL)
"""The end of a log that holds nothing yet."""


class Tail(NamedTuple):
    """The last record of the log, if no generation was begun after it."""

    segment: Segment
    offset: int
    span: int


class Replay:
    """The records of the log in `folder` from `start` on; iterate once, then look at `end`.

    Who needs them after the log was opened reads them `again`.

    Args:
        start: where to begin, as a checkpoint stored it; None: at the very first record.
        needed_from: the oldest generation of which something is still needed, at most that of
            `start`. Older segments are free; the default keeps them all.
        is_partial: begin with the oldest generation there is, though older records are gone; for
            those who only look.

    Raises:
        Corrupt: the folder must not be used; the message says where and what to do.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str = "log",
        *,
        start: Mark | None = None,
        needed_from: int = 0,
        is_partial: bool = False,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.start = None if start == ORIGIN else start
        if needed_from > self._first():
            raise errors.Invalid("the start itself is needed", field="needed_from")
        self.survey = Survey(disk, folder, needed_from=needed_from)
        used = self.survey.used
        chain = [segment for segment in used if segment.generation >= self._first()]
        try:
            self.end = self._begin(chain, is_partial=is_partial)
            """The place behind the last record that was read."""
        except errors.Fatal:
            self.close()
            raise
        self.tail: Tail | None = None
        self._chain = chain
        self._read: list[tuple[Segment, Mark, int]] = []
        """What was read to its end: a segment, from which mark to which offset."""
        self._records = self._walk_all()

    def __iter__(self) -> Iterator[tuple[Position, memoryview]]:
        """Yield place and payload of every data record, oldest first.

        A payload is a view of a larger piece of memory, read for it and safe to keep; who keeps
        many should copy them.
        """
        return self._records

    def again(self) -> Iterator[tuple[Position, memoryview]]:
        """Yield once more what the iteration gave, which must have come to its end.

        So that nobody has to keep it: the first time it is verified, the second time it is used.
        The log may have been opened in between, but must not have released anything.

        Raises:
            Corrupt: a record has changed since.
        """
        for segment, mark, end in self._read:
            window, header = _Window(segment), _header(segment)
            while mark.offset < end:
                found = _record_at(window, header, mark)
                if found is None:
                    raise corrupt(segment.name, mark.offset, "a record changed while it was read")
                record, payload = found
                if record.kind == DATA:
                    place = mark.offset + RECORD_HEADER_BYTES
                    yield Position(mark.generation, place, record.length), payload
                mark = _after(record, mark)

    def prove_later(self) -> None:
        """Have the segments before the start summed when they are first read."""
        if self.start is None:
            return
        used = self.survey.used
        for segment, following in itertools.pairwise(used):
            if segment.generation < self.start.generation:
                header = _header(following)
                until = Mark(header.generation, SECTOR, header.prev_crc, header.first_serial)
                segment.prove_first(partial(find_damage, segment, until))
        for segment in used:
            if segment.generation == self.start.generation:
                segment.prove_first(partial(find_damage, segment, self.start))

    def empty(self) -> list[Segment]:
        """Return the generations without a record that no mark names; call it at the end."""
        return [
            segment
            for segment in self._chain
            if segment.end == SECTOR and segment.generation != self._first()
        ]

    def close(self) -> None:
        """Close the files, if no log was opened with them."""
        self.survey.close()

    def _first(self) -> int:
        return self.start.generation if self.start is not None else 0

    def _begin(self, chain: list[Segment], *, is_partial: bool) -> Mark:
        """Return the mark to begin at, and make sure that the log has it."""
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
            return Mark(header.generation, SECTOR, header.prev_crc, header.first_serial)
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

    def _reach(self, segment: Segment, offset: int) -> Mark:
        """Follow the headers of a segment up to `offset`, without summing payloads."""
        header = _header(segment)
        mark = Mark(header.generation, SECTOR, header.prev_crc, header.first_serial)
        while mark.offset < offset:
            record = decode_record(segment.file.read(RECORD_HEADER_BYTES, mark.offset))
            if record is None or not _follows(record, header, mark):
                break
            mark = _after(record, mark)
        return mark

    # --- Walking -----------------------------------------------------------------------------

    def _walk_all(self) -> Iterator[tuple[Position, memoryview]]:
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
    ) -> Iterator[tuple[Position, memoryview]]:
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
            found = _record_at(window, header, mark)
            if found is None:
                break
            record, payload = found
            self.end = _after(record, mark)
            segment.end = self.end.offset
            self.tail = Tail(segment, mark.offset, segment.end - mark.offset)
            if record.kind == DATA:
                place = mark.offset + RECORD_HEADER_BYTES
                yield Position(mark.generation, place, record.length), payload
        if following is not None:
            raise corrupt(
                segment.name, mark.offset, f"a bad record, but {following.name} follows it"
            )
        later = _find_later(window, header, mark)
        if later is not None:
            raise corrupt(
                segment.name, mark.offset, f"a bad record, but a whole one follows at {later}"
            )


def prove(segment: Segment, until: Mark) -> None:
    """Sum every record of the segment up to `until`, which its last one must lead to.

    Replay begins at a mark; what lies before it is needed, too, as long as it is not sealed.

    Raises:
        Corrupt: a record is damaged.
    """
    for _ in walk(segment, until):
        pass


def find_damage(segment: Segment, until: Mark) -> Damage | None:
    """As `prove`, but say what is damaged, and which records can be read all the same.

    Each record has its own checksum and names its generation: where one is damaged, the rows in the
    others are those that were written. Only rows are read here; what the records changed besides is
    in the index.
    """
    try:
        prove(segment, until)
    except errors.Corrupt as error:
        return Damage(error, _whole(segment, until))
    return None


def _whole(segment: Segment, until: Mark) -> list[tuple[int, int]]:
    """Where the records that are whole begin and end."""
    window, header = _Window(segment), _header(segment)
    found: list[tuple[int, int]] = []
    mark = first_mark(header)
    while mark.serial < until.serial:
        record = _record_at(window, header, mark)
        if record is not None:
            end = mark.offset + RECORD_HEADER_BYTES + record[0].length
            found.append((mark.offset, end))
            mark = _after(record[0], mark)
            continue
        offset = _find_later(window, header, mark)
        later = None if offset is None else decode_record(window.at(offset, RECORD_HEADER_BYTES))
        if offset is None or later is None:
            break
        mark = mark._replace(offset=offset, prev_crc=later.prev_crc, serial=later.serial)
    if until.generation == header.generation:
        # The replay has summed what comes after.
        found = [(begin, end) for begin, end in found if end <= until.offset]
        found.append((until.offset, segment.size))
    return found


def walk(segment: Segment, until: Mark) -> Iterator[tuple[Position, memoryview]]:
    """Yield place and payload of the segment's data records up to `until`, each summed first.

    Raises:
        Corrupt: a record is damaged, or they do not lead to `until`.
    """
    window, header = _Window(segment), _header(segment)
    mark = Mark(header.generation, SECTOR, header.prev_crc, header.first_serial)
    while mark.serial < until.serial:
        found = _record_at(window, header, mark)
        if found is None:
            raise corrupt(segment.name, mark.offset, "a record that is still needed is damaged")
        record, payload = found
        if record.kind == DATA:
            place = mark.offset + RECORD_HEADER_BYTES
            yield Position(mark.generation, place, record.length), payload
        mark = _after(record, mark)
    if (mark.serial, mark.prev_crc) != (until.serial, until.prev_crc):
        raise corrupt(segment.name, mark.offset, "the records do not lead to what follows them")


class Step(NamedTuple):
    """A record, and where it begins."""

    mark: Mark
    header: RecordHeader
    payload: memoryview

    def after(self) -> Mark:
        """Return the place behind it."""
        return _after(self.header, self.mark)


def steps(segment: Segment, mark: Mark, until: int | None) -> Generator[Step, None, Mark]:
    """Yield the records from the mark on, each summed, up to the number `until` or to the end.

    Returns the place behind the last one. For those who look at a segment alone.

    Raises:
        Corrupt: a whole record follows a bad one.
    """
    window, header = _Window(segment), _header(segment)
    while until is None or mark.serial < until:
        found = _record_at(window, header, mark)
        if found is None:
            whole = _find_later(window, header, mark)
            if whole is not None:
                what = f"a bad record, but a whole one follows at {whole}"
                raise corrupt(segment.name, mark.offset, what)
            break
        yield Step(mark, *found)
        mark = _after(found[0], mark)
    return mark


def first_mark(header: SegmentHeader) -> Mark:
    """The place of a generation's first record."""
    return Mark(header.generation, SECTOR, header.prev_crc, header.first_serial)


class _Window:
    """The bytes of a segment, read in large pieces."""

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
    window: _Window, segment: SegmentHeader, mark: Mark
) -> tuple[RecordHeader, memoryview] | None:
    """Return the record at the mark, or None if there is none that is whole and belongs there."""
    data = window.at(mark.offset, RECORD_HEADER_BYTES)
    header = decode_record(data)
    if header is None or not _follows(header, segment, mark):
        return None
    if header.length > window.size - mark.offset - RECORD_HEADER_BYTES:
        return None
    payload = window.at(mark.offset + RECORD_HEADER_BYTES, header.length)
    return (header, payload) if is_whole(header, data, payload) else None


def _follows(record: RecordHeader, segment: SegmentHeader, mark: Mark) -> bool:
    return (
        record.generation == segment.generation
        and record.nonce == segment.nonce
        and record.serial == mark.serial
        and record.prev_crc == mark.prev_crc
        and record.kind in (DATA, END)
    )


def _after(record: RecordHeader, mark: Mark) -> Mark:
    return Mark(
        mark.generation, mark.offset + span_of(record.length), record.crc, record.serial + 1
    )


def _find_later(window: _Window, segment: SegmentHeader, mark: Mark) -> int | None:
    """Return the offset of a whole record of this generation behind a bad one.

    A number above the bad one's is asked for: a payload may contain a copy of an earlier record,
    but none of a later one.
    """
    offset = mark.offset + SECTOR
    while offset < window.size:
        piece = window.at(offset, min(limits.REPLAY_READ_BYTES, window.size - offset))
        firsts = bytes(piece[::SECTOR])
        place = firsts.find(RECORD_MAGIC[:1])
        while place >= 0:
            found = offset + place * SECTOR
            header = decode_record(piece[place * SECTOR : place * SECTOR + RECORD_HEADER_BYTES])
            if header is not None and header.serial > mark.serial:
                expected = mark._replace(
                    offset=found, prev_crc=header.prev_crc, serial=header.serial
                )
                if _record_at(window, segment, expected) is not None:
                    return found
            place = firsts.find(RECORD_MAGIC[:1], place + 1)
        offset += len(piece)
    return None


def _header(segment: Segment) -> SegmentHeader:
    assert segment.header is not None, "only segments with a header are in use"
    return segment.header
