"""The log of a backup and of an archive: pieces of generations that lead from one to the next.

Rule 1: every record is summed, and names its predecessor; a piece goes on where the one before
ends, or there is a gap, which nobody may cross.
Rule 2: of two pieces of a generation the longer one counts; they are of one life of it, or of
different folders, which is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from millrace.core.changes import Entry, EntryKind
from millrace.core.codec import ENTRY, decode_entries
from millrace.errors import Corrupt, Exists
from millrace.journal.local import LOCAL
from millrace.limits import SECTOR_BYTES
from millrace.maintenance.manifest import Point
from millrace.wal.files import Disk
from millrace.wal.record import (
    DATA,
    Mark,
    SegmentHeader,
    decode_segment,
)
from millrace.wal.replay import Step, first_mark, steps
from millrace.wal.segment import Segment


class Piece(NamedTuple):
    """A file with a generation of the log, or with the beginning of one."""

    disk: Disk
    name: str
    header: SegmentHeader
    size: int

    def records(self, mark: Mark, until: int | None) -> Iterator[Step]:
        """Its records from the mark on."""
        file = self.disk.open(self.name)
        try:
            segment = Segment(file, self.header, size=self.size, end=self.size)
            yield from steps(segment, mark, until)
        finally:
            file.close()


def piece_of(disk: Disk, name: str) -> Piece | None:
    """The piece in a file; None if it has no whole header."""
    file = disk.open(name)
    try:
        header, size = decode_segment(file.read(SECTOR_BYTES, 0)), file.size
    finally:
        file.close()
    return None if header is None else Piece(disk, name, header, size)


def merge(*sources: Iterable[Piece]) -> list[Piece]:
    """One piece of each generation, in order.

    Raises:
        Exists: they are of different folders.
    """
    found: dict[int, Piece] = {}
    for piece in (piece for source in sources for piece in source):
        known = found.setdefault(piece.header.generation, piece)
        if known.header != piece.header:
            raise Exists(
                f"{piece.name} and {known.name} are of different folders: a restored or forked "
                "folder is another one",
                field=piece.name,
            )
        if piece.size > known.size:
            found[piece.header.generation] = piece
    return [found[generation] for generation in sorted(found)]


class Walk:
    """A walk through the pieces from their beginning; iterate once, then look at `end`."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self.end: Mark | None = None
        """The place behind the last record."""
        self.is_over = False
        """It came to the end of what there is, or to a gap."""
        self.gap: str | None = None
        """The piece that does not go on where the one before ends; the walk ends before it."""
        self.ends: dict[int, int] = {}
        """Generation → where its records end."""

    def __iter__(self) -> Iterator[Step]:
        for place, piece in enumerate(self._pieces):
            mark = first_mark(piece.header)
            if self.end is not None and self.end[2:] != mark[2:]:
                self.gap = piece.name
                break
            following = self._pieces[place + 1] if place + 1 < len(self._pieces) else None
            until = following.header.first_serial if following is not None else None
            self.end = mark
            self.ends[mark.generation] = mark.offset
            for step in piece.records(mark, until):
                yield step
                self.end = step.after()
                self.ends[mark.generation] = self.end.offset
        self.is_over = True


def local_entries(step: Step) -> Iterator[tuple[int, Entry]]:
    """The entries of the local group in a record, each with the byte at which it begins."""
    if step.header.kind != DATA:
        return
    at = 0
    for entry in decode_entries(step.payload):
        if entry.group == LOCAL and entry.kind is EntryKind.DATA:
            yield at, entry
        at += ENTRY.unpack_from(step.payload, at)[5]


def time_of(entry: Entry) -> int:
    """When it was decided."""
    return max((batch.time_ms for batch in entry.batches), default=0)


def last_index(disk: Disk, names: Sequence[str], mark: Mark | None, start: int) -> int:
    """The index of the last entry in these files; `start` if there is none after the mark.

    Raises:
        Corrupt: the files do not lead from one to the next.
    """
    pieces = [piece for name in names if (piece := piece_of(disk, name)) is not None]
    begin = mark.generation if mark is not None else 0
    walk = Walk([piece for piece in pieces if piece.header.generation >= begin])
    last = start
    for step in walk:
        for _, entry in local_entries(step):
            last = max(last, entry.index)
    if walk.gap is not None or len(pieces) != len(names):
        raise Corrupt("the log changed while it was copied; nothing is promised", field="log")
    return last


class Cut(NamedTuple):
    """Where a restored log ends."""

    end: Mark
    kept: bytes
    """What is kept of the record at the end: its first entries; none of it if this is empty."""
    point: Point
    """The last entry before it."""
    ends: dict[int, int]
    """Generation → where its records end, up to the cut."""


def cut(
    walk: Walk, start: Point, mark: Mark | None, *, index: int | None, time_ms: int | None
) -> Cut:
    """Walk up to the last entry that is not beyond the index and the time."""
    last, when = start.index, start.time_ms
    for step in walk:
        if mark is not None and step.mark.serial < mark.serial:
            continue
        for at, entry in local_entries(step):
            if entry.index <= start.index:
                continue
            now = time_of(entry)
            if (index is not None and entry.index > index) or (
                time_ms is not None and now > time_ms
            ):
                ends = {**walk.ends, step.mark.generation: step.mark.offset}
                return Cut(step.mark, bytes(step.payload[:at]), Point(last, when), ends)
            last, when = entry.index, now
    if walk.end is None:
        raise Corrupt("the backup has no log; use another one", field="log")
    return Cut(walk.end, b"", Point(last, when), dict(walk.ends))
