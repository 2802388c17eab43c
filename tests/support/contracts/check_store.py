"""The contract of a store: each one must give the same answers as the naive one.

    for check in CHECKS:
        check(make)

`make` gives a new, empty subject. Every check tells a short story to the subject and to a
`MemoryStore`, disturbs the subject in all its ways, and asks both every question there is.
"""

from __future__ import annotations

from collections.abc import Callable

from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import CursorCell, Kind, TakeoverCell
from millrace.core.changes import Batch, Changes, Entry
from millrace.core.format.block import Block
from millrace.core.format.codec import encode_cell
from millrace.core.format.seq_sets import pack_seqs
from millrace.core.model import (
    CursorPosition,
    Death,
    Epoch,
    GroupId,
    History,
    Index,
    Millis,
    NewMessage,
    Row,
    ShardId,
)
from millrace.core.state.fold import Reader
from millrace.core.state.histories import shared_seq
from millrace.core.state.view import number_key
from millrace.errors import Fatal
from tests.support.contracts.compare_stores import readers_of, rows_of
from tests.support.contracts.story import (
    DISTURBANCES,
    SHARD,
    Make,
    Story,
)

# --- The stories ---------------------------------------------------------------------------------


def check_entries_are_folded_once(make: Make) -> None:
    """C1: a position shared by many groups would fold one group's batch twice."""
    story = Story(make)
    story.bodies(5)
    again = story.entry(Batch(SHARD, Index(3), Millis(5), Changes(passed=1), []))
    story.feed(again)
    story.feed(again)
    other = Entry(GroupId(2), Epoch(1), Index(1), story.history, [])
    story.feed(other)
    story.feed(Entry(GroupId(2), Epoch(1), Index(1), story.history, [_unseen()]))
    assert story.subject.store.applied(GroupId(2)) == 1
    assert story.subject.store.meta(ShardId(9)) is None
    story.check()


def _unseen() -> Batch:
    return Batch(ShardId(9), Index(1), Millis(1), Changes(made=1), [])


def check_batches_come_in_order(make: Make) -> None:
    """A batch that is missing would never be missed."""
    story = Story(make)
    try:
        story.subject.store.fold(
            story.entry(Batch(SHARD, Index(3), Millis(1), Changes(), [])), None
        )
    except Fatal:
        return
    raise AssertionError("batch 3 was folded after batch 1")


def check_keys_name_the_newest_row(make: Make) -> None:
    """I6: de-duplication happens at commit; an older revision is never found again."""
    story = Story(make, keyed=True)
    story.publish(*(NewMessage(b"1", b"k%d" % at) for at in range(10)), NewMessage(b"no key"))
    story.compare()
    story.subject.disturb(0)
    died = {int(Death.SUPERSEDED): pack_seqs(BitMap64([1, 2, 3]))}
    story.publish(
        NewMessage(b"2", b"k0"),
        NewMessage(None, b"k1"),
        NewMessage(b"2", b"k2", (("h", b"v"),)),
        died=died,
    )
    story.die(Death.SETTLED, 4, 5)
    assert story.subject.store.find(SHARD, [b"k0", b"k1", b"k3", b"kx"]) == [12, 13, 0, 0]
    assert story.subject.store.hidden(SHARD, 1, 14) == BitMap64([1, 2, 3, 4, 5, 13])
    story.compare()
    story.subject.disturb(4)
    story.die(Death.EXPIRED, 13)
    story.check()


def check_pins_read_the_same_rows(make: Make) -> None:
    """I7, N1: a snapshot is the shard as of an index; what dies later stays readable to it."""
    story = Story(make)
    story.bodies(20)
    story.die(Death.SETTLED, 1, 2)
    story.pin(1)
    story.die(Death.SETTLED, 3, 4)
    story.bodies(5)
    story.pin(2)
    story.batch(settled=pack_seqs(BitMap64([5, 21])))
    story.pin(3)
    story.batch(passed=30)
    shown = {reader: _scan(story, reader) for reader in readers_of(story.model, SHARD)[2:]}
    assert [row.seq for row in shown[Reader(1)] if row.seq <= 20] == list(range(3, 21))
    assert [row.seq for row in shown[Reader(3, retain=True)]] == list(range(5, 26))
    assert 5 not in [row.seq for row in shown[Reader(3)]]
    for how in range(DISTURBANCES):
        story.subject.disturb(how)
        if how < 14:
            story.die(Death.SETTLED, 6 + how)
        for reader, rows in shown.items():
            assert [row for row in _scan(story, reader) if row.seq <= 25] == rows, reader
    for pin in (2, 1, 3):
        story.unpin(pin)
        story.compare()
        story.subject.disturb(pin)
    story.check()


