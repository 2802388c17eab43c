"""The pool: segments are made ahead of need, recycled, and never taken from a reader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace import errors
from millrace.wal.record import LogPosition, SegmentHeader
from millrace.wal.segment import LogShape
from millrace.wal.segment_pool import SegmentPool
from tests.support.simulator.disk import SimDisk
from tests.wal.harness import SECTOR, SHAPE, new_disk

SIZE = SHAPE.segment_bytes


def new_pool(disk: SimDisk, shape: LogShape = SHAPE) -> SegmentPool:
    disk.make_folder("log")
    disk.sync_folder("")
    return SegmentPool(disk, "log", shape, live=[], free=[], number=0)


def begin(pool: SegmentPool, generation: int) -> None:
    """Put a ready segment to use, as the writer does."""
    segment = pool.take(spare=0)
    assert segment is not None
    header = SegmentHeader(bytes(16), generation, 1, 0, 1, segment.size)
    segment.file.write([b"generation %d" % generation], SECTOR)
    pool.enter(segment.renewed(header))


def fill(pool: SegmentPool, generations: int) -> None:
    for generation in range(1, generations + 1):
        pool.make(ready=1)
        begin(pool, generation)


def place(generation: int) -> LogPosition:
    return LogPosition(generation, SECTOR, 12)


def test_a_segment_is_durable_before_it_is_ready() -> None:
    for seed in range(30):
        disk = new_disk(seed)
        assert new_pool(disk).make(ready=1)
        disk = disk.crash()
        assert disk.names("log") == ["00000001.seg"]
        assert disk.open("log/00000001.seg").read(2 * SIZE, 0) == bytes(SIZE)


def test_no_more_are_made_than_wanted_or_allowed() -> None:
    pool = new_pool(new_disk(), replace(SHAPE, segments_max=3))
    assert [pool.make(ready=2) for _ in range(3)] == [True, True, False]
    assert [pool.make(ready=9) for _ in range(2)] == [True, False]
    segment = pool.take(spare=0)
    assert segment is not None
    assert not pool.make(ready=9), "one that is being begun counts too"


def test_spare_segments_are_not_taken() -> None:
    pool = new_pool(new_disk())
    pool.make(ready=1)
    assert pool.take(spare=1) is None
    assert pool.take(spare=0) is not None
    assert pool.take(spare=0) is None


def test_a_full_disk_leaves_nothing_behind() -> None:
    disk = new_disk()
    pool = new_pool(disk)
    pool.make(ready=1)
    disk.budget_bytes = 2 * SIZE - 1
    with pytest.raises(errors.Full):
        pool.make(ready=2)
    assert disk.names("log") == ["00000001.seg"]
    disk.budget_bytes = 2 * SIZE
    assert pool.make(ready=2), "and it is tried again"


def test_released_segments_are_used_again() -> None:
    disk = new_disk()
    pool = new_pool(disk)
    fill(pool, 3)
    names = disk.names("log")
    assert pool.release_before(3) == 2
    assert [segment.generation for segment in pool.live()] == [3]
    assert len(pool.ready) == 2
    begin(pool, 4)
    begin(pool, 5)
    assert disk.names("log") == names


def test_the_newest_is_never_released() -> None:
    pool = new_pool(new_disk())
    fill(pool, 2)
    assert pool.release_before(99) == 1
    assert [segment.generation for segment in pool.live()] == [2]
    assert pool.release_before(99) == 0


def test_a_held_segment_is_unlinked_and_stays_readable() -> None:
    disk = new_disk()
    pool = new_pool(disk)
    fill(pool, 2)
    hold = pool.hold(1)
    assert hold is not None
    assert [segment.is_held for segment in pool.live()] == [True, False]
    pool.release_before(2)
    assert disk.names("log") == ["00000002.seg"]
    assert not pool.ready
    assert pool.unlinked_bytes() == SIZE
    assert pool.hold(1) is None, "new readers look elsewhere"
    assert pool.lend(place(1)) is None
    assert bytes(hold.buffer(place(1))) == b"generation 1"
    hold.release()
    assert pool.unlinked_bytes() == 0
    pool.sweep()
    assert pool.make(ready=1), "its place is taken by a new one"
    assert disk.names("log") == ["00000002.seg", "00000003.seg"]


def test_a_segment_is_held_until_the_last_reader_goes() -> None:
    pool = new_pool(new_disk())
    fill(pool, 2)
    holds = [pool.hold(1), pool.hold(1)]
    pool.release_before(2)
    for hold, left in zip(holds, (SIZE, 0), strict=True):
        assert hold is not None
        hold.release()
        pool.sweep()
        assert pool.unlinked_bytes() == left


def test_beyond_the_limit_readers_get_copies() -> None:
    pool = new_pool(new_disk())
    fill(pool, 4)
    kept = [pool.lend(place(generation)) for generation in (1, 2)]
    copied = pool.lend(place(3))
    again = pool.lend(place(2))
    assert copied is not None
    assert copied.hold is None
    assert bytes(copied.view) == b"generation 3"
    assert again is not None
    assert again.hold is not None, "what is held already costs no more"
    pool.release_before(4)
    assert pool.unlinked_bytes() == SHAPE.held_bytes_max
    begin(pool, 5)
    assert bytes(copied.view) == b"generation 3"
    for loan, generation in zip(kept, (1, 2), strict=True):
        assert loan is not None
        assert loan.hold is not None
        assert bytes(loan.view) == b"generation %d" % generation


def test_segments_of_another_size_go_when_they_are_free() -> None:
    """After a change of the size in the settings, segments in use stay, free ones are replaced."""
    disk = new_disk()
    pool = new_pool(disk)
    fill(pool, 2)
    segments = [segment for number in (1, 2) if (segment := pool.find(number)) is not None]
    small = replace(SHAPE, segment_bytes=4 * SECTOR)
    pool = SegmentPool(disk, "log", small, live=segments, free=[], number=2)
    pool.release_before(2)
    assert disk.names("log") == ["00000002.seg"]
    pool = SegmentPool(disk, "log", small, live=[], free=segments[1:], number=2)
    assert disk.names("log") == []
    assert not pool.ready


def test_closing_leaves_maps_valid() -> None:
    pool = new_pool(new_disk())
    fill(pool, 1)
    hold = pool.hold(1)
    assert hold is not None
    view = hold.buffer(place(1))
    pool.close()
    assert bytes(view) == b"generation 1"
    assert pool.live() == []
