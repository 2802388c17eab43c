"""Positions after takeovers: golden vectors and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.cells import TakeoverCell
from millrace.core.model import CursorPosition, History
from millrace.core.state.histories import resume, shared_index, shared_seq

H1111, H2222, X, W = (History(name.ljust(16, b"-")) for name in (b"1111", b"2222", b"X", b"W"))
UNKNOWN = b"?" * 16

KAYOS = [TakeoverCell(H1111, 30, 3)]
"""Couchbase's table [{2222, 3}, {1111, 0}]: where each history began. Ours says where it ended."""


@pytest.mark.parametrize(
    ("table", "current", "high", "position", "back"),
    [
        (KAYOS, H2222, 10, CursorPosition(H1111, 3, 1, 4), 1),
        (KAYOS, H2222, 10, CursorPosition(H1111, 3, 3, 3), None),
        (KAYOS, H2222, 10, CursorPosition(H1111, 4, 1, 4), 3),
        (KAYOS, H2222, 10, CursorPosition(H1111, 9, 5, 10), 3),
        (KAYOS, H2222, 10, CursorPosition(H2222, 9, 5, 10), None),
        (KAYOS, H2222, 10, CursorPosition(UNKNOWN, 2, 2, 2), 0),
        (KAYOS, H2222, 10, CursorPosition(UNKNOWN, 0, 0, 0), None),
        ([TakeoverCell(W, 9000, 900)], X, 2000, CursorPosition(W, 1000, 1000, 1000), 900),
    ],
)
def test_k10_golden_vectors(
    table: list[TakeoverCell],
    current: History,
    high: int,
    position: CursorPosition,
    back: int | None,
) -> None:
    """The first and second and the last are those of the seeds, the others of their rule."""
    assert resume(table, current, high, 0, position) == back


def test_behind_the_floor_it_starts_over() -> None:
    assert resume(KAYOS, H2222, 10, 3, CursorPosition(H1111, 2, 2, 2)) == 0
    assert resume(KAYOS, H2222, 10, 3, CursorPosition(H1111, 3, 3, 3)) is None
    assert resume(KAYOS, H2222, 10, 3, CursorPosition(H1111, 0, 0, 0)) is None


def test_what_a_later_takeover_took_back_is_not_shared() -> None:
    """The seed's "next newest entry" is wrong: the minimum over all that followed counts."""
    table = [TakeoverCell(W, 90, 900), TakeoverCell(X, 30, 300)]
    assert shared_seq(table, W, H1111, 5000) == 300
    assert shared_index(table, W, H1111, 5000) == 30
    assert shared_seq(table, X, H1111, 5000) == 300
    assert shared_seq(table, H1111, H1111, 5000) == 5000
    assert shared_index(table, H1111, H1111, 77) == 77
    assert shared_seq(table, UNKNOWN, H1111, 5000) is None
    assert shared_index(table, UNKNOWN, H1111, 5000) is None


POSITIONS = st.lists(st.integers(0, 20), min_size=3, max_size=3).map(sorted)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.data())
def test_it_never_goes_forward_nor_beyond_what_is_shared(
    ends: list[int], data: st.DataObject
) -> None:
    names = [bytes([n]) * 16 for n in range(len(ends) + 1)]
    table = [TakeoverCell(name, seq, seq) for name, seq in zip(names[:-1], ends, strict=True)]
    start, seq, end = data.draw(POSITIONS)
    history = data.draw(st.sampled_from([*names, UNKNOWN]))
    floor = data.draw(st.integers(0, 20))
    high = max(*ends, 20)
    back = resume(table, History(names[-1]), high, floor, CursorPosition(history, seq, start, end))
    shared = shared_seq(table, history, History(names[-1]), high)
    if back is None:
        assert seq == 0 or (seq >= floor and shared is not None and seq <= shared)
    else:
        assert back <= seq
        assert back <= (shared or 0)
        assert back == 0 or back <= start or back == shared
