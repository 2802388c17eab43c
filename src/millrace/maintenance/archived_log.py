"""Reads the WAL of backups and archives, which consists of copied generations.

Rule 1: every record has a checksum and names its predecessor. A generation continues where the
previous one ends; otherwise there is a gap, which no restore may cross.
Rule 2: of two copies of a generation the longer one counts. Copies that do not belong to the same
life of the generation are of different folders, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import ENTRY, decode_entries
from millrace.errors import Corrupt, Exists
from millrace.journal.local import LOCAL
from millrace.limits import SECTOR_BYTES
from millrace.maintenance import checksummed_json
from millrace.maintenance.backup_repository import ARCHIVE
from millrace.maintenance.manifest import Point, TimeMs
from millrace.wal.disk import Disk, RealDisk
from millrace.wal.record import DATA, LogMark, SegmentHeader, decode_segment_header
from millrace.wal.replay import ReplayedRecord, first_mark, scan_records
from millrace.wal.segment import Segment


class LogPiece(NamedTuple):
    """A file with a generation of the WAL, or the beginning of one."""

    disk: Disk
    name: str
    header: SegmentHeader
    size: int

    def records(self, mark: LogMark, until: int | None) -> Iterator[ReplayedRecord]:
        """Read the records from the mark on."""
        file = self.disk.open(self.name)
        try:
            segment = Segment(file, self.header, size=self.size, end=self.size)
            yield from scan_records(segment, mark, until)
        finally:
            file.close()


def read_piece(disk: Disk, name: str) -> LogPiece | None:
    """Read the header of a generation's copy; None if it is incomplete."""
    file = disk.open(name)
    try:
        header, size = decode_segment_header(file.read(SECTOR_BYTES, 0)), file.size
    finally:
        file.close()
    return None if header is None else LogPiece(disk, name, header, size)


def merge_pieces(*sources: Iterable[LogPiece]) -> list[LogPiece]:
    """Return the longest copy of each generation, in order.

    Raises:
        Exists: the copies are of different folders.
    """
    longest: dict[int, LogPiece] = {}
    for piece in (piece for source in sources for piece in source):
        previous = longest.setdefault(piece.header.generation, piece)
        if previous.header != piece.header:
            raise Exists(
                f"{piece.name} and {previous.name} are of different folders: a restored or forked "
                "folder is another one",
                field=piece.name,
            )
        if piece.size > previous.size:
            longest[piece.header.generation] = piece
    return [longest[generation] for generation in sorted(longest)]


class LogWalk:
    """Iterates once over the records of all copies; `end` and `gap` are valid afterwards."""

    def __init__(self, pieces: Sequence[LogPiece]) -> None:
        self._pieces = pieces
        self.end: LogMark | None = None
        """The position behind the last record."""
        self.is_over = False
        """True if the walk reached the end of the copies or a gap."""
        self.gap: str | None = None
        """The copy that does not continue the previous one; the walk ends before it."""
        self.ends: dict[int, int] = {}
        """End of the records in each generation."""

    def __iter__(self) -> Iterator[ReplayedRecord]:
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


def local_entries(step: ReplayedRecord) -> Iterator[tuple[int, Entry]]:
    """Yield the entries of the local group in a record, each with its byte offset."""
    if step.header.kind != DATA:
        return
    at = 0
    for entry in decode_entries(step.payload):
        if entry.group == LOCAL and entry.kind is EntryKind.DATA:
            yield at, entry
        at += ENTRY.unpack_from(step.payload, at)[5]


def entry_time_ms(entry: Entry) -> int:
    """Return the time at which an entry was decided, in milliseconds."""
    return max((batch.time_ms for batch in entry.batches), default=0)


def read_last_index(disk: Disk, names: Sequence[str], mark: LogMark | None, start: int) -> int:
    """Return the index of the last entry in these files; `start` if no entry follows the mark.

    Raises:
        Corrupt: the files are not consecutive.
    """
    pieces = [piece for name in names if (piece := read_piece(disk, name)) is not None]
    begin = mark.generation if mark is not None else 0
    walk = LogWalk([piece for piece in pieces if piece.header.generation >= begin])
    last = start
    for step in walk:
        for _, entry in local_entries(step):
            last = max(last, entry.index)
    if walk.gap is not None or len(pieces) != len(names):
        raise Corrupt("the log changed while it was copied; nothing is promised", field="log")
    return last


class LogCut(NamedTuple):
    """The point at which a restored log is truncated."""

    end: LogMark
    kept: bytes
    """The retained first entries of the record at the end; empty: none."""
    point: Point
    """The last retained entry."""
    ends: dict[int, int]
    """End of the records in each generation, up to the cut."""


def find_cut(
    walk: LogWalk, start: Point, mark: LogMark | None, *, index: int | None, time_ms: int | None
) -> LogCut:
    """Find the last entry that is not beyond the given index and time."""
    last, when = start.index, start.time_ms
    for step in walk:
        if mark is not None and step.mark.serial < mark.serial:
            continue
        for at, entry in local_entries(step):
            if entry.index <= start.index:
                continue
            now = entry_time_ms(entry)
            if (index is not None and entry.index > index) or (
                time_ms is not None and now > time_ms
            ):
                ends = {**walk.ends, step.mark.generation: step.mark.offset}
                return LogCut(step.mark, bytes(step.payload[:at]), Point(last, when), ends)
            last, when = entry.index, now
    if walk.end is None:
        raise Corrupt("the backup has no log; use another one", field="log")
    return LogCut(walk.end, b"", Point(last, when), dict(walk.ends))


# --- The archive ----------------------------------------------------------------------------------
# `archive/log/` has a file per generation, which grows with the log. `archive/reached.json` records
# how far the archive is complete; that part is durable before it is recorded.

PROGRESS_FILE = f"{ARCHIVE}/reached.json"


class ArchiveProgress(msgspec.Struct, frozen=True):
    """The position up to which an archive is complete."""

    generation: int
    offset: int
    serial: int
    """The number of the next record."""
    time_ms: TimeMs
    """Time until which no other entry was written, in milliseconds."""


def list_archived(repository: Path) -> list[LogPiece]:
    """Return the archived generations of a repository; empty if it has no archive."""
    disk = RealDisk(repository, read_only=True)
    pieces: list[LogPiece] = []
    for name in disk.names(f"{ARCHIVE}/log"):
        if name.endswith(".log") and name.removesuffix(".log").isdigit():
            piece = read_piece(disk, f"{ARCHIVE}/log/{name}")
            if piece is not None:
                pieces.append(piece)
    return pieces


def find_progress(repository: Path) -> ArchiveProgress | None:
    """Read the progress of a repository's archive; None if `reached.json` does not exist.

    Raises:
        Corrupt: `reached.json` is damaged.
    """
    disk = RealDisk(repository, read_only=True)
    return read_progress(disk) if disk.exists(PROGRESS_FILE) else None


def read_progress(disk: Disk) -> ArchiveProgress:
    return checksummed_json.read(disk, PROGRESS_FILE, ArchiveProgress, hint="begin a new vault")
