"""Resync of one short story, from wherever the target stands; the property test has long ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyroaring import BitMap64

from millrace.core.cells import Kind
from millrace.core.changes import Entry
from millrace.core.format.seq_sets import pack_seqs
from millrace.core.model import (
    Death,
    Epoch,
    History,
    NewMessage,
)
from millrace.errors import Full
from millrace.store.memory_store import MemoryStore
from millrace.store.resync import resync
from tests.support.contracts.compare_stores import GROUP, compare
from tests.support.contracts.store_subject import DiskSubject, MemorySubject, simulated
from tests.support.contracts.story import SHARD, Story

Target = MemorySubject | DiskSubject

LEASE = int(Kind.LEASE)


class Source(MemorySubject):
    """A store that remembers what it was fed with."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []

    def feed(self, entry: Entry) -> None:
        self.entries.append(entry)
        super().feed(entry)


def keyed(story: Story, *keys: bytes) -> None:
    story.publish(*(NewMessage(b"%d" % story.index, key) for key in keys))


def tell() -> tuple[Source, list[bytes]]:
    """Leases and pins that come and go, rows that die in every way."""
    source = Source()
    story = Story(lambda: source, keyed=True)
    keyed(story, b"a", b"b", b"c", b"d")
    story.batch(cells=[(LEASE, b"1", b"open")])
    story.pin(1)
    story.die(Death.SETTLED, 1)
    story.batch(cells=[(LEASE, b"1", None), (LEASE, b"2", b"open")])
    story.publish(
        NewMessage(b"newer", b"b"), died={int(Death.SUPERSEDED): pack_seqs(BitMap64([2]))}
    )
    story.batch(settled=pack_seqs(BitMap64([3])))
    story.pin(2)
    story.stage("s", NewMessage(b"staged", b"e"))
    story.unpin(1)
    story.die(Death.SETTLED, 4)
    keyed(story, b"f")
    return source, sorted({*story.keys, b"e"})


def astray(entries: list[Entry]) -> list[Entry]:
    """Return a diverged history with the same beginning: as many rows, but others."""
    story = Story(Source, keyed=True)
    # It begins with a batch of its own; here it goes on from another beginning.
    story.subject, story.model = Source(), MemoryStore()
    for entry in entries:
        story.feed(entry)
    story.entries, story.index = len(entries), entries[-1].batches[-1].index
    meta = story.model.meta(SHARD)
    assert meta is not None
    story.last = meta.last_seq
    story.history = History(b"x" * 16)
    keyed(story, b"other", b"than", b"those")
    story.batch(cells=[(LEASE, b"9", b"open")])
    assert isinstance(story.subject, Source)
    return story.subject.entries


def rest_of(target: Target) -> Callable[[], None]:
    return target.checkpoint if isinstance(target, DiskSubject) else lambda: None


@pytest.mark.parametrize("make", [MemorySubject, simulated])
@pytest.mark.parametrize("is_astray", [False, True])
def test_the_target_becomes_the_source(make: Callable[[], Target], *, is_astray: bool) -> None:
    source, keys = tell()
    for count in range(1, len(source.entries) + 1):
        beginning = source.entries[:count]
        target = make()
        for entry in astray(beginning) if is_astray else beginning:
            target.feed(entry)
        resync(source.store, target.store, SHARD, rest_of(target))
        target.store.set_applied(GROUP, source.store.applied(GROUP), Epoch(1))
        compare(target.store, source.store, keys)
        if isinstance(target, DiskSubject):
            target.checkpoint()
            target.reopen()
            compare(target.store, source.store, keys)
        target.close()


def test_a_copy_that_is_not_complete_is_nothing() -> None:
    """The position of a snapshot must not be there before its data."""
    source, keys = tell()
    for calls in range(10):
        target, before = simulated(), MemoryStore()
        for entry in source.entries[:3]:
            target.feed(entry)
            before.fold(entry, None)
        left = iter(range(calls))

        def rest() -> None:
            target.checkpoint()  # noqa: B023
            if next(left, None) is None:  # noqa: B023
                raise InterruptedError

        try:
            resync(source.store, target.store, SHARD, rest)
        except InterruptedError:
            target.reopen()
            compare(target.store, before, keys)
            target.close()
        else:
            assert calls > 1, "it was never interrupted"
            return
    raise AssertionError("it has no end")


def test_blocks_of_a_stage_are_numbered_below_those_of_later_batches() -> None:
    """Counted over all stages from the batch's number on, they would reach into the next one's."""
    source, target = simulated(), simulated()
    story = Story(lambda: source, keyed=True)
    for at in range(5):
        story.stage("s" if at % 2 else "t", NewMessage(b"%d" % at, b"k%d" % at))
    resync(source.store, target.store, SHARD)
    state = target.store._layered.must(SHARD)
    for name, count in (("s", 2), ("t", 3)):
        found = target.store._layered.row_index.staged(state.id, name)
        assert [ordinal for ordinal, _ in found] == list(range(count))


def test_a_copy_that_finds_no_room_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file would take the room, and the number of the next one."""
    source, _ = tell()
    target = simulated()

    def full(folder: str) -> None:
        raise Full("the test's disk has no room")

    with monkeypatch.context() as patch:
        patch.setattr(target.disk, "sync_folder", full)
        with pytest.raises(Full):
            resync(source.store, target.store, SHARD)
    assert target.disk.names("sealed") == []
    assert target.store.meta(SHARD) is None
    target.checkpoint()
    resync(source.store, target.store, SHARD)
    assert len(target.disk.names("sealed")) == 1
