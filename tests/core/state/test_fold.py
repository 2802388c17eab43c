"""Fold: counters, intervals and the order of effects within a batch."""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core.cells import TakeoverCell
from millrace.core.changes import Batch, Changes
from millrace.core.format.block import Block
from millrace.core.format.seq_sets import pack_seqs
from millrace.core.model import (
    Death,
    Index,
    Millis,
    ShardId,
)
from millrace.core.state.fold import (
    Interval,
    Reader,
    RowMark,
    ShardMeta,
    fold,
    intervals_before,
)

A, B = b"a" * 16, b"b" * 16


class Notes:
    """A fake of `IntervalMarks` that records its calls."""

    def __init__(self, kept: BitMap64 | None = None) -> None:
        self.said: list[tuple[object, ...]] = []
        self._kept = kept or BitMap64()

    def mark(self, pin: int, mark: RowMark, seqs: BitMap64) -> None:
        self.said.append(("mark", pin, mark.name, list(seqs)))

    def kept(self, upto: int) -> BitMap64:
        self.said.append(("kept", upto))
        return BitMap64([seq for seq in self._kept if seq <= upto])

    def dead(self, low: int, high: int) -> int:
        self.said.append(("dead", low, high))
        return 2

    def merge(self, pin: int, into: int) -> None:
        self.said.append(("merge", pin, into))


def batch(changes: Changes, rows: int = 0, index: int = 1) -> Batch:
    blocks = [Block.of_bodies([b"x"] * rows)] if rows else []
    if rows:
        changes.firsts = [1]
    return Batch(ShardId(1), Index(index), Millis(5), changes, blocks)


def packed(*seqs: int) -> bytes:
    return pack_seqs(BitMap64(seqs))


def test_rows_and_published_stages_take_seqs() -> None:
    changes = Changes(published=[("s", 4, 5)], staged=[("t", 1)])
    made = batch(changes, rows=3)
    made.blocks.append(Block.of_bodies([b"staged"] * 9))
    meta, takeover = fold(ShardMeta(), made, A, Notes())
    assert (meta.index, meta.last_seq, meta.published, meta.live) == (1, 8, 8, 8)
    assert (meta.time_ms, meta.history, takeover) == (5, A, None)


def test_the_order_within_a_batch() -> None:
    """Rows that are passed were kept before: what the batch itself keeps is marked after."""
    notes = Notes(kept=BitMap64([2, 3, 9]))
    before = ShardMeta(last_seq=9, published=9, intervals=(Interval(0), Interval(4)))
    changes = Changes(
        died={int(Death.SUPERSEDED): packed(1)},
        settled=packed(5),
        passed=4,
        unpinned=[4],
        pinned=[7],
    )
    meta, _ = fold(before, batch(changes), A, notes)
    assert notes.said == [
        ("mark", 4, "DEAD", [1]),
        ("kept", 4),
        ("mark", 4, "DEAD", [2, 3]),
        ("mark", 4, "KEPT", [5]),
        ("merge", 4, 0),
    ]
    assert meta.died[Death.SUPERSEDED] == 1
    assert meta.died[Death.SETTLED] == 2
    assert meta.live == 6
    assert meta.intervals == (Interval(0), Interval(7))


def test_a_purge_counts_what_is_left() -> None:
    """Rows above the purge are of the same batch, and the dead ones among them are not purged."""
    before = ShardMeta(last_seq=10, published=10, died=(0, 3, 0, 0, 0, 0, 0))
    changes = Changes(died={int(Death.SUPERSEDED): packed(9, 13)}, purged=12)
    meta, _ = fold(before, batch(changes, rows=4), A, Notes())
    assert meta.last_seq == 14
    assert meta.died[Death.PURGED] == 12 - 3 - 1
    assert meta.live == 1
    assert meta.floor == 12


def test_kept_rows_that_were_purged_are_not_passed() -> None:
    before = ShardMeta(
        last_seq=5, published=5, died=(0, 0, 0, 0, 0, 0, 5), intervals=(Interval(0, 5),)
    )
    notes = Notes(kept=BitMap64([2, 3]))
    meta, _ = fold(before, batch(Changes(passed=5)), A, notes)
    assert meta.live == 0
    assert meta.died == before.died


def test_an_unpinned_interval_keeps_the_higher_floor() -> None:
    intervals = (Interval(0, 7), Interval(1), Interval(2, 9))
    meta, _ = fold(ShardMeta(intervals=intervals), batch(Changes(unpinned=[1])), A, Notes())
    assert meta.intervals == (Interval(0, 7), Interval(2, 9))
    meta, _ = fold(meta, batch(Changes(unpinned=[2, 99])), A, Notes())
    assert meta.intervals == (Interval(0, 9),)


def test_a_new_history_leaves_a_line() -> None:
    before = ShardMeta(index=7, last_seq=4, history=A)
    meta, takeover = fold(before, batch(Changes(), index=8), B, Notes())
    assert takeover == TakeoverCell(A, 7, 4)
    assert fold(meta, batch(Changes(), index=9), B, Notes())[1] is None


def test_a_reader_sees_what_died_after_its_pin() -> None:
    meta = ShardMeta(intervals=(Interval(0), Interval(3), Interval(8)))
    assert intervals_before(meta, Reader()) == meta.intervals
    assert intervals_before(meta, Reader(3)) == (Interval(0),)
    assert intervals_before(meta, Reader(8)) == (Interval(0), Interval(3))


def test_a_shard_stays_keyed() -> None:
    meta, _ = fold(ShardMeta(), batch(Changes(made=3)), A, Notes())
    assert fold(meta, batch(Changes(), index=2), A, Notes())[0].keyed
    assert not fold(ShardMeta(), batch(Changes(made=1)), A, Notes())[0].keyed


def test_an_expiry_counts_what_was_still_there() -> None:
    """Rows below the floor were counted before, and dead ones died of something else."""
    before = ShardMeta(
        last_seq=10, published=10, died=(0, 0, 2, 0, 0, 0, 3), intervals=(Interval(0, 3),)
    )
    notes = Notes()
    meta, _ = fold(before, batch(Changes(expired=8, weight=5)), A, notes)
    assert notes.said == [("dead", 4, 8)]
    assert meta.died[Death.EXPIRED] == 8 - 3 - 2
    assert meta.live == 10 - 2 - 3 - 3
    assert meta.floor == 8
    assert meta.weight == 5
    again, _ = fold(meta, batch(Changes(expired=8)), A, Notes())
    assert again.died == meta.died


def test_a_purge_after_an_expiry_counts_the_rest() -> None:
    before = ShardMeta(last_seq=10, published=10, died=(0, 0, 2, 0, 0, 0, 0))
    meta, _ = fold(before, batch(Changes(expired=6, purged=10)), A, Notes())
    assert (meta.died[Death.EXPIRED], meta.died[Death.PURGED]) == (4, 4)
    assert (meta.live, meta.floor) == (0, 10)
