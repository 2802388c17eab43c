"""Sealed files: they describe themselves, are read by anyone who knows Arrow, and notice damage."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.core.format.block import (
    FLAG_DELETES,
    FLAG_HEADERS,
    FLAG_KEYS,
    Block,
)
from millrace.core.model import NewMessage, Row
from millrace.errors import Corrupt
from millrace.store.row_location import RowLocation
from millrace.store.row_reader import decode_sealed
from millrace.store.sealed import (
    FOLDER,
    SEALED_SCHEMA,
    BatchEntry,
    Moved,
    SealedFile,
    SealedFiles,
    SealedWriter,
    file_name,
    file_number,
    read_footer,
)
from tests.support.simulator.disk import SimDisk

GOLDEN = Path(__file__).parents[1] / "formats" / "sealed-1.arrow"
"""Written by the first version of the format; every later one must read it."""

MESSAGES = [
    NewMessage(b"body", b"key", (("name", b"value"), ("name", b""))),
    NewMessage(None, b"deleted"),
    NewMessage(b"", None, ()),
    NewMessage(b"x" * 100),
]
ROWS = [
    Row(at, 1_700_000_000_000, message.body, message.key, message.headers)
    for at, message in enumerate(MESSAGES, 11)
]
FLAGS = FLAG_KEYS | FLAG_HEADERS | FLAG_DELETES


def disk_with(data: bytes = b"") -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_folder(FOLDER)
    if data:
        disk.create(file_name(1)).write([data], 0)
    return disk


def write(disk: SimDisk) -> list[RowLocation]:
    """Two record batches: one with everything that rows may have, and one with holes."""
    time_ms = ROWS[0].time_ms
    full = Block.of_messages(MESSAGES).arrow(7, 11, time_ms).select(SEALED_SCHEMA.names)
    bare = Block.of_bodies([b"%d" % at for at in range(5)]).arrow(8, 100, time_ms)
    holes = bare.take(pa.array([0, 3, 4])).select(SEALED_SCHEMA.names)
    writer = SealedWriter(disk, 1, lambda: None)
    places = [
        writer.add(7, 11, 4, full, FLAGS, [time_ms]),
        writer.add(8, 100, 5, holes, 0, [time_ms]),
    ]
    writer.close()
    return places


def places_of(lines: list[BatchEntry]) -> list[RowLocation]:
    time_ms = ROWS[0].time_ms
    return [
        RowLocation(
            1,
            line.offset,
            line.length,
            line.rows,
            line.last - line.first + 1,
            time_ms,
            time_ms,
            line.flags,
            sealed=True,
            number=at,
            crc=line.crc,
        )
        for at, line in enumerate(lines)
    ]


def rows_at(file: SealedFile, place: RowLocation, first: int) -> list[Row]:
    decoded = decode_sealed(place, file.read(place, 7))
    return decoded._rows(first, 0, place.count)


def check(disk: SimDisk) -> None:
    lines = read_footer(disk, 1)
    assert [line[:5] for line in lines] == [(7, 11, 14, 4, FLAGS), (8, 100, 104, 3, 0)]
    file = SealedFile(disk, 1)
    full, holes = places_of(lines)
    assert rows_at(file, full, 11) == ROWS
    assert [(row.seq, row.body) for row in rows_at(file, holes, 100)] == [
        (100, b"0"),
        (103, b"3"),
        (104, b"4"),
    ]


def test_a_file_describes_itself() -> None:
    disk = disk_with()
    places = write(disk)
    assert places_of(read_footer(disk, 1)) == places
    check(disk)


def test_files_of_the_first_version_are_read() -> None:
    check(disk_with(GOLDEN.read_bytes()))


def test_anyone_who_knows_arrow_reads_it() -> None:
    with pa.ipc.open_stream(pa.py_buffer(GOLDEN.read_bytes())) as stream:
        assert stream.schema.equals(SEALED_SCHEMA)
        table = stream.read_all()
    assert table.column("seq").to_pylist() == [11, 12, 13, 14, 100, 103, 104]
    assert table.column("value").to_pylist()[:3] == [b"body", None, b""]


def test_every_flipped_bit_is_noticed() -> None:
    data = GOLDEN.read_bytes()
    places = places_of(read_footer(disk_with(data), 1))
    for offset in range(places[0].offset, len(data)):
        changed = bytearray(data)
        changed[offset] ^= 1 << offset % 8
        disk = disk_with(bytes(changed))
        file = SealedFile(disk, 1)
        hits = [p for p in places if p.offset <= offset < p.offset + p.length]
        for place in places:
            if place in hits:
                with pytest.raises(Corrupt, match=file_name(1)):
                    file.read(place, 7)
            else:
                file.read(place, 7)
        if offset >= places[-1].offset + places[-1].length + 8:
            with pytest.raises(Corrupt, match="trailer"):
                read_footer(disk, 1)


def test_a_file_that_was_cut_short_is_damage() -> None:
    data = GOLDEN.read_bytes()
    places = places_of(read_footer(disk_with(data), 1))
    disk = disk_with(data[: places[1].offset + 10])
    with pytest.raises(Corrupt):
        read_footer(disk, 1)
    file = SealedFile(disk, 1)
    file.read(places[0], 7)
    with pytest.raises(Corrupt):
        file.read(places[1], 8)


def test_a_file_that_is_not_there_may_have_moved() -> None:
    with pytest.raises(Moved):
        SealedFiles(disk_with()).get(5)


def test_abandoned_files_leave_nothing() -> None:
    disk = disk_with()
    SealedWriter(disk, 3, lambda: None).abandon()
    assert disk.names(FOLDER) == []


def test_names() -> None:
    assert file_number("000000000012.arrow") == 12
    for name in ("12.arrow", "000000000012", "00000000001x.arrow", "000000000012.arrow.tmp"):
        assert file_number(name) is None
