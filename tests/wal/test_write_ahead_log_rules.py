"""The rules of the log, L1 to L9, each with the disaster that it prevents.

L6 and L7 are rules of the store above, L8 of the log is in test_writer.py (the reserve).
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from millrace import errors
from millrace.wal.record import LogPosition
from millrace.wal.replay import Replay
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.support.simulator.disk import Crashed, Effect, SimDisk
from tests.wal.harness import (
    SECTOR,
    SHAPE,
    Bomb,
    new_disk,
    open_log,
    payload_of,
    read_log,
)

SECTORS = SHAPE.segment_bytes // SECTOR


def kill_before_sync(disk: SimDisk, log: WriteAheadLog, payload: bytes) -> SimDisk:
    """Let the process end after the write of a record and before its sync."""

    def end(effect: Effect) -> None:
        if effect.verb == "sync":
            raise Crashed

    disk.hook = end
    with pytest.raises(Crashed):
        log.append([payload])
    return disk.kill()


def test_l1_the_log_is_never_cut() -> None:
    """The tail was cut, and a replacement of equal length written in its place.

    The old record behind it came back to life: same generation, right offset, valid checksum. So
    nothing is ever appended in a generation that an open has found: what was torn stays where it
    is, byte for byte, and the log goes on elsewhere.
    """
    for seed in range(40):
        disk = new_disk(seed)
        log, _ = open_log(disk)
        log.append([b"first"])
        disk.hook = Bomb(disk.effects + 1)
        with pytest.raises(Crashed):
            log.append([b"second" * 1000])
        disk = disk.crash()
        before = disk.open("log/00000001.seg").read(SHAPE.segment_bytes, 0)
        log, found = open_log(disk)
        log.append([b"SECOND" * 1000])
        log.append([b"third"])
        assert disk.open("log/00000001.seg").read(SHAPE.segment_bytes, 0) == before
        assert read_log(disk) == [*found, b"SECOND" * 1000, b"third"]


def test_l2_each_record_names_its_predecessor_across_segments() -> None:
    """A segment fell back to an older state: the device had lost writes that it had confirmed.

    Its shorter chain is valid in itself. The next generation names the record that it went on
    from, so that the hole is seen.
    """
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"one"])
    old = disk.open("log/00000001.seg").read(SHAPE.segment_bytes, 0)
    log.append([b"two"])
    log.close()
    log, _ = open_log(disk)
    log.append([b"three"])
    disk.open("log/00000001.seg").write([old], 0)
    with pytest.raises(errors.Corrupt, match="00000001"):
        read_log(disk)


def test_l2_generations_are_never_used_twice() -> None:
    """Two lives with one number would take each other's records for their own."""
    shape = replace(SHAPE, segments_max=20)
    for seed in range(40):
        disk, chance = new_disk(seed), random.Random(seed)
        highest = 0
        for number in range(12):
            disk.hook = Bomb(disk.effects + chance.randrange(12)) if number % 3 else None
            try:
                log, _ = open_log(disk, shape=shape, seed=number)
                assert log.mark().generation > highest
                highest = log.mark().generation
                log.append([b"x"])
            except Crashed:
                disk = disk.crash()
            else:
                disk = disk.kill()


def test_l3_no_acknowledged_sector_is_written_again() -> None:
    """A power failure tore a sector that held the end of an acknowledged record."""
    disk = new_disk()
    log, _ = open_log(disk)
    chance = random.Random(3)
    durable: dict[int, bytes] = {}
    for number in range(60):
        log.prepare()
        log.append([payload_of(number, chance.randrange(2 * SECTOR))])
        for generation, used_bytes, _ in log.segments():
            view = log.buffer(LogPosition(generation, 0, used_bytes))
            assert view is not None
            assert bytes(view).startswith(durable.get(generation, b""))
            assert used_bytes % SECTOR == 0
            durable[generation] = bytes(view)
        log.release_before(log.mark().generation - 1)
    assert len(durable) > 10


def test_l3_a_bad_record_before_a_whole_one_refuses_the_folder() -> None:
    """A flipped bit in an acknowledged record passed for a torn tail: all behind it was lost."""
    disk = new_disk()
    log, _ = open_log(disk)
    for number in range(5):
        log.append([b"record %d" % number])
    disk.flip("log/00000001.seg", 2 * SECTOR + 64)
    with pytest.raises(errors.Corrupt, match=r"log/00000001.seg, offset 8192: a bad record"):
        open_log(disk)


def test_l3_only_the_last_record_may_be_torn() -> None:
    """A power failure during an append: acknowledged records stay, the rest is cut."""
    fates = set()
    for seed in range(120):
        disk = new_disk(seed)
        log, _ = open_log(disk)
        log.append([b"acknowledged"])
        disk.hook = Bomb(disk.effects + 1)
        with pytest.raises(Crashed):
            log.append([b"in flight" * 1000])
        found = read_log(disk.crash())
        assert found in ([b"acknowledged"], [b"acknowledged", b"in flight" * 1000])
        fates.add(len(found))
    assert fates == {1, 2}


