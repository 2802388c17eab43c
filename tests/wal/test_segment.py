"""Segments, their shape, and the holds of readers."""

from __future__ import annotations

import gc
from collections import deque

import pytest

from millrace import errors
from millrace.wal.record import LogPosition, SegmentHeader
from millrace.wal.segment import Hold, LogShape, Segment
from tests.wal.harness import SECTOR, new_disk

HEADER = SegmentHeader(
    bytes(16), generation=3, nonce=1, prev_crc=0, first_serial=1, size=2 * SECTOR
)


def new_segment() -> Segment:
    file = new_disk().open("file", create_bytes=2 * SECTOR)
    return Segment(file, HEADER, size=2 * SECTOR, end=SECTOR)


@pytest.mark.parametrize("segment_bytes", [0, SECTOR, 3 * SECTOR + 512])
def test_a_segment_has_whole_sectors_and_room_for_a_record(segment_bytes: int) -> None:
    with pytest.raises(errors.Invalid, match="segment_bytes"):
        LogShape(segment_bytes=segment_bytes)


def test_a_log_is_more_than_its_reserve() -> None:
    with pytest.raises(errors.Invalid, match="segments_max"):
        LogShape(segments_max=2, segments_reserve=2)


def test_the_next_life_is_another_object_over_the_same_map() -> None:
    segment = new_segment()
    view = segment.view()
    later = segment.renewed(HEADER._replace(generation=9))
    assert (segment.generation, later.generation) == (3, 9)
    assert later.end == SECTOR
    assert later.view() is view


def test_a_segment_that_was_never_used_has_no_generation() -> None:
    assert Segment(new_disk().create("file"), None, size=0, end=0).generation == 0


def test_a_hold_reads_its_own_generation_until_it_is_released() -> None:
    segment = new_segment()
    segment.file.write([b"payload"], SECTOR)
    returned: deque[Segment] = deque()
    hold = Hold(segment, returned)
    position = LogPosition(3, SECTOR, 7)
    assert bytes(hold.buffer(position)) == b"payload"
    with pytest.raises(errors.Invalid, match="generation 4 is not held"):
        hold.buffer(position._replace(generation=4))
    hold.release()
    hold.release()
    assert list(returned) == [segment], "given back once"
    with pytest.raises(errors.Invalid, match="not held"):
        hold.buffer(position)


def test_a_hold_ends_with_its_block_or_its_last_reference() -> None:
    segment = new_segment()
    returned: deque[Segment] = deque()
    with Hold(segment, returned):
        assert not returned
    assert len(returned) == 1
    hold = Hold(segment, returned)
    del hold
    gc.collect()
    assert len(returned) == 2
