"""Row sizes: bytes by regions, exact at their ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.cells import Kind, RowSizesCell
from millrace.core.state import row_sizes
from millrace.core.state.row_sizes import RowSizes


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sizes, "WEIGHT_BYTES", 100)


def key(seq: int) -> tuple[Kind, bytes]:
    return (Kind.WEIGHT, seq.to_bytes(8, "big"))


def test_a_region_ends_when_it_is_heavy_enough() -> None:
    scale = RowSizes()
    assert scale.publish(60, 6, lambda: 0) == {}
    assert scale.publish(60, 10, lambda: 0) == {key(10): RowSizesCell(0, 0, 120)}
    assert scale.publish(99, 20, lambda: 0) == {}
    assert scale.publish(2, 21, lambda: 0) == {key(21): RowSizesCell(10, 120, 221)}
    assert [scale.upto(seq, 21) for seq in (0, 5, 10, 21, 99)] == [0, 60, 120, 221, 221]


def test_within_a_region_rows_count_alike() -> None:
    scale = RowSizes()
    scale.publish(200, 10, lambda: 0)
    scale.publish(50, 20, lambda: 0)
    assert scale.upto(3, 20) == 60
    assert scale.upto(14, 20) == 220


def test_before_keeps_at_least_as_much() -> None:
    scale = RowSizes()
    for last in range(10, 60, 10):
        scale.publish(100, last, lambda: 0)
    assert scale.before(500) == 0
    assert scale.before(301) == 10
    assert scale.before(300) == 20
    assert scale.before(0) == 50


def test_regions_that_nobody_wants_are_forgotten_in_steps() -> None:
    scale = RowSizes()
    for last in range(1, 8):
        scale.publish(100, last, lambda: 0)
    changed = scale.publish(100, 8, lambda: 6)
    gone = [name for name, cell in changed.items() if cell is None]
    assert gone == [key(seq) for seq in range(1, row_sizes.WEIGHTS_STEP + 1)]
    assert scale.upto(2, 8) == scale.upto(4, 8) == 400
    assert scale.upto(5, 8) == 500
    scale.publish(100, 9, lambda: 9)
    scale.publish(100, 10, lambda: 10)
    assert len(scale) == 1, "the last one says how much there was before"


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 10**6)), max_size=300))
def test_few_regions_and_exact_ends(published: list[tuple[int, int]]) -> None:
    scale, last, total = RowSizes(), 0, 0
    sums = {0: 0}
    for rows, size in published:
        last, total = last + rows, total + size
        sums[last] = total
        scale.publish(size, last, lambda: 0)
    assert scale.total == total
    for end, cell in scale.cells().items():
        assert cell.upto == sums[end]
        assert scale.upto(end, last) == sums[end]
    for size in (1, total // 3, total):
        assert total - sums[scale.before(size)] >= size or scale.before(size) == 0
    assert scale.upto(last, last) == total


def test_a_terabyte_has_some_thousand_regions() -> None:
    scale = RowSizes()
    for at in range(1, 100_001):
        scale.publish(10, at, lambda: 0)
    assert len(scale) < 10 * row_sizes.WEIGHT_SHARE
