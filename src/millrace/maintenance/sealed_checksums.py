"""Verifies every byte of sealed files: lines have checksums of rows, the tail one of all lines."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from crc32c import crc32c

from millrace import limits
from millrace.errors import Corrupt, NotFound
from millrace.maintenance.file_copy import StepCallback, no_pause
from millrace.maintenance.manifest import SealedPart
from millrace.store.sealed import (
    SEALED_SCHEMA,
    BatchEntry,
    file_name,
    footer_checksum,
    read_footer,
)
from millrace.wal.disk import Disk, File

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def check_file(disk: Disk, part: SealedPart, pause: StepCallback = no_pause) -> None:
    """Verify a file of a backup against its manifest.

    Raises:
        Corrupt: it is another file, or damaged.
    """
    name = file_name(part.number)
    try:
        file = disk.open(name)
    except NotFound:
        raise Corrupt(f"{name} is missing; use another backup", field=name) from None
    try:
        if file.size != part.size or footer_checksum(disk, part.number) != part.crc:
            raise Corrupt(f"{name}: it is not what was backed up; use another one", field=name)
        if part.is_damaged:
            # Queues with rows in it are quarantined, in the restored folder as in its source.
            return
        check_rows(disk, part.number, pause)
    finally:
        file.close()


def check_rows(disk: Disk, number: int, pause: StepCallback = no_pause) -> None:
    """Verify a file against its own checksums.

    Raises:
        Corrupt: it is damaged; the error names the first position.
    """
    for count in walk_rows(disk, number):
        pause(count)


def walk_rows(disk: Disk, number: int) -> Iterator[int]:
    """Verify a file as `check_rows` does, in steps; yields the number of bytes read in each.

    Raises:
        NotFound: the file does not exist.
    """
    file = disk.open(file_name(number))
    try:
        yield from _walk(file, read_footer(disk, number))
    finally:
        file.close()


def _walk(file: File, lines: list[BatchEntry]) -> Iterator[int]:
    end = lines[0].offset if lines else 0
    try:
        is_whole = pa.ipc.read_schema(pa.py_buffer(file.read(end, 0))).equals(SEALED_SCHEMA)
    except (pa.ArrowInvalid, OSError):
        is_whole = False
    if not is_whole:
        raise Corrupt(f"{file.name}, offset 0: the schema is damaged", field=file.name)
    for at, line in enumerate(lines):
        crc = 0
        for offset in range(line.offset, line.offset + line.length, limits.CARE_STEP_BYTES):
            left = line.offset + line.length - offset
            data = file.read(min(limits.CARE_STEP_BYTES, left), offset)
            crc = crc32c(data, crc)
            yield len(data)
        if crc != line.crc or line.offset != end:
            raise Corrupt(
                f"{file.name}, offset {line.offset}: record batch {at} of shard {line.shard} is "
                "damaged",
                field=file.name,
            )
        end = line.offset + line.length
    if file.read(len(_END_OF_STREAM), end) != _END_OF_STREAM:
        raise Corrupt(f"{file.name}, offset {end}: the stream does not end there", field=file.name)