def _scan(story: Story, reader: Reader) -> list[Row]:
    return rows_of(story.subject.store.scan(SHARD, 0, story.last, reader))


def check_intervals_merge_in_any_order(make: Make) -> None:
    """Marks that follow their pin into another interval must not be lost on the way."""
    story = Story(make)
    story.bodies(40)
    seqs = iter(range(1, 41))
    for pin in range(1, 9):
        story.pin(pin)
        story.die(Death.SETTLED, next(seqs), next(seqs))
        if pin % 3 == 0:
            story.subject.disturb(0)
    for pin in (5, 4, 7, 1, 8, 2, 6, 3):
        story.unpin(pin)
        story.compare()
        story.subject.disturb(0 if pin % 2 else 5)
        story.compare()
    story.check()


def check_kept_rows_wait_for_their_cursors(make: Make) -> None:
    """Settled rows are seen by retaining readers alone, until all cursors have passed them."""
    story = Story(make)
    story.bodies(30)
    story.batch(settled=pack_seqs(BitMap64(range(1, 21))))
    story.subject.disturb(0)
    story.batch(passed=5)
    story.batch(passed=12, settled=pack_seqs(BitMap64([25])))
    # A new cursor retains from the beginning: rows behind the passed ones are kept again.
    story.bodies(3)
    story.batch(settled=pack_seqs(BitMap64([22, 23])))
    story.compare()
    story.subject.disturb(4)
    story.batch(passed=33)
    assert story.subject.store.meta(SHARD) is not None
    story.check()


def check_stages(make: Make) -> None:
    """Staged rows are invisible, then visible at once, in the order of staging."""
    story = Story(make, keyed=True)
    story.publish(NewMessage(b"old", b"a"), NewMessage(b"old", b"b"))
    story.stage("one", NewMessage(b"1", b"a"), NewMessage(None, b"c"))
    story.stage("two", NewMessage(b"x", b"x"))
    story.stage("one", NewMessage(b"2", b"d", (("n", b"v"),)))
    story.subject.disturb(4)
    story.stage("one", NewMessage(b"3", b"a"))
    story.compare()
    story.subject.disturb(3)
    story.last += 4
    story.batch(
        published=[("one", 3, 4)],
        died={int(Death.SUPERSEDED): pack_seqs(BitMap64([1, 3]))},
        cells=[(int(Kind.STAGE), b"one", None)],
    )
    assert story.subject.store.find(SHARD, [b"a", b"b", b"c", b"d", b"x"]) == [6, 2, 4, 5, 0]
    story.compare()
    story.subject.disturb(4)
    story.batch(unstaged=["two"], cells=[(int(Kind.STAGE), b"two", None)])
    story.check()


def check_a_key_of_a_stage_and_of_the_same_batch(make: Make) -> None:
    """Rows are folded in the order of their seqs, or the key would name the older one."""
    story = Story(make, keyed=True)
    story.stage("s", NewMessage(b"staged", b"k"))
    story.last += 1
    story.publish(
        NewMessage(b"later", b"k"),
        published=[("s", 1, 1)],
        died={int(Death.SUPERSEDED): pack_seqs(BitMap64([1]))},
        cells=[(int(Kind.STAGE), b"s", None)],
    )
    assert story.subject.store.find(SHARD, [b"k"]) == [2]
    story.check()


def check_purges(make: Make) -> None:
    """C3: a purge is one number, whatever it ends, and pins still show what it ended."""
    story = Story(make, keyed=True)
    story.publish(*(NewMessage(b"%d" % at, b"k%d" % at) for at in range(20)))
    story.pin(1)
    story.batch(purged=15)
    story.compare()
    story.subject.disturb(4)
    story.publish(NewMessage(b"again", b"k3"))
    story.compare()
    story.unpin(1)
    story.compare()
    story.subject.disturb(4)
    story.batch(purged=story.last)
    story.check()


