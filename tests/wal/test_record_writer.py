"""The writing end: one record at a time, and none after a failure."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace import errors
from millrace.wal.record import LogMark, LogPosition
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.support.simulator.disk import Effect, SimDisk
from tests.wal.harness import (
    SECTOR,
    SHAPE,
    new_disk,
    open_log,
    read_log,
)

CAPACITY = SHAPE.segment_bytes - SECTOR


def test_an_append_tells_where_the_payload_lies() -> None:
    log, _ = open_log(new_disk())
    assert log.append([b"ab", b"", bytearray(b"c")]) == LogPosition(1, SECTOR + 64, 3)
    position = log.append([array("Q", [1, 2])])
    assert position == LogPosition(1, 2 * SECTOR + 64, 16)
    view = log.buffer(position)
    assert view is not None
    assert bytes(view) == array("Q", [1, 2]).tobytes()


def test_a_payload_may_be_empty_or_in_very_many_buffers() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([])
    log.append([b"%d" % (number % 10) for number in range(5000)])
    assert read_log(disk) == [b"", b"0123456789" * 500]


def test_a_full_segment_is_followed_by_the_next() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    log.prepare()
    positions = [log.append([b"x" * (3 * SECTOR)]) for _ in range(2)]
    assert [position.generation for position in positions] == [1, 2]
    assert [segment.used_bytes for segment in log.segments()] == [5 * SECTOR, 5 * SECTOR]
    assert len(read_log(disk)) == 2


def test_marks_follow_the_records() -> None:
    log, _ = open_log(new_disk())
    assert log.mark() == LogMark(1, SECTOR, 0, 1)
    before = log.mark()
    position = log.append([b"one"])
    assert log.mark_of(position) == before
    assert log.mark()[:2] == (1, 2 * SECTOR)
    assert log.mark().serial == 2
    assert log.mark_of(LogPosition(9, SECTOR + 64, 1)) is None


def failing_write(disk: SimDisk) -> None:
    disk.fail_write_in = 1


def failing_sync(disk: SimDisk) -> None:
    disk.fail_sync_in = 1


def full_disk(disk: SimDisk) -> None:
    """As a copying file system may answer even where space was allocated."""

    def refuse(effect: Effect) -> None:
        if effect.verb == "write":
            raise errors.Full("the disk is full")

    disk.hook = refuse


@pytest.mark.parametrize("fault", [failing_write, failing_sync, full_disk])
def test_a_failed_write_or_sync_ends_the_log_for_ever(fault: Callable[[SimDisk], None]) -> None:
    """After a failed fsync the pages count as clean: a second one would succeed and say nothing.

    Whatever is tried afterwards, and however well the disk is again, nothing may be answered.
    """
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"kept"])
    fault(disk)
    with pytest.raises(errors.DiskFailed, match="the log has ended"):
        log.append([b"lost"])
    disk.hook = None
    effects = disk.effects
    position = LogPosition(1, SECTOR + 64, 4)
    attempts: list[Callable[[], object]] = [
        lambda: log.append([b"again"]),
        lambda: log.append([b"again"], reserve=True),
        log.mark_end,
        log.prepare,
        log.mark,
        lambda: log.release_before(1),
        lambda: log.hold(1),
        lambda: log.lend(position),
        lambda: log.buffer(position),
        lambda: log.mark_of(position),
    ]
    for attempt in attempts * 2:
        with pytest.raises(errors.DiskFailed, match="Open the folder again"):
            attempt()
    log.close()
    with pytest.raises(errors.DiskFailed):
        log.append([b"again"])
    assert disk.effects == effects, "nothing was written, marked or synced any more"
    assert open_log(disk.kill())[1] in ([b"kept"], [b"kept", b"lost"])


def test_a_failed_header_of_a_generation_ends_the_log() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    log.prepare()
    log.append([b"x" * (CAPACITY - 64)])
    disk.fail_sync_in = 1
    with pytest.raises(errors.DiskFailed):
        log.append([b"next"])
    with pytest.raises(errors.DiskFailed):
        log.append([b"next"])
    assert len(open_log(disk.kill())[1]) == 1


def test_an_interrupted_append_ends_the_log() -> None:
    """A signal between write and sync: the same place must not be written again."""
    disk = new_disk()
    log, _ = open_log(disk)

    def interrupt(effect: Effect) -> None:
        if effect.verb == "sync":
            raise KeyboardInterrupt

    disk.hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.append([b"one"])
    disk.hook = None
    effects = disk.effects
    with pytest.raises(errors.DiskFailed, match="interrupted"):
        log.append([b"two"])
    with pytest.raises(errors.DiskFailed, match="interrupted"):
        log.mark_end()
    log.close()
    assert disk.effects == effects
    assert open_log(disk.kill())[1] == [b"one"]


def test_two_appends_at_once_are_refused() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    refused: list[errors.DiskFailed] = []

    def intrude(effect: Effect) -> None:
        disk.hook = None
        with pytest.raises(errors.DiskFailed, match="two were begun at once") as caught:
            log.append([b"second"])
        refused.append(caught.value)

    disk.hook = intrude
    log.append([b"first"])
    assert len(refused) == 1
    assert read_log(disk) == [b"first"]


def test_a_refused_append_changes_nothing() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    effects = disk.effects
    with pytest.raises(errors.TooLarge):
        log.append([b"x" * CAPACITY])
    with pytest.raises(BufferError):
        log.append([memoryview(b"abcdef")[::2]])
    assert disk.effects == effects
    log.append([b"fine"])
    assert read_log(disk) == [b"fine"]


def fill(log: WriteAheadLog, *, reserve: bool) -> int:
    """Append records of one sector until the log is full; return how many there were."""
    count = 0
    while log.room(reserve=reserve):
        log.append([b"x"], reserve=reserve)
        count += 1
    with pytest.raises(errors.Full, match="no free segment"):
        log.append([b"x"], reserve=reserve)
    return count


def test_the_reserve_is_for_those_who_may_use_it() -> None:
    """L8: a full log must still take the settles that empty it."""
    disk = new_disk()
    log, _ = open_log(disk, shape=replace(SHAPE, segments_reserve=2))
    assert log.room() == CAPACITY
    assert log.room(reserve=True) == 2 * CAPACITY, "the last one is for the next open"
    assert fill(log, reserve=False) == 7
    log.append([b"settle"], reserve=True)
    with pytest.raises(errors.Full):
        log.append([b"x"])
    assert log.room() == 0, "what is left of the reserve stays reserved"
    assert fill(log, reserve=True) == 6
    assert log.room(reserve=True) == 0
    log.release_before(3)
    assert log.room() == 0
    assert log.room(reserve=True) == CAPACITY
    while log.prepare():
        pass
    assert fill(log, reserve=False) > 0


def test_end_marks_are_written_once() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    log.mark_end()
    assert log.statistics().records == 0, "the generation's header marks the end already"
    log.append([b"one"])
    log.mark_end()
    log.mark_end()
    assert log.statistics().records == 2
    log.append([b"two"])
    log.close()
    log.close()
    assert log.statistics().records == 4
    assert read_log(disk) == [b"one", b"two"]


def test_in_a_full_segment_the_next_generation_marks_the_end() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"x" * (CAPACITY - 64)])
    log.mark_end()
    assert log.mark().generation == 1, "the reserve is not spent on it"
    log.prepare()
    log.mark_end()
    log.mark_end()
    assert log.mark().generation == 2
    disk.flip("log/00000001.seg", 3 * SECTOR)
    with pytest.raises(errors.Corrupt):
        read_log(disk)
