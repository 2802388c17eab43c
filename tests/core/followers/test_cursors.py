"""Cursors across histories: cells that only a replica or a later version could leave behind."""

from __future__ import annotations

import pytest

from millrace.core.answers import SnapshotRef
from millrace.core.cells import (
    Cell,
    CursorCell,
    Kind,
    LeaseCell,
    PinCell,
    Pointers,
    ProducerCell,
    TakeoverCell,
)
from millrace.core.commands import CommitCursor, NextSnapshot
from millrace.core.decide import Answer, decide
from millrace.core.format.codec import encode_cell
from millrace.core.model import (
    CursorPosition,
    Epoch,
    Millis,
    ShardId,
)
from millrace.core.state.draft import BatchContext
from millrace.core.state.fold import ShardMeta
from millrace.core.state.view import View, number_key
from millrace.errors import CursorExpired, Refused, Retry
from tests.support.models.commit_group import history_named

SHARD = ShardId(1)
A, B, C = (history_named(name) for name in "ABC")


def load(cursor: CursorCell, *cells: tuple[Kind, bytes, Cell], last_seq: int = 150) -> View:
    """A shard whose store ended in history A, under history B."""
    stored: list[tuple[Kind, bytes, Cell]] = [(Kind.CURSOR, b"c", cursor), *cells]
    return View.load(
        SHARD,
        Epoch(2),
        B,
        ShardMeta(index=15, last_seq=last_seq, time_ms=5, history=A, published=last_seq),
        [(kind, key, encode_cell(cell)) for kind, key, cell in stored],
    )


def ask(view: View, command: NextSnapshot | CommitCursor) -> Answer | Refused | Retry:
    context = BatchContext(lambda _: view, Millis(10))
    answer = decide(context, SHARD, command)
    draft = context.draft(SHARD)
    assert draft is not None
    if not draft.empty():
        draft.finish()
    return answer  # type: ignore[return-value]


def next_of(view: View, after: int = 0, history: bytes = b"") -> Answer | Refused | Retry:
    return ask(view, NextSnapshot("c", 1, after, 1000, history))


def cursor(
    seq: int, start: int, end: int, history: bytes = A, *, retain: bool = False
) -> CursorCell:
    return CursorCell(1, retain, CursorPosition(history, seq, start, end), 0)


@pytest.mark.parametrize(
    ("cell", "after", "start"),
    [
        (cursor(60, 60, 60), 60, 60),
        (cursor(60, 50, 140), 60, 50),
        (cursor(60, 50, 200), 50, 50),
        (cursor(60, 0, 200), 0, 0),
        (cursor(0, 0, 0), 0, 0),
        (cursor(0, 0, 0, C), 0, 0),
    ],
    ids=["boundary", "shared snapshot", "lost end", "lost end of the first", "new", "nothing read"],
)
def test_where_a_takeover_sends_it(cell: CursorCell, after: int, start: int) -> None:
    """Inside a snapshot that is not shared to its end, it goes back to the snapshot's start."""
    view = load(cell)
    ref = next_of(view)
    assert isinstance(ref, SnapshotRef)
    assert (ref.after, ref.start, ref.boundary, ref.history) == (after, start, 150, B)
    assert view.cursors["c"].position.seq == after
    committed = ask(view, CommitCursor("c", 1, CursorPosition(B, 100, ref.start, ref.boundary)))
    assert isinstance(committed, CursorCell)
    assert committed.position == CursorPosition(B, 100, start, 150)


@pytest.mark.parametrize(
    ("cell", "shared"),
    [
        (cursor(160, 160, 160), 150),
        (cursor(160, 50, 200), 150),
        (cursor(60, 60, 60, C), 0),
    ],
    ids=["lost", "lost in the middle", "unknown history"],
)
def test_what_it_has_read_is_not_shared(cell: CursorCell, shared: int) -> None:
    """The follower must undo it itself: it gets an error, and nothing moves."""
    view = load(cell)
    answer = next_of(view)
    assert isinstance(answer, CursorExpired)
    assert answer.limit == shared
    assert view.cursors["c"] == cell


def test_a_reader_that_is_ahead_of_its_cursor() -> None:
    view = load(cursor(60, 60, 60))
    assert isinstance(next_of(view, 151, A), CursorExpired)
    assert isinstance(next_of(view, 1, C), CursorExpired)
    for after, history, goes_on in ((140, A, 60), (140, B, 140), (140, b"", 140), (999, b"", 60)):
        ref = next_of(load(cursor(60, 60, 60)), after, history)
        assert isinstance(ref, SnapshotRef)
        assert ref.after == goes_on


def test_rows_are_kept_from_where_it_will_go_on() -> None:
    """A position in a lost part counts for as much as is shared, or what it needs would die."""
    view = load(
        cursor(60, 50, 200, retain=True), (Kind.CURSOR, b"d", cursor(170, 170, 170, retain=True))
    )
    assert view.retain_floor() == 50
    assert load(cursor(170, 170, 170, retain=True)).retain_floor() == 150


def test_a_pin_of_the_earlier_history_is_left_where_it_goes_back() -> None:
    pin = (Kind.PIN, number_key(3), PinCell(14, 150, 0, 10**9, "c"))
    pointers = (Kind.POINTERS, b"", Pointers(pin=3, cursor=1))
    cell = CursorCell(1, False, CursorPosition(A, 60, 50, 200), 0, 3)
    ref = next_of(load(cell, pin, pointers))
    assert isinstance(ref, SnapshotRef)
    assert (ref.pin, ref.after) == (4, 50)
    cell = CursorCell(1, False, CursorPosition(A, 60, 50, 150), 0, 3)
    ref = next_of(load(cell, pin, pointers))
    assert isinstance(ref, SnapshotRef)
    assert (ref.pin, ref.after, ref.start) == (3, 60, 50)


def test_a_takeover_that_went_back_further_counts() -> None:
    table = (Kind.TAKEOVER, number_key(1), TakeoverCell(C, 40, 140))
    view = load(cursor(120, 120, 120, C), table, last_seq=100)
    assert isinstance(next_of(view), CursorExpired)
    view = load(cursor(90, 90, 90, C), table, last_seq=100)
    assert isinstance(next_of(view), SnapshotRef)


def test_views_are_loaded_in_any_order_of_ends() -> None:
    """The least recently used or ended is forgotten first, also after a crash."""
    cells: list[tuple[Kind, bytes, Cell]] = [
        (Kind.PRODUCER, b"p", ProducerCell("dense", 1, 30)),
        (Kind.PRODUCER, b"q", ProducerCell("dense", 1, 10)),
        (Kind.LEASE, number_key(1), LeaseCell(9, b"", ended_ms=30)),
        (Kind.LEASE, number_key(2), LeaseCell(9, b"", ended_ms=10)),
    ]
    view = load(cursor(0, 0, 0), *cells)
    assert list(view.producers) == ["q", "p"]
    assert view.ended[0] == (10, 2)