def check_expiry(make: Make) -> None:
    """C3: retention ends all rows up to a seq, counts those that were live, and no pin misses
    them."""
    story = Story(make, keyed=True)
    story.publish(*(NewMessage(b"%d" % at, b"k%d" % at) for at in range(30)))
    story.die(Death.SUPERSEDED, 2, 5, 20)
    story.subject.disturb(4)
    story.pin(1)
    story.die(Death.SUPERSEDED, 7, 21)
    story.batch(expired=10, weight=7)
    story.compare()
    story.check_held(1)
    story.subject.disturb(4)
    story.check_held(1)
    story.pin(2)
    story.batch(expired=20)
    story.check_held(1)
    story.check_held(2)
    story.publish(NewMessage(b"again", b"k3"), expired=25)
    story.compare()
    story.unpin(1)
    story.compare()
    story.subject.disturb(4)
    story.check_held(2)
    story.unpin(2)
    story.batch(expired=26, purged=story.last)
    story.check()


def check_dropped_shards_vanish(make: Make) -> None:
    """A shard that ended is gone at once, and does not come back while it is reclaimed."""
    story = Story(make, keyed=True)
    story.publish(*(NewMessage(b"%d" % at, b"k%d" % at) for at in range(20)))
    story.subject.disturb(4)
    other = Batch(
        ShardId(2), Index(1), Millis(1), Changes(made=1, firsts=[1]), [Block.of_bodies([b"stays"])]
    )
    story.feed(story.entry(other))
    story.subject.disturb(0)
    story.batch(dropped=True)
    assert story.subject.store.shards() == [ShardId(2)]
    assert story.subject.store.meta(SHARD) is None
    story.keys.clear()
    story.check()


