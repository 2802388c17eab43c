"""The sealed files: every byte of them, against their trailers and against the index."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from millrace.cli.checking.report import Counted, Report
from millrace.cli.dump.sealed import numbers
from millrace.cli.folder import Folder
from millrace.errors import Corrupt, MillraceError
from millrace.store.inspect import Inspection
from millrace.store.packing import unpack
from millrace.store.place import COMPRESSED, RELATIVE
from millrace.store.sealed import SEALED_SCHEMA, Line, file_name, read_lines
from millrace.store.tables import FileFacts
from millrace.wal.files import File

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""How Arrow ends a stream."""


def check_sealed(folder: Folder, report: Report, store: Inspection | None) -> None:
    """Verify the files that the index counts on; without an index, all that are there."""
    known = store.files() if store is not None else {}
    there = set(numbers(folder))
    wanted: dict[int, FileFacts | None] = dict.fromkeys(sorted(there))
    if store is not None:
        wanted = {number: facts for number, facts in known.items() if not facts.dropping}
        for number in sorted(there - known.keys()):
            # Those from the next number on were being made, and are removed at the next open.
            if number < store.next_file:
                report.found(file_name(number), None, "the index does not know this file")
    for at, (number, facts) in enumerate(wanted.items()):
        report.progress(at, len(wanted))
        if number not in there:
            report.found(file_name(number), None, "the file is missing")
            continue
        _check_file(folder, report, number, facts)
    report.tell(Counted(files=len(wanted)))


def _check_file(folder: Folder, report: Report, number: int, facts: FileFacts | None) -> None:
    name = file_name(number)
    try:
        lines = read_lines(folder.disk, number)
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


def _check_stream(file: File, report: Report, lines: list[Line]) -> None:
    """Every byte before the trailer: the schema, the record batches, and the end."""
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


def _check_schema(file: File, report: Report, size: int) -> None:
    try:
        found = pa.ipc.read_schema(pa.py_buffer(file.read(size, 0)))
    except (pa.ArrowInvalid, OSError) as error:
        report.found(file.name, 0, f"the schema cannot be read: {error}")
        return
    if not found.equals(SEALED_SCHEMA):
        report.found(file.name, 0, "the schema is another one")


def _batch_problem(data: bytes, line: Line) -> str | None:
    if crc32c(data) != line.crc:
        return "it is not what was written"
    try:
        is_packed = bool(line.flags & COMPRESSED)
        batch = unpack(pa.py_buffer(data), SEALED_SCHEMA, compressed=is_packed)
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
