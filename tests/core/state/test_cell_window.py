"""A window shows the first of many cells, from the store, from unfolded batches or from memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.state.cell_window import CellWindow

KEYS = st.integers(0, 40).map(lambda number: number.to_bytes(2, "big"))
VALUES = st.binary(min_size=1, max_size=1)
LIMIT = 3

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, VALUES),
        st.tuples(st.just("take"), st.just(b""), st.just(b"")),
        st.tuples(st.just("take below"), KEYS, st.just(b"")),
        st.tuples(st.just("look"), st.just(b""), st.just(b"")),
        st.tuples(st.just("drop"), KEYS, st.just(b"")),
        st.tuples(st.just("fold"), st.just(b""), st.just(b"")),
    ),
    min_size=20,
    max_size=80,
)


class Shard:
    """All cells in plain dictionaries, and a window to compare."""

    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}
        self.stored: dict[bytes, bytes] = {}
        self.pending: list[dict[bytes, bytes | None]] = []
        self.window: CellWindow[bytes] = CellWindow(4)

    def change(self, key: bytes, value: bytes | None) -> None:
        self.pending.append({key: value})
        if value is None:
            self.cells.pop(key, None)
            self.window.drop(key)
        else:
            self.cells[key] = value
            self.window.put(key, value)

    def fold(self) -> None:
        if self.pending:
            for key, value in self.pending.pop(0).items():
                if value is None:
                    self.stored.pop(key, None)
                else:
                    self.stored[key] = value

    def first(self) -> tuple[bytes, bytes] | None:
        while (low := self.window.wanted_from()) is not None:
            found = sorted(item for item in self.stored.items() if item[0] >= low)
            is_all = len(found) <= LIMIT
            self.window.learn(found[:LIMIT], self.pending, is_all=is_all)
        return self.window.first()


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_the_first_cell_is_the_first_of_all(steps: list[tuple[str, bytes, bytes]]) -> None:
    shard = Shard()
    for what, key, value in steps:
        if what == "put":
            shard.change(key, value)
        elif what == "drop":
            shard.change(key, None)
        elif what == "fold":
            shard.fold()
        elif what == "take below":
            shard.first()
            known = [cell for cell in sorted(shard.window) if cell[0] < key]
            assert shard.window.take_below(key, 3) == known[:3]
            for taken, _ in known[:3]:
                shard.change(taken, None)
        elif what == "look":
            assert shard.window.firsts(3) == sorted(shard.window)[:3]
        else:
            expected = min(shard.cells.items(), default=None)
            assert shard.first() == expected
            if expected is not None:
                shard.change(expected[0], None)
        assert len(shard.window) <= 8
    assert shard.first() == min(shard.cells.items(), default=None)


def test_a_window_that_knows_everything_asks_for_nothing() -> None:
    window: CellWindow[bytes] = CellWindow(4)
    assert window.wanted_from() == b""
    window.learn([], [], is_all=True)
    assert window.wanted_from() is None
    window.put(b"b", b"1")
    window.put(b"a", b"2")
    assert window.first() == (b"a", b"2")
    window.drop(b"a")
    assert window.first() == (b"b", b"1")