def check_cells_of_any_size(make: Make) -> None:
    """C2: a value above the limit of the index is split, and no part of it is left behind."""
    story = Story(make)
    lease = int(Kind.LEASE)
    for size in (100_000, 10, 2_000, 1_998, 0, 4_001):
        story.batch(cells=[(lease, b"a", bytes(range(256)) * (size // 256) + b"x" * (size % 256))])
        story.batch(cells=[(lease, b"b", b"y" * size), (lease, b"a\0", b"z" * size)])
        story.compare()
        story.subject.disturb(0)
        story.compare()
    story.batch(cells=[(lease, b"a", None), (lease, b"a\0", None)])
    story.check()


def check_single_cells_of_many(make: Make) -> None:
    """Cells that are asked for by their keys are as the last folded batch has left them."""
    story = Story(make)
    dedup = int(Kind.DEDUP)
    keys = [b"%03d" % at * (at % 40 + 1) for at in range(300)]
    names = [(Kind.DEDUP, key) for key in keys]
    story.batch(cells=[(dedup, key, b"v" * (at * 9)) for at, key in enumerate(keys)])
    story.compare()
    story.subject.disturb(0)
    story.batch(cells=[(dedup, key, None) for key in keys[::3]])
    story.batch(cells=[(dedup, key, b"w" * at) for at, key in enumerate(keys) if at % 5 == 0])
    for how in range(3):
        found = story.subject.store.points(SHARD, names)
        for at, value in enumerate(found):
            expected = None if at % 3 == 0 else b"v" * (at * 9)
            assert value == (b"w" * at if at % 5 == 0 else expected), f"cell {at}"
        story.subject.disturb(how)
    assert story.subject.store.points(SHARD, []) == []
    story.check()


def check_takeovers_are_written_down(make: Make) -> None:
    """H1: where a history ended is a cell, numbered in order, and there are only so many.

    Besides, there are those that a stored cursor names, with all that was taken back since.
    """
    story = Story(make)
    for at in range(limits.HISTORIES_MAX + 8):
        story.history = History(b"%016d" % at)
        cursor = CursorCell(1, False, CursorPosition(story.history, 1, 1, 1), 0)
        is_named = at in (1, 4)
        story.bodies(1)
        story.batch(
            cells=[(int(Kind.CURSOR), b"c%d" % at, encode_cell(cursor))] if is_named else []
        )
        if at == 6:
            # As if the takeover from 5 to 6 had gone far back; its own line will not stay.
            line = TakeoverCell(b"%016d" % 5, 3, 1)
            story.batch(cells=[(int(Kind.TAKEOVER), number_key(7), encode_cell(line))])
        if at % 400 == 0:
            story.subject.disturb(0)
    table = story.table()
    assert len(table) == limits.HISTORIES_MAX + 2
    old = [cell.history for cell in table[:2]]
    assert old == [b"%016d" % at for at in (1, 4)]
    assert shared_seq(table, old[0], story.history, story.last) == 1
    story.compare()
    story.subject.disturb(0)
    story.batch(cells=[(int(Kind.CURSOR), b"c1", None)])
    story.history = History(b"the next history")
    story.batch(passed=1)
    assert [cell.history for cell in story.table()[:2]] == [b"%016d" % at for at in (4, 8)]
    story.check()


def check_who_replaced_a_row(make: Make) -> None:
    """Only of a row that a newer revision ended is it said which one came after it."""
    story = Story(make, keyed=True)
    story.publish(
        NewMessage(b"1", b"settled"), NewMessage(b"1", b"replaced"), NewMessage(b"1", b"kept")
    )
    story.pin(1)
    story.die(Death.SETTLED, 1)
    story.batch(settled=pack_seqs(BitMap64([3])))
    story.batch(passed=3)
    died = {int(Death.SUPERSEDED): pack_seqs(BitMap64([2]))}
    story.publish(*(NewMessage(b"2", key) for key in (b"settled", b"replaced", b"kept")), died=died)
    for how in range(3):
        found = [story.subject.store.row(SHARD, seq) for seq in (1, 2, 3)]
        assert [row.live for row in found] == [False] * 3
        assert [row.superseded_by for row in found] == [0, 5, 0], f"disturbed {how} times"
        story.subject.disturb(how)
    story.check()


def check_kept_batches_do_not_change(make: Make) -> None:
    """L9: a kept Arrow batch changed under its user when the log's segment was recycled."""
    story = Story(make)
    story.bodies(200, 1_000)
    kept = list(story.subject.store.scan(SHARD, 0, story.last, Reader()))
    before = rows_of(kept)
    for how in (*range(DISTURBANCES), 4, 4):
        story.subject.disturb(how)
        story.bodies(200, 1_000)
        story.die(Death.SETTLED, *range(story.last - 199, story.last + 1))
        assert rows_of(kept) == before
    story.check()


def check_sparse_rows_survive(make: Make) -> None:
    """One stuck message keeps one row, never a log; rows around it go, and it stays readable."""
    story = Story(make, keyed=True)
    for _ in range(6):
        first = story.publish(
            *(NewMessage(b"x" * 500, b"k%d" % (story.last + at)) for at in range(50))
        )
        story.subject.disturb(2)
        story.die(Death.SETTLED, *range(first + 1, first + 50))
        story.subject.disturb(4)
    story.compare()
    story.die(Death.SETTLED, *range(1, 251, 50))
    story.check()


def check_rows_that_wait_apart(make: Make) -> None:
    """No worker is given a row twice: by its seq, and by the cell that names it."""
    story = Story(make, keyed=True)
    for at in range(3):
        story.publish(
            *(NewMessage(b"x" * 100, b"%d" % key) for key in range(40 * at, 40 * at + 40)),
            aside=pack_seqs(BitMap64(range(40 * at + 1, 40 * at + 41, 2))),
            cells=[(int(Kind.DUE), b"%d%03d" % (at, key), b"v" * 900 * at) for key in range(40)],
        )
        story.compare()
        story.subject.disturb(at)
    story.pin(1)
    story.die(Death.SETTLED, 81, 82, 83)
    story.compare()
    story.unpin(1)
    story.batch(cells=[(int(Kind.DUE), b"0%03d" % key, None) for key in range(3, 40)])
    # Rows that come and go before others of them.
    story.batch(cells=[(int(Kind.READY), b"%03d" % key, b"v") for key in range(40)])
    story.batch(cells=[(int(Kind.READY), b"%03d" % key, None) for key in range(20)])
    story.check()


CHECKS: list[Callable[[Make], None]] = [
    check_entries_are_folded_once,
    check_batches_come_in_order,
    check_keys_name_the_newest_row,
    check_pins_read_the_same_rows,
    check_intervals_merge_in_any_order,
    check_kept_rows_wait_for_their_cursors,
    check_stages,
    check_a_key_of_a_stage_and_of_the_same_batch,
    check_purges,
    check_expiry,
    check_dropped_shards_vanish,
    check_cells_of_any_size,
    check_single_cells_of_many,
    check_takeovers_are_written_down,
    check_who_replaced_a_row,
    check_kept_batches_do_not_change,
    check_sparse_rows_survive,
    check_rows_that_wait_apart,
]
