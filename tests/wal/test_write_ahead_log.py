"""The log from open to close, on both disks."""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from millrace import errors
from millrace.wal.disk import RealDisk
from millrace.wal.record import LogPosition
from millrace.wal.replay import ORIGIN, Replay
from millrace.wal.segment import Loan, LogShape
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.support.simulator.disk import Crashed, Effect
from tests.wal.harness import (
    SECTOR,
    SHAPE,
    Bomb,
    new_disk,
    open_log,
    payload_of,
    read_log,
)


def test_a_log_on_the_real_disk(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    payloads = [b"", b"small", os.urandom(3 * SECTOR), b"x" * (7 * SECTOR - 64)]
    log = WriteAheadLog.open(Replay(disk), SHAPE, chance=os.urandom)
    for payload in payloads:
        log.prepare()
        position = log.append([payload[:2], payload[2:]])
        view = log.buffer(position)
        assert view is not None
        assert bytes(view) == payload
    statistics = log.statistics()
    assert (statistics.records, statistics.syncs) == (4, 6)
    assert statistics.written_bytes == (1 + 1 + 4 + 7 + 2) * SECTOR
    assert statistics.zeroed_bytes == 3 * SHAPE.segment_bytes
    assert statistics.sync_seconds > 0
    log.close()
    assert read_log(RealDisk(tmp_path, read_only=True)) == payloads
    log = WriteAheadLog.open(Replay(disk), SHAPE, chance=os.urandom)
    start = log.mark()
    assert log.release_before(start.generation) == 2
    log.append([b"more"])
    log.close()
    assert read_log(disk, start=start, needed_from=start.generation) == [b"more"]


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        log = WriteAheadLog.open(Replay(disk), SHAPE, chance=os.urandom)
        log.append([b"x"])
        log.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(errors.Corrupt, match="generation 77"):
        Replay(disk, start=ORIGIN._replace(generation=77))
    with pytest.raises(errors.Corrupt, match="another log"):
        WriteAheadLog.open(Replay(disk), SHAPE, chance=os.urandom, log_id=b"another log's id")
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_id_is_kept() -> None:
    disk = new_disk()
    replay = Replay(disk)
    log = WriteAheadLog.open(
        replay, SHAPE, chance=random.Random(1).randbytes, log_id=b"0123456789abcdef"
    )
    log.append([b"one"])
    log.close()
    log, _ = open_log(disk)
    assert log.id == b"0123456789abcdef"
    log.close()
    with pytest.raises(errors.Corrupt, match="another log"):
        WriteAheadLog.open(Replay(disk), SHAPE, chance=random.Random(1).randbytes, log_id=bytes(16))
    assert len(open_log(new_disk())[0].id) == 16


def test_a_closed_log_refuses() -> None:
    log, _ = open_log(new_disk())
    log.close()
    for attempt in (lambda: log.append([b"x"]), log.mark_end, log.prepare, log.mark):
        with pytest.raises(errors.Closed):
            attempt()


def test_what_was_not_iterated_is_verified_at_open() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    for number in range(3):
        log.append([b"%d" % number])
    log.close()
    disk.flip("log/00000001.seg", 2 * SECTOR + 64)
    with pytest.raises(errors.Corrupt, match="offset 8192"):
        WriteAheadLog.open(Replay(disk), SHAPE, chance=random.Random(1).randbytes)


def test_unfinished_segments_are_removed_and_nothing_else() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    log.close()
    for name in ("log/00000007.new", "log/notes.new", "log/notes"):
        disk.create(name)
    open_log(disk)
    assert disk.names("log") == ["00000001.seg", "00000002.seg", "notes", "notes.new"]


def test_a_crash_at_any_effect_of_the_first_open_does_no_harm() -> None:
    last = new_disk()
    open_log(last)
    for effect in range(last.effects):
        for seed in range(4):
            disk = new_disk(seed)
            disk.hook = Bomb(effect)
            with pytest.raises(Crashed):
                open_log(disk)
            disk = disk.crash() if seed % 2 else disk.kill()
            log, found = open_log(disk)
            assert found == []
            log.append([b"works"])
            disk = disk.crash()
            assert read_log(disk) == [b"works"]


def test_a_full_disk_can_be_opened_and_emptied() -> None:
    """Operations that free space must be able to run: open needs no space."""
    disk = new_disk()
    log, _ = open_log(disk)
    disk.budget_bytes = 0
    for life in (1, 2):
        for _ in range(3):
            log.append([b"x" * SECTOR], reserve=True)
        with pytest.raises(errors.Full):
            log.append([b"x" * SECTOR], reserve=True)
        with pytest.raises(errors.Full):
            log.prepare()
        disk = disk.kill()
        log, found = open_log(disk)
        assert len(found) == 3 * life
        assert (log.room(reserve=True) > 0) == (life == 1), "one segment was kept for this open"
    with pytest.raises(errors.Full):
        log.append([b"x"], reserve=True)
    log.mark_end()
    mark = log.mark()
    assert log.release_before(mark.generation) == 1
    assert log.room(reserve=True) == 0, "it is kept for the next open"
    disk = disk.kill()
    log, _ = open_log(disk, start=mark, needed_from=mark.generation)
    log.append([b"settle"], reserve=True)
    assert read_log(disk.kill(), start=mark, needed_from=mark.generation) == [b"settle"]


def test_opening_again_and_again_takes_no_more_segments() -> None:
    """A process that is killed at every start must not fill the disk with empty generations."""
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"one"])
    names = len(disk.names("log"))
    for _ in range(20):
        disk = disk.kill()
        log, found = open_log(disk)
        assert found == [b"one"]
    assert len(disk.names("log")) <= names + 1
    assert log.mark().generation == 21, "though each open began a generation"


