"""The survey of segments tells damage from segments that were never used."""

from __future__ import annotations

import pytest

from millrace import errors, limits
from millrace.wal.record import SegmentHeader, encode_segment_header
from millrace.wal.replay import SegmentSurvey
from tests.support.simulator.disk import SimDisk
from tests.wal.harness import (
    SECTOR,
    SHAPE,
    new_disk,
    open_log,
)

FIRST = "log/00000001.seg"


def survey(disk: SimDisk, *, needed_from: int = 0) -> SegmentSurvey:
    return SegmentSurvey(disk, "log", needed_from=needed_from)


def written(generations: int = 1) -> SimDisk:
    """Return a disk whose log has this number of generations with one record each."""
    disk = new_disk()
    for number in range(generations):
        log, _ = open_log(disk)
        log.append([b"record %d" % number])
        log.close()
    return disk


def test_a_missing_folder_has_no_segments() -> None:
    found = survey(new_disk())
    assert (found.used, found.free, found.log_id, found.number) == ([], [], None, 0)


def test_generations_are_sorted_and_told_from_free_segments() -> None:
    disk = written(3)
    found = survey(disk)
    assert [segment.generation for segment in found.used] == [1, 2, 3]
    assert found.generation == 3
    assert all(segment.header is None for segment in found.free)
    found = survey(disk, needed_from=3)
    assert [segment.generation for segment in found.used] == [3]
    assert sorted(segment.generation for segment in found.free) == [0, 1, 2]
    assert found.generation == 3, "the highest is known, whatever is needed"
    assert found.number == len(disk.names("log"))


def test_names_that_are_not_segments_are_left_alone() -> None:
    disk = written()
    for name in ("log/notes.txt", "log/x.seg", "log/00000009.new"):
        disk.create(name)
    assert survey(disk).number == 2


def test_a_header_that_is_damaged_before_its_first_record_is_no_loss() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    del log
    disk.flip(FIRST, 20)
    found = survey(disk)
    assert found.used == []
    assert len(found.free) == 2


@pytest.mark.parametrize("offset", [0, 9, 24, 40, 63])
def test_a_damaged_header_before_records_is_corruption(offset: int) -> None:
    disk = written()
    disk.flip(FIRST, offset)
    with pytest.raises(errors.Corrupt, match="its header is damaged, but records follow") as caught:
        survey(disk)
    assert caught.value.field == FIRST
    assert "backup" in caught.value.message


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_header_and_a_first_record_that_are_both_damaged_are_corruption(*, zeroed: bool) -> None:
    """It may be the newest generation, and records that were acknowledged follow."""
    disk = new_disk()
    log, _ = open_log(disk)
    for _ in range(3):
        log.append([b"acknowledged"])
    log.close()
    if zeroed:
        disk.open(FIRST).write([bytes(2 * SECTOR)], 0)
    else:
        disk.flip(FIRST, 9)
        disk.flip(FIRST, SECTOR + 70)
    with pytest.raises(
        errors.Corrupt, match=f"records follow it, at offset {2 * SECTOR}"
    ) as caught:
        survey(disk)
    assert caught.value.field == FIRST


def test_a_record_far_behind_a_damaged_header_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment is read in pieces, and a record may reach over their border."""
    monkeypatch.setattr(limits, "REPLAY_READ_BYTES", 2 * SECTOR)
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([bytes(2 * SECTOR)])
    log.append([b"x" * 2 * SECTOR])
    log.close()
    disk.flip(FIRST, 9)
    disk.flip(FIRST, SECTOR + 70)
    with pytest.raises(errors.Corrupt, match=f"records follow it, at offset {4 * SECTOR}"):
        survey(disk)


def test_what_an_earlier_life_left_behind_a_damaged_header_is_none() -> None:
    """A segment that was recycled, and whose new life holds no record yet."""
    disk = written()
    log, _ = open_log(disk)
    for needed in (2, 3):
        log.append([b"record of generation %d" % needed])
        log.release_before(needed)
        log.roll()
    log.close()
    found = survey(disk, needed_from=3)
    assert [segment.generation for segment in found.used] == [3, 4]
    assert found.used[-1].name == FIRST
    disk.flip(FIRST, 9)
    found = survey(disk, needed_from=3)
    assert [segment.generation for segment in found.used] == [3]
    assert FIRST in [segment.name for segment in found.free]


def test_a_damaged_header_of_a_free_segment_is_none() -> None:
    disk = written(3)
    disk.flip(FIRST, 9)
    assert [segment.generation for segment in survey(disk, needed_from=2).used] == [2, 3]
    with pytest.raises(errors.Corrupt, match="damaged"):
        survey(disk, needed_from=1)


def test_a_later_format_is_refused_and_not_overwritten() -> None:
    disk = written()
    disk.open(FIRST).write([b"MRSEG2\0\0"], 0)
    with pytest.raises(errors.Corrupt, match="format is that of a later version"):
        survey(disk)


def test_a_header_older_than_its_records_is_corruption() -> None:
    """A device that lost the write of a header, but kept later ones."""
    disk = written(2)
    old = disk.open(FIRST).read(SECTOR, 0)
    second = next(segment for segment in survey(disk).used if segment.generation == 2)
    second.file.write([old], 0)
    disk.remove(FIRST)
    with pytest.raises(errors.Corrupt, match="its header is damaged, but records follow"):
        survey(disk)


def test_a_file_that_was_cut_short_is_corruption() -> None:
    """A copy that stopped half-way would otherwise pass for a log that ends early."""
    disk = written()
    content = disk.open(FIRST).read(SHAPE.segment_bytes, 0)
    disk.remove(FIRST)
    disk.create(FIRST).write([content[: 3 * SECTOR]], 0)
    with pytest.raises(errors.Corrupt, match="it had 32768 bytes and has 12288"):
        survey(disk)


def test_a_segment_of_another_log_is_corruption() -> None:
    disk = written(2)
    header = SegmentHeader(b"another log's id", 9, 1, 0, 1, SHAPE.segment_bytes)
    disk.open("log/00000009.seg", create_bytes=SHAPE.segment_bytes).write(
        [encode_segment_header(header)], 0
    )
    with pytest.raises(errors.Corrupt, match="belongs to another log"):
        survey(disk)


def test_two_segments_of_one_generation_are_corruption() -> None:
    """A segment that was copied within the folder."""
    disk = written()
    content = disk.open(FIRST).read(SHAPE.segment_bytes, 0)
    disk.create("log/00000009.seg").write([content], 0)
    with pytest.raises(errors.Corrupt, match="same generation"):
        survey(disk)
