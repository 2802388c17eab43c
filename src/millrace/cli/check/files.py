"""Checks of files: LMDB pages and values of the index, records of the WAL, sealed files.

All are verified against their checksums; sealed files also against the index, and the WAL as a
chain of records whose entries decode.
"""

from __future__ import annotations

import mmap
import re

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from millrace.cli.check.report import CheckReporter, PhaseCounts, PhaseSkipped
from millrace.cli.dump.sealed import numbers
from millrace.cli.folder import INDEX, LOG, Folder
from millrace.cli.wal_records import (
    SegmentFile,
    WalGap,
    list_segments,
    read_records,
)
from millrace.core.format.codec import decode_entries
from millrace.errors import Corrupt, MillraceError
from millrace.limits import SECTOR_BYTES
from millrace.store.cells import Cells
from millrace.store.compression import decompress_batch
from millrace.store.index_codec import FileFacts
from millrace.store.read_only_store import ReadOnlyCells, ReadOnlyStore, check_pages
from millrace.store.row_location import COMPRESSED, RELATIVE
from millrace.store.sealed import SEALED_SCHEMA, BatchEntry, file_name, read_footer
from millrace.wal.disk import Disk, File
from millrace.wal.record import RECORD_HEADER_BYTES, LogMark, LogPosition
from millrace.wal.replay import Replay

INDEX_FILE = f"{INDEX}/data.mdb"

_PAGE = re.compile(r"\bpage (\d+)")


def check_index(folder: Folder, report: CheckReporter) -> ReadOnlyStore | None:
    """Verify the index; return it opened if it is undamaged."""
    if not (folder.path / INDEX_FILE).exists():
        # An engine would create a new one and replay the whole log.
        return _opened(folder, folder.cells(is_in_use=False), report)
    findings = check_pages(folder.path / INDEX)
    for finding in findings:
        page = _PAGE.search(finding)
        report.found(INDEX_FILE, int(page[1]) * mmap.PAGESIZE if page else None, finding)
    if findings:
        return None
    try:
        cells = ReadOnlyCells(folder.path / INDEX, is_in_use=False)
    except MillraceError as error:
        report.found_error(error, INDEX_FILE)
        return None
    damaged = cells.check()
    for finding in damaged:
        report.found(INDEX_FILE, None, finding)
    report.tell(PhaseCounts(cells=sum(cells.counts().values())))
    if damaged:
        cells.close()
        return None
    return _opened(folder, cells, report)


def _opened(folder: Folder, cells: Cells, report: CheckReporter) -> ReadOnlyStore | None:
    try:
        return ReadOnlyStore(folder.disk, cells)
    except MillraceError as error:
        cells.close()
        report.found_error(error, INDEX_FILE)
        return None


def check_log(folder: Folder, report: CheckReporter, store: ReadOnlyStore | None) -> None:
    """Verify the WAL: the needed records, or without an index all records."""
    segments = list_segments(folder.disk, LOG)
    for segment in segments:
        if segment.problem is not None:
            report.found(segment.name, None, segment.problem)
    used = [segment for segment in segments if segment.header is not None]
    records = 0
    if store is None:
        report.tell(
            PhaseSkipped(
                "without the index it is unknown which records are needed: each was checked alone"
            )
        )
        for segment in used:
            records += _check_alone(folder.disk, report, segment)
    else:
        records = _check_chain(
            folder.disk, report, [one for one in used if one.generation >= store.needed]
        )
    report.tell(PhaseCounts(records=records))


def _check_chain(disk: Disk, report: CheckReporter, segments: list[SegmentFile]) -> int:
    """Follow the chain from the oldest needed record; after damage, continue with the next
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


def _start(segment: SegmentFile) -> LogMark:
    header = segment.header
    assert header is not None, "only segments in use are followed"
    return LogMark(header.generation, SECTOR_BYTES, header.prev_crc, header.first_serial)


def _check_entries(
    report: CheckReporter, file: str, position: LogPosition, payload: memoryview
) -> None:
    try:
        decode_entries(payload)
    except MillraceError as error:
        report.found(file, position.offset - RECORD_HEADER_BYTES, error.message)


def _check_alone(disk: Disk, report: CheckReporter, segment: SegmentFile) -> int:
    records = 0
    for found in read_records(disk, segment):
        if isinstance(found, WalGap):
            what = f"no whole record up to offset {found.end}, where one follows"
            report.found(segment.name, found.offset, what)
            continue
        records += 1
        place = found.offset + RECORD_HEADER_BYTES
        position = LogPosition(segment.generation, place, found.header.length)
        _check_entries(report, segment.name, position, found.payload)
    return records


_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""End-of-stream marker of Arrow."""