def test_segments_before_the_start_are_kept_while_they_are_needed() -> None:
    """The rows in them are not sealed yet: replay does not read them, but readers do."""
    disk = new_disk()
    log, _ = open_log(disk)
    log.prepare()
    positions = [log.append([b"%d" % number * (4 * SECTOR)]) for number in range(2)]
    start = log.mark()
    log.close()
    log, found = open_log(disk, start=start, needed_from=1)
    assert found == []
    assert [segment.generation for segment in log.segments()] == [1, 2, 3]
    assert [segment.used_bytes for segment in log.segments()] == [8 * SECTOR, 7 * SECTOR, SECTOR]
    hold = log.hold(1)
    assert hold is not None
    assert bytes(hold.buffer(positions[0]))[:1] == b"0"
    log, _ = open_log(disk.kill(), start=start, needed_from=2)
    assert [segment.generation for segment in log.segments()] == [2, 4]
    assert log.hold(1) is None
    assert log.buffer(positions[0]) is None


def test_an_empty_generation_that_a_mark_names_stays() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"one"])
    log.close()
    log, _ = open_log(disk)
    start = log.mark()
    assert start.offset == SECTOR
    for _ in range(3):
        log, found = open_log(disk.kill(), start=start, needed_from=start.generation)
        assert found == []
        disk = disk.kill()


def test_the_size_of_segments_can_be_changed() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"old"])
    log.close()
    wide = replace(SHAPE, segment_bytes=20 * SECTOR)
    log, found = open_log(disk, shape=wide)
    assert found == [b"old"]
    log.append([b"new" * 5 * SECTOR])
    log.close()
    assert read_log(disk) == [b"old", b"new" * 5 * SECTOR]
    log, _ = open_log(disk, shape=wide)
    log.release_before(log.mark().generation)
    log.close()
    sizes = [disk.open(f"log/{name}").size for name in disk.names("log")]
    assert set(sizes) == {20 * SECTOR}


def test_the_default_shape_is_that_of_the_limits() -> None:
    shape = LogShape()
    assert shape.segment_bytes == 64 * 1024 * 1024
    assert shape.segments_reserve < shape.segments_max


def test_a_failure_while_preparing_ends_the_log() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    disk.fail_sync_in = 1
    with pytest.raises(errors.DiskFailed):
        log.prepare()
    with pytest.raises(errors.DiskFailed):
        log.append([b"x"])


def test_preparing_beside_appends_and_reads() -> None:
    """Between any two effects of one lane the others may run; the state must be whole there."""
    disk = new_disk()
    log, _ = open_log(disk)
    inside: list[int] = []

    def meanwhile(effect: Effect) -> None:
        if effect.name.endswith(".new") and effect.verb in ("write", "sync_all"):
            inside.append(effect.number)
            disk.hook = None
            position = log.append([b"beside"])
            assert log.segments()
            assert log.room() > 0
            hold = log.hold(position.generation)
            assert hold is not None
            assert bytes(hold.buffer(position)) == b"beside"
            disk.hook = meanwhile

    disk.hook = meanwhile
    assert log.prepare()
    assert inside
    assert read_log(disk) == [b"beside"] * len(inside)


def test_a_reader_without_a_copy() -> None:
    log, _ = open_log(new_disk())
    position = log.append([b"0123456789"])
    loan = log.lend(position.part(start=2, length=3))
    assert loan is not None
    assert bytes(loan.view) == b"234"
    assert loan.hold is not None
    assert log.lend(LogPosition(99, SECTOR, 1)) is None


@pytest.mark.slow
def test_three_threads_at_once_on_the_real_disk(tmp_path: Path) -> None:
    """One appends, one prepares and releases, one reads: what a reader was lent never changes."""
    log = WriteAheadLog.open(Replay(RealDisk(tmp_path)), SHAPE, chance=os.urandom)
    written: deque[tuple[LogPosition, bytes]] = deque(maxlen=4)
    done = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except (errors.MillraceError, AssertionError) as error:
                failures.append(error)

        return run

    def append() -> None:
        for number in range(300):
            payload = payload_of(number, 1 + number % 9000)
            while True:
                with suppress(errors.Full):
                    written.append((log.append([payload]), payload))
                    break
                if failures:
                    return

    def care() -> None:
        while not done.is_set():
            log.prepare()
            log.release_before(log.mark().generation)

    loans: deque[tuple[Loan, bytes]] = deque(maxlen=20)
    threads = [threading.Thread(target=guarded(work)) for work in (append, care)]
    for thread in threads:
        thread.start()
    while threads[0].is_alive():
        for position, payload in tuple(written):
            loan = log.lend(position)
            if loan is not None:
                loans.append((loan, payload))
        assert all(loan.view == payload for loan, payload in tuple(loans))
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert loans
    assert len(os.listdir(tmp_path / "log")) <= SHAPE.segments_max
    log.close()
