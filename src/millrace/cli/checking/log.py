"""The log: every record that is needed, the chain through them, and that every entry decodes."""

from __future__ import annotations

from millrace.cli.checking.report import Counted, Report, Skipped
from millrace.cli.folder import LOG, Folder
from millrace.cli.records import Gap, SegmentFile, list_segments, read_records
from millrace.core.codec import decode_entries
from millrace.errors import MillraceError
from millrace.limits import SECTOR_BYTES
from millrace.store.inspect import Inspection
from millrace.wal.files import Disk
from millrace.wal.record import RECORD_HEADER_BYTES, Mark, Position
from millrace.wal.replay import Replay


def check_log(folder: Folder, report: Report, store: Inspection | None) -> None:
    """Verify the log; without an index it is not known what is needed, and all is looked at."""
    segments = list_segments(folder.disk, LOG)
    for segment in segments:
        if segment.problem is not None:
            report.found(segment.name, None, segment.problem)
    used = [segment for segment in segments if segment.header is not None]
    records = 0
    if store is None:
        report.tell(
            Skipped("which records are needed is not known without the index: each was read alone")
        )
        for segment in used:
            records += _check_alone(folder.disk, report, segment)
    else:
        records = _check_chain(
            folder.disk, report, [one for one in used if one.generation >= store.needed]
        )
    report.tell(Counted(records=records))


def _check_chain(disk: Disk, report: Report, segments: list[SegmentFile]) -> int:
    """Follow the chain from the oldest record that is needed; behind damage, go on with the next
    generation."""
    sizes = {segment.generation: segment.size for segment in segments}
    names = {segment.generation: segment.name for segment in segments}
    total = sum(sizes.values())
    records = 0
    left = segments
    while left:
        replay: Replay | None = None
        generation = left[0].generation
        try:
            replay = Replay(disk, LOG, start=_start(left[0]), needed_from=generation)
            for position, payload in replay:
                records += 1
                generation = position.generation
                before = sum(size for other, size in sizes.items() if other < generation)
                report.progress(before + position.offset, total)
                _check_entries(report, names[generation], position, payload)
            return records
        except MillraceError as error:
            report.found_error(error, LOG)
            if replay is not None:
                generation = replay.end.generation
        finally:
            if replay is not None:
                replay.close()
        left = [segment for segment in left if segment.generation > generation]
    return records


def _start(segment: SegmentFile) -> Mark:
    header = segment.header
    assert header is not None, "only segments in use are followed"
    return Mark(header.generation, SECTOR_BYTES, header.prev_crc, header.first_serial)


def _check_entries(report: Report, file: str, position: Position, payload: memoryview) -> None:
    try:
        decode_entries(payload)
    except MillraceError as error:
        report.found(file, position.offset - RECORD_HEADER_BYTES, error.message)


def _check_alone(disk: Disk, report: Report, segment: SegmentFile) -> int:
    records = 0
    for found in read_records(disk, segment):
        if isinstance(found, Gap):
            what = f"no whole record up to offset {found.end}, where one follows"
            report.found(segment.name, found.offset, what)
            continue
        records += 1
        place = found.offset + RECORD_HEADER_BYTES
        position = Position(segment.generation, place, found.header.length)
        _check_entries(report, segment.name, position, found.payload)
    return records
