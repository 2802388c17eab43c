"""Catch-up from the log: all committed entries since an index, in order, or none."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from millrace.core.changes import Batch, Changes, Entry, EntryKind
from millrace.core.format.codec import encode_entry
from millrace.core.model import Epoch, GroupId, History, Index, Millis, ShardId
from millrace.errors import Corrupt, Retry
from millrace.journal.entries_since import entries_since
from millrace.wal.replay import Replay
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.support.simulator.disk import SimDisk
from tests.wal.harness import (
    SECTOR,
    SHAPE,
    new_disk,
    open_log,
)

A, B = GroupId(0), GroupId(7)
"""A commits on sync, B commits later."""


def entry(
    index: int, *, group: GroupId = A, epoch: int = 1, kind: EntryKind = EntryKind.DATA
) -> Entry:
    batches = []
    if kind is EntryKind.DATA:
        batches = [Batch(ShardId(1), Index(index), Millis(epoch), Changes(), [])]
    return Entry(group, Epoch(epoch), Index(index), History(bytes(16)), batches, kind=kind)


def fill(log: WriteAheadLog, *entries: Entry) -> None:
    """One record each."""
    for one in entries:
        while log.prepare():
            pass
        log.append(encode_entry(one, 0))


def since(log: WriteAheadLog, after: int, upto: int, group: GroupId = A) -> Iterable[Entry] | None:
    return entries_since(
        log, group, Index(after), Index(upto), commits_when_synced=lambda which: which == A
    )


def found(
    log: WriteAheadLog, after: int, upto: int, group: GroupId = A
) -> list[tuple[int, int]] | None:
    """(Index, epoch) of each entry."""
    entries = since(log, after, upto, group)
    return None if entries is None else [(one.index, one.epoch) for one in entries]


def all_of(*indexes: int) -> list[tuple[int, int]]:
    return [(index, 1) for index in indexes]


def test_entries_come_in_order_from_wherever_they_are_asked_for() -> None:
    log, _ = open_log(new_disk())
    fill(log, *(entry(index) for index in range(1, 20)))
    assert len(log.segments()) > 2
    for after in range(20):
        assert found(log, after, 19) == all_of(*range(after + 1, 20))
    assert found(log, 3, 12) == all_of(*range(4, 13))
    assert found(log, 12, 12) == []


def test_what_was_recycled_is_gone() -> None:
    log, _ = open_log(new_disk())
    fill(log, *(entry(index) for index in range(1, 20)))
    segments = log.segments()
    log.release_before(segments[1].generation)
    # Seven records fit into a segment.
    assert found(log, 7, 19) == all_of(*range(8, 20))
    assert found(log, 6, 19) is None
    assert found(log, 0, 19) is None
    assert found(log, 19, 19) == []


def test_what_goes_while_it_is_read_is_told() -> None:
    log, _ = open_log(new_disk())
    fill(log, *(entry(index) for index in range(1, 20)))
    entries = iter(since(log, 0, 19) or ())
    assert next(entries).index == 1
    log.release_before(log.segments()[2].generation)
    with pytest.raises(Retry):
        list(entries)


def test_a_generation_is_held_while_it_is_read() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    fill(log, *(entry(index) for index in range(1, 9)))
    entries = iter(since(log, 0, 7) or ())
    assert next(entries).index == 1
    assert log.segments()[0].is_held
    log.release_before(log.segments()[1].generation)
    fill(log, *(entry(index) for index in range(9, 20)))
    assert [one.index for one in entries] == list(range(2, 8))
    assert not any(segment.is_held for segment in log.segments())


def test_a_group_that_commits_late_gives_what_was_committed() -> None:
    """L1, L7: taken back, decided anew, written again; other groups lie between."""
    log, _ = open_log(new_disk())
    void, commit = EntryKind.VOID, EntryKind.COMMIT
    fill(
        log,
        entry(1, group=B),
        entry(1),
        entry(2, group=B),
        entry(3, group=B),
        entry(1, group=B, kind=void),
        entry(2, group=B, epoch=2),
        entry(2),
        entry(2, group=B, epoch=2),
        entry(3, group=B, epoch=2),
        entry(2, group=B, kind=commit),
        entry(4, group=B, epoch=2),
        entry(3, group=B, epoch=3),
        entry(3, group=B, kind=commit),
        entry(4, group=B, epoch=3),
    )
    committed = [(1, 1), (2, 2), (3, 3)]
    for after in range(4):
        assert found(log, after, 3, B) == committed[after:]


def test_entries_before_the_start_of_a_replay_are_verified_too() -> None:
    disk = new_disk()
    log, _ = open_log(disk)
    fill(log, *(entry(index) for index in range(1, 12)))
    mark = log.mark()
    log.close()

    def again(disk: SimDisk) -> WriteAheadLog:
        replay = Replay(disk, start=mark, needed_from=1)
        return WriteAheadLog.open(replay, SHAPE, chance=random.Random(1).randbytes)

    log = again(disk)
    assert found(log, 0, 11) == all_of(*range(1, 12))
    log.close()
    disk.flip("log/00000001.seg", 2 * SECTOR + 100)
    log = again(disk)
    with pytest.raises(Corrupt):
        found(log, 0, 11)
    log.close()