def test_l3_an_end_mark_proves_the_last_record() -> None:
    """The last record rotted while the node was idle, and was cut as if it had been torn."""
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"idle"])
    log.mark_end()
    disk.flip("log/00000001.seg", SECTOR + 64)
    with pytest.raises(errors.Corrupt):
        read_log(disk)
    disk.flip("log/00000001.seg", SECTOR + 64)
    disk.flip("log/00000001.seg", 2 * SECTOR + 20)
    assert read_log(disk) == [b"idle"], "a damaged end mark loses nothing"


def test_l3_a_closed_log_ends_with_a_mark() -> None:
    """The same damage, while the node was switched off."""
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"last"])
    log.close()
    disk.flip("log/00000001.seg", SECTOR + 64)
    with pytest.raises(errors.Corrupt):
        open_log(disk)


def test_l3_open_makes_the_last_record_durable() -> None:
    """Killed before the sync, opened, the record delivered from the page cache, then power lost.

    The record was gone, but somebody had seen it: a phantom.
    """
    for seed in range(40):
        disk = new_disk(seed)
        log, _ = open_log(disk)
        log.append([b"one"])
        disk = kill_before_sync(disk, log, b"two" * 2000)
        _, found = open_log(disk)
        assert found == [b"one", b"two" * 2000], "the page cache still has it"
        assert read_log(disk.crash()) == found


def test_l3_open_does_not_trust_pages_that_count_as_clean() -> None:
    """The sync failed, the pages count as clean: syncing again would write nothing."""
    fates = set()
    for seed in range(60):
        disk = new_disk(seed)
        log, _ = open_log(disk)
        log.append([b"one"])
        disk.fail_sync_in = 1
        with pytest.raises(errors.DiskFailed):
            log.append([b"two" * 2000])
        disk = disk.kill()
        _, found = open_log(disk)
        assert read_log(disk.crash()) == found
        fates.add(len(found))
    assert fates == {1, 2}


def test_l3_open_writes_the_last_record_once_and_identical() -> None:
    """Should the power fail while open writes it, any mixture of old and new is the same bytes."""
    disk = new_disk()
    log, _ = open_log(disk)
    log.append([b"one" * 3000])
    before = disk.open("log/00000001.seg").read(SHAPE.segment_bytes, 0)
    for seed in range(30):
        copy = new_disk(seed)
        copy.make_folder("log")
        copy.create("log/00000001.seg").write([before], 0)
        copy.open("log/00000001.seg").sync()
        copy.sync_folder("log")
        copy.sync_folder("")
        writes: list[Effect] = []

        def watch(effect: Effect, copy: SimDisk = copy, writes: list[Effect] = writes) -> None:
            if effect.name.endswith("1.seg") and effect.verb in ("write", "sync"):
                writes.append(effect)
                if len(writes) == 2:
                    raise Crashed

        copy.hook = watch
        with pytest.raises(Crashed):
            open_log(copy)
        assert [effect.verb for effect in writes] == ["write", "sync"]
        assert copy.crash().open("log/00000001.seg").read(SHAPE.segment_bytes, 0) == before


def test_l4_a_record_never_spans_segments() -> None:
    """Half a transaction in one segment, half in the next, and a crash in between."""
    disk = new_disk()
    log, _ = open_log(disk)
    log.prepare()
    assert log.record_bytes_max == SHAPE.segment_bytes - SECTOR - 64
    largest = payload_of(1, log.record_bytes_max)
    log.append([b"small"])
    position = log.append([largest])
    assert (position.generation, position.offset) == (2, SECTOR + 64)
    effects = disk.effects
    with pytest.raises(errors.TooLarge, match=str(log.record_bytes_max)) as caught:
        log.append([largest, b"!"])
    assert caught.value.limit == log.record_bytes_max
    assert disk.effects == effects, "nothing was written"
    assert read_log(disk) == [b"small", largest]


def test_l5_appends_only_write_and_sync() -> None:
    """Allocating in the append path made commits slow, and a full disk fatal in mid-record."""
    disk = new_disk()
    log, _ = open_log(disk)
    while log.prepare():
        pass
    seen: list[str] = []
    disk.hook = lambda effect: seen.append(effect.verb)
    for number in range(10):
        seen.clear()
        log.append([payload_of(number, SECTOR)])
        log.mark_end()
        assert set(seen) == {"write", "sync"}
        if number % 2:
            disk.hook = None
            log.release_before(log.mark().generation)
            log.prepare()
            disk.hook = lambda effect: seen.append(effect.verb)


def test_l5_a_segment_is_written_and_synced_before_it_is_used() -> None:
    """The file was there, but its name or its size was not: the power failed, and it was empty."""
    for seed in range(60):
        disk = new_disk(seed)
        log, _ = open_log(disk)
        payloads = []
        for number in range(8):
            log.prepare()
            payloads.append(payload_of(number, 2 * SECTOR))
            log.append([payloads[-1]])
        assert read_log(disk.crash()) == payloads


