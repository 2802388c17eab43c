"""Recovery reads a log of any size: it frees folded entries, and refuses before it folds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import pytest

from millrace.core.changes import Batch, Changes, Entry, EntryKind
from millrace.core.format.block import Block
from millrace.core.format.codec import encode_entry
from millrace.core.model import (
    Epoch,
    GroupId,
    History,
    Index,
    Millis,
    NewMessage,
    ShardId,
)
from millrace.errors import Corrupt
from millrace.journal.recovery import Records, Recovery, dry_run
from millrace.wal.record import LogPosition

LOCAL, LATE = GroupId(0), GroupId(1)


class Memory(bytearray):
    """The bytes of one record, as read from the disk."""


def entry(index: int, *, group: GroupId = LOCAL, kind: EntryKind = EntryKind.DATA) -> Entry:
    batches = []
    if kind is EntryKind.DATA:
        rows = Block.of_messages([NewMessage(bytes(1000), b"key")])
        batches = [Batch(ShardId(1), Index(index), Millis(1), Changes(firsts=[index]), [rows])]
    fact = b"fact %d" % index if kind is EntryKind.FACT else b""
    return Entry(group, Epoch(1), Index(index), History(bytes(16)), batches, kind=kind, fact=fact)


class Log:
    """Records that know how many of them are still in memory."""

    def __init__(self, *entries: Entry) -> None:
        self._entries = entries
        self._read: list[weakref.ref[Memory]] = []
        self.most = 0

    def __iter__(self) -> Iterator[tuple[LogPosition, memoryview]]:
        for number, one in enumerate(self._entries):
            memory = Memory(b"".join(encode_entry(one, 0)))
            self._read.append(weakref.ref(memory))
            self.most = max(self.most, sum(held() is not None for held in self._read))
            yield LogPosition(1, 4096 * number, len(memory)), memoryview(memory)
            del memory


def is_local(group: GroupId) -> bool:
    return group == LOCAL


def recover(records: Records) -> list[int]:
    """The indexes that were folded."""
    folded: list[int] = []

    def fold(one: Entry, position: LogPosition) -> None:
        folded.append(one.index)

    recovery = Recovery(lambda _: Index(len(folded)), {}, fold, commits_when_synced=is_local)
    recovery.read_all(records)
    return folded


def rehearsed(records: Records) -> dict[GroupId, bytes]:
    return dry_run(records, lambda _: Index(0), {LATE: b"old"}, commits_when_synced=is_local)


@pytest.mark.parametrize("read", [recover, rehearsed])
def test_what_was_folded_is_not_kept(read: Callable[[Records], object]) -> None:
    log = Log(*(entry(index) for index in range(1, 50)))
    read(log)
    assert log.most <= 2, "the one that is read, and the one before it"


def test_a_rehearsal_gives_the_newest_facts() -> None:
    fact = EntryKind.FACT
    log = Log(entry(1), entry(7, kind=fact), entry(2), entry(8, kind=fact))
    assert rehearsed(log) == {LOCAL: b"fact 8", LATE: b"old"}


def test_a_rehearsal_refuses_what_recovery_would() -> None:
    for read in (rehearsed, recover):
        with pytest.raises(Corrupt, match="entry 3 is committed, but 2 is missing"):
            read(Log(entry(1), entry(3)))


def test_a_group_that_commits_late_is_not_folded_before_it_says_so() -> None:
    late = [entry(index, group=LATE) for index in (1, 2)]
    assert recover(Log(*late)) == []
    assert recover(Log(*late, entry(1, group=LATE, kind=EntryKind.COMMIT))) == [1]
