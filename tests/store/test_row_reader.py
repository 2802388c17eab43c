"""Row reading: hot and cold rows, read-ahead, and the lookup of locations."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pyroaring import BitMap64

from millrace import limits
from millrace.core.model import Death, NewMessage
from millrace.core.state.fold import Reader
from millrace.errors import Corrupt
from millrace.store import scan
from millrace.store.row_index import Located, RowIndex
from millrace.store.row_location import RowLocation
from millrace.store.row_reader import WarmLocations
from millrace.store.sealed import SealedFile, file_name, read_footer
from tests.support.contracts.compare_stores import rows_of
from tests.support.contracts.store_subject import DiskSubject, simulated
from tests.support.contracts.story import SHARD, Story
from tests.support.simulator.disk import SimDisk


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEALED_BATCH_BYTES", 4_000)


def sealed(batches: int = 3) -> tuple[Story, DiskSubject]:
    """A store, just opened, of rows in one sealed file: five in each record batch."""
    subject = simulated()
    story = Story(lambda: subject)
    for _ in range(batches):
        story.bodies(5, 1_000)
    subject.seal_all()
    subject.reopen()
    return story, subject


def lines_of(subject: DiskSubject) -> list[tuple[int, int]]:
    """First and last seq of each record batch."""
    return [(line.first, line.last) for line in read_footer(subject.disk, 1)]


# --- Hot and cold --------------------------------------------------------------------------------


def test_rows_are_hot_once_they_were_read() -> None:
    """Hot as soon as someone is about to read them, the next one would wait on the engine's
    thread."""
    _, subject = sealed()
    store = subject.store
    first = BitMap64([1])
    one, two = store.warm(SHARD, first), store.warm(SHARD, first)
    assert not store.hot(SHARD, first)
    one()
    assert store.hot(SHARD, first)
    two()
    assert store.hot(SHARD, first)


def test_rows_that_could_not_be_read_stay_cold() -> None:
    """A job that fails in the middle has read none of the following rows."""
    _, subject = sealed()
    lines = read_footer(subject.disk, 1)
    assert len(lines) > 2
    assert isinstance(subject.disk, SimDisk)
    subject.disk.flip(file_name(1), lines[1].offset + lines[1].length - 100)
    store = subject.store
    with pytest.raises(Corrupt):
        store.warm(SHARD, BitMap64(range(1, 16)))()
    hot = [store.hot(SHARD, BitMap64([line.first])) for line in lines]
    assert hot == [True] + [False] * (len(lines) - 1)


def place(home: int, offset: int, length: int = 100) -> RowLocation:
    return RowLocation(home, offset, length, 1, 1, 0, 0, 0, sealed=True)


def test_what_is_known_to_be_hot_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded in bytes alone, blocks of a hundred bytes would make millions of entries."""
    monkeypatch.setattr(limits, "WARM_PLACES_MAX", 3)
    warm = WarmLocations()
    for offset in range(5):
        warm.add(place(1, offset))
    assert [offset for offset in range(5) if (True, 1, offset) in warm] == [2, 3, 4]
    monkeypatch.setattr(limits, "WARM_BYTES_MAX", 1_000)
    warm.add(place(2, 0, 850))
    assert [offset for offset in range(5) if (True, 1, offset) in warm] == [4]
    warm.add(place(2, 9, 5_000))
    assert len(warm) == 1


def test_what_was_released_is_not_known_any_more() -> None:
    warm = WarmLocations()
    for home in (1, 2):
        for offset in range(3):
            warm.add(place(home, offset))
    warm.forget({(True, 1), (True, 7), (False, 2)})
    assert len(warm) == 3
    assert all((True, 2, offset) in warm for offset in range(3))
    warm.forget({(True, 2)})
    assert len(warm) == 0


# --- Ahead ---------------------------------------------------------------------------------------


def test_what_follows_is_read_ahead_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without read-ahead, a worker that waits for each batch of a backlog splits commits."""
    monkeypatch.setattr(limits, "READ_AHEAD_BYTES", 1)
    _, subject = sealed(6)
    store = subject.store
    lines = lines_of(subject)
    assert len(lines) > 3
    store.warm(SHARD, BitMap64([1]))()
    assert store.hot(SHARD, BitMap64([lines[1][0]])), "what comes next is read with it"
    assert not store.hot(SHARD, BitMap64([lines[2][0]]))
    assert store.ahead(SHARD, BitMap64([1])) is None, "that is hot already"
    ahead = store.ahead(SHARD, BitMap64([lines[1][0]]))
    assert ahead is not None
    assert store.ahead(SHARD, BitMap64([lines[1][1]])) is None, "it was given before"
    ahead()
    assert store.hot(SHARD, BitMap64([lines[2][0]]))
    assert store.ahead(SHARD, BitMap64([lines[-1][1]])) is None


def test_where_rows_lie_is_remembered_while_nothing_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looked up in the index by every lease call, a backlog costs twice what a short queue does."""
    story, subject = sealed()
    store = subject.store
    lines = lines_of(subject)
    asked: list[int] = []
    look = RowIndex.at

    def watched(blocks: RowIndex, shard: int, seq: int) -> Located | None:
        asked.append(seq)
        return look(blocks, shard, seq)

    monkeypatch.setattr(RowIndex, "at", watched)
    rows = [row.seq for seq in range(*lines[0]) for row in store.rows(SHARD, BitMap64([seq]))]
    assert rows == list(range(*lines[0]))
    assert asked == [1]
    # The layers say the same as before, but not of the same place.
    story.die(Death.SETTLED, *range(2, story.last))
    subject.checkpoint()
    while subject.seal():
        pass
    subject.checkpoint()
    assert [row.seq for row in store.rows(SHARD, BitMap64([1]))] == [1]
    story.compare()