def test_l5_a_name_that_a_killed_process_left_unsynced_is_synced_before_use() -> None:
    """Killed between rename and sync of the folder; the next process filled that segment."""
    for seed in range(40):
        disk = new_disk(seed)
        log, _ = open_log(disk)

        def end(effect: Effect) -> None:
            if effect.verb == "sync_folder":
                raise Crashed

        disk.hook = end
        with pytest.raises(Crashed):
            log.prepare()
        disk = disk.kill()
        log, _ = open_log(disk)
        payloads: list[bytes] = []
        while log.room(reserve=True):
            payloads.append(payload_of(len(payloads), 1))
            log.append([payloads[-1]], reserve=True)
        assert read_log(disk.crash()) == payloads


def test_l5_a_full_log_refuses_and_goes_on_after_a_release() -> None:
    """At its limit the log neither grows nor ends; nothing is half written."""
    disk = new_disk()
    log, _ = open_log(disk, shape=replace(SHAPE, segments_free=9))
    while log.prepare():
        pass
    assert len(disk.names("log")) == SHAPE.segments_max
    count = 0
    while log.room():
        log.append([b"%d" % count])
        count += 1
    assert count == (SHAPE.segments_max - SHAPE.segments_reserve) * (SECTORS - 1)
    effects = disk.effects
    with pytest.raises(errors.Full):
        log.append([b"x"])
    assert disk.effects == effects
    log.release_before(3)
    log.append([b"goes on"])
    assert log.room() > 0


def test_l5_a_full_disk_does_not_end_the_log() -> None:
    """Preparing found no space: appends go on in ready segments."""
    disk = new_disk()
    log, _ = open_log(disk)
    disk.budget_bytes = 0
    with pytest.raises(errors.Full):
        log.prepare()
    payloads = [payload_of(number, 1) for number in range(SECTORS - 1)]
    for payload in payloads:
        log.append([payload])
    assert read_log(disk) == payloads
    assert not [name for name in disk.names("log") if name.endswith(".new")]


def test_l9_a_held_segment_is_never_overwritten() -> None:
    """A kept Arrow batch changed under its user when its segment was recycled."""
    disk = new_disk()
    log, _ = open_log(disk)
    position = log.append([b"kept by a reader"])
    loan = log.lend(position)
    assert loan is not None
    for number in range(40):
        log.prepare()
        log.append([payload_of(number, 3 * SECTOR)])
        log.release_before(log.mark().generation)
    assert bytes(loan.view) == b"kept by a reader"
    assert "00000001.seg" not in disk.names("log")
    assert log.statistics().held_bytes == SHAPE.segment_bytes
    assert len(disk.names("log")) <= SHAPE.segments_max
    assert loan.hold is not None
    loan.hold.release()
    assert log.statistics().held_bytes == 0


def test_l9_the_same_without_a_hold_shows_why() -> None:
    """The view of a reader that holds nothing does change: the test above tests something."""
    disk = new_disk()
    log, _ = open_log(disk)
    view = log.buffer(log.append([b"not held"]))
    assert view is not None
    for number in range(40):
        log.prepare()
        log.append([payload_of(number, 3 * SECTOR)])
        log.release_before(log.mark().generation)
    assert bytes(view) != b"not held"


def test_a_stale_generation_is_never_read_at_any_offset() -> None:
    """Recycled many times over: whatever earlier lives left, at every offset, is not data.

    The records of all lives have the same lengths, so that each new end lies exactly before a
    whole, old record with a valid checksum.
    """
    for sectors in (1, 2, 3):
        disk = new_disk(sectors)
        log, _ = open_log(disk)
        start, expected = log.mark(), list[bytes]()
        for number in range(120):
            log.prepare()
            expected.append(payload_of(number, sectors * SECTOR - 64))
            log.append([expected[-1]])
            assert read_log(disk, start=start, needed_from=start.generation) == expected
            if number % 7 == 6:
                disk = disk.kill()
                log, found = open_log(disk, start=start, needed_from=start.generation, seed=number)
                assert found == expected
                start, expected = log.mark(), []
                log.release_before(start.generation)
        assert log.mark().generation > 3 * len(disk.names("log"))


def test_a_stale_record_in_front_of_every_end() -> None:
    """The same with records of random lengths, and a power failure at every end."""
    chance = random.Random(11)
    disk = new_disk(12)
    log, _ = open_log(disk)
    start, expected = log.mark(), list[bytes]()
    for number in range(300):
        log.prepare()
        expected.append(payload_of(number, chance.randrange(3 * SECTOR)))
        log.append([expected[-1]])
        disk = disk.crash()
        replay = Replay(disk, start=start, needed_from=start.generation)
        assert [bytes(payload) for _, payload in replay] == expected
        log = WriteAheadLog.open(replay, SHAPE, chance=chance.randbytes)
        if number % 3 == 0:
            start, expected = log.mark(), []
            log.release_before(start.generation)