def check_sealed(folder: Folder, report: CheckReporter, store: ReadOnlyStore | None) -> None:
    """Verify the sealed files that the index lists; without an index, all files present."""
    known = store.files() if store is not None else {}
    there = set(numbers(folder))
    wanted: dict[int, FileFacts | None] = dict.fromkeys(sorted(there))
    if store is not None:
        wanted = {number: facts for number, facts in known.items() if not facts.dropping}
        for number in sorted(there - known.keys()):
            # Files from the next number on are incomplete, and are removed at the next open.
            if number < store.next_file:
                report.found(file_name(number), None, "the file is unknown to the index")
    for at, (number, facts) in enumerate(wanted.items()):
        report.progress(at, len(wanted))
        if number not in there:
            report.found(file_name(number), None, "the file is missing")
            continue
        _check_file(folder, report, number, facts)
    report.tell(PhaseCounts(files=len(wanted)))


def _check_file(
    folder: Folder, report: CheckReporter, number: int, facts: FileFacts | None
) -> None:
    name = file_name(number)
    try:
        lines = read_footer(folder.disk, number)
        file = folder.disk.open(name)
    except MillraceError as error:
        report.found_error(error, name)
        return
    try:
        if facts is not None:
            rows = sum(line.rows for line in lines)
            if (file.size, rows) != (facts.size, facts.rows):
                known = f"{facts.size} bytes and {facts.rows} rows"
                what = f"it has {file.size} bytes and {rows} rows, and the index knows of {known}"
                report.found(name, None, what)
        _check_stream(file, report, lines)
    except MillraceError as error:
        report.found_error(error, name)
    finally:
        file.close()


def _check_stream(file: File, report: CheckReporter, lines: list[BatchEntry]) -> None:
    """Verify every byte before the footer: schema, record batches, end marker."""
    if not lines:
        report.found(file.name, None, "it holds no record batch")
        return
    _check_schema(file, report, lines[0].offset)
    expected = lines[0].offset
    for at, line in enumerate(lines):
        if line.offset != expected:
            what = f"record batch {at} should begin at {expected}, says the trailer"
            report.found(file.name, line.offset, what)
        expected = line.offset + line.length
        problem = _batch_problem(file.read(line.length, line.offset), line)
        if problem is not None:
            what = f"record batch {at} of shard {line.shard}, rows {line.first} to {line.last}"
            report.found(file.name, line.offset, f"{what}: {problem}")
    if file.read(len(_END_OF_STREAM), expected) != _END_OF_STREAM:
        report.found(file.name, expected, "the stream does not end where it should")


def _check_schema(file: File, report: CheckReporter, size: int) -> None:
    try:
        found = pa.ipc.read_schema(pa.py_buffer(file.read(size, 0)))
    except (pa.ArrowInvalid, OSError) as error:
        report.found(file.name, 0, f"the schema cannot be read: {error}")
        return
    if not found.equals(SEALED_SCHEMA):
        report.found(file.name, 0, "the schema is not that of sealed files")


def _batch_problem(data: bytes, line: BatchEntry) -> str | None:
    if crc32c(data) != line.crc:
        return "it is not what was written"
    try:
        is_packed = bool(line.flags & COMPRESSED)
        batch = decompress_batch(pa.py_buffer(data), SEALED_SCHEMA, compressed=is_packed)
    except (Corrupt, pa.ArrowInvalid, OSError) as error:
        return f"it cannot be read: {error}"
    if batch.num_rows != line.rows:
        return f"it has {batch.num_rows} rows, and the trailer says {line.rows}"
    if line.flags & RELATIVE:
        return None
    seqs = batch.column("seq").to_numpy()
    if int(seqs[0]) != line.first or int(seqs[-1]) != line.last:
        return f"its rows are {seqs[0]} to {seqs[-1]}"
    if not bool(np.all(seqs[1:] > seqs[:-1])):
        return "its seqs do not rise"
    return None