def test_rows_of_several_times_in_one_batch() -> None:
    """Rows that were sealed together keep the times at which they were published."""
    subject = simulated()
    story = Story(lambda: subject)
    for at in range(6):
        story.publish(*(NewMessage(b"%d" % at) for _ in range(3)))
    subject.seal_all()
    subject.reopen()
    expected = {row.seq: row for row in rows_of(subject.store.scan(SHARD, 0, 18, Reader()))}
    assert len({row.time_ms for row in expected.values()}) == 6
    for low in range(1, 19):
        for high in range(low, 19):
            rows = subject.store.rows(SHARD, BitMap64(range(low, high + 1)))
            assert rows == [expected[seq] for seq in range(low, high + 1)]


# --- Scans by turns ------------------------------------------------------------------------------


def test_a_part_that_was_found_is_read_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the index belongs to the engine's thread: the thread that reads verifies."""
    _, subject = sealed()
    threads = watch_verify(monkeypatch)
    scan = subject.store.scan(SHARD, 0, 15, Reader())
    part = scan.find()
    assert part is not None
    assert not part.is_hot()
    assert threads == []
    found: list[int] = []

    def read() -> None:
        found.extend(row.seq for row in rows_of(part.load()))

    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    assert found == list(range(1, 16))
    assert set(threads) == {reader.ident}
    assert subject.store.hot(SHARD, BitMap64(found))
    assert scan.find() is None


def watch_verify(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that sum record batches."""
    threads: list[int] = []
    verify: Callable[[SealedFile, RowLocation, int], None] = SealedFile.verify

    def watched(file: SealedFile, at: RowLocation, shard: int) -> None:
        threads.append(threading.get_ident())
        verify(file, at, shard)

    monkeypatch.setattr(SealedFile, "verify", watched)
    return threads


@pytest.mark.parametrize("taken", range(4))
def test_rows_that_moved_after_they_were_found_are_found_again(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of them was read: none is missed, none comes twice, no dead one is shown."""
    monkeypatch.setattr(scan, "SCAN_ROWS", 60)
    subject = simulated()
    story = Story(lambda: subject)
    for _ in range(6):
        story.bodies(50, 1_000)
    # An older pin keeps the bytes of what the newer one must not see.
    story.pin(1)
    story.die(Death.SETTLED, *range(10, 120), *range(151, 290, 3))
    story.pin(2)
    expected = rows_of(subject.store.scan(SHARD, 0, 300, Reader(2)))
    pinned_scan = subject.store.scan(SHARD, 0, 300, Reader(2))
    part = pinned_scan.find()
    assert part is not None
    found = [next(part) for _ in range(taken)]
    subject.seal_all()
    for _ in range(20):
        story.bodies(100, 4_000)
        subject.turn_over()
        subject.checkpoint()
    found += list(part)
    while (part := pinned_scan.find()) is not None:
        found += list(part)
    assert rows_of(found) == expected


def test_rows_that_lie_far_apart_are_looked_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many places a question to the index finds as many as it may, and each only once."""
    subject = simulated()
    story = Story(lambda: subject)
    for _ in range(300):
        story.bodies(4, 10)
    subject.checkpoint()
    asked: list[int] = []
    at = RowIndex.at

    def counted_at(self: RowIndex, shard: int, seq: int) -> Located | None:
        asked.append(seq)
        return at(self, shard, seq)

    monkeypatch.setattr(RowIndex, "at", counted_at)
    # One row of every third place.
    seqs = BitMap64(range(1, 1_200, 12))
    assert store_rows(subject, seqs) == list(seqs)
    assert len(asked) <= 300 // limits.PLACES_NEAR_STEP + 2
    asked.clear()
    # Others at the same places.
    assert store_rows(subject, BitMap64(seq + 1 for seq in seqs)) == [seq + 1 for seq in seqs]
    assert subject.store.hot(SHARD, seqs)
    assert store_rows(subject, BitMap64([2, 3, 1_190])) == [2, 3, 1_190]
    assert not asked


def store_rows(subject: DiskSubject, seqs: BitMap64) -> list[int]:
    return [row.seq for row in subject.store.rows(SHARD, seqs)]
