"""Contract of cells: run it over your own implementation of `millrace.store.cells.Cells`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from millrace import errors, limits
from millrace.store.cells import Cells, Table

Reopen = Callable[[Cells], Cells]
"""Ends the cells as a crash would, and reopens the remaining state."""


def check_cells(make: Callable[[], Cells], reopen: Reopen) -> None:
    """Raise AssertionError where the cells break their promises; `make` gives new, empty ones."""
    for check in CHECKS:
        check(make(), reopen)


def _check_values(cells: Cells, reopen: Reopen) -> None:
    assert cells.get(Table.META, []) == []
    assert cells.get(Table.META, [b"a", b"b"]) == [None, None]
    cells.commit({Table.META: {b"a": b"1", b"b": b""}})
    assert cells.get(Table.META, [b"b", b"c", b"a", b"b"]) == [b"", None, b"1", b""], (
        "values come in the order that was asked for, and empty is not missing"
    )
    cells.commit({Table.META: {b"a": b"2", b"b": None, b"never": None}})
    assert cells.get(Table.META, [b"a", b"b", b"never"]) == [b"2", None, None]
    cells.close()


def _check_tables(cells: Cells, reopen: Reopen) -> None:
    cells.commit({table: {b"key": bytes([table])} for table in Table})
    for table in Table:
        assert cells.get(table, [b"key"]) == [bytes([table])], "tables do not share keys"
    cells.commit({Table.KEYS: {b"key": None}, Table.CELLS: {}})
    assert cells.get(Table.KEYS, [b"key"]) == [None]
    assert cells.get(Table.CELLS, [b"key"]) == [bytes([Table.CELLS])]
    assert cells.check() == []
    cells.close()


def _check_ranges(cells: Cells, reopen: Reopen) -> None:
    assert cells.range(Table.KEYS, b"", b"\xff", limit=10) == []
    assert cells.range(Table.KEYS, b"", b"\xff", limit=10, reverse=True) == []
    rows = [(b"%03d" % number, b"%d" % number) for number in range(100)]
    cells.commit({Table.KEYS: dict(reversed(rows))})
    ends = [b"", b"0", b"000", b"010", b"0105", b"011", b"099", b"0990", b"\xff", b"\xff" * 600]
    for low in ends:
        for high in ends:
            inside = [row for row in rows if low <= row[0] < high]
            for limit in (0, 1, 7, 1_000):
                found = cells.range(Table.KEYS, low, high, limit=limit)
                assert found == inside[:limit], (low, high, limit)
                found = cells.range(Table.KEYS, low, high, limit=limit, reverse=True)
                assert found == inside[::-1][:limit], (low, high, limit)
    cells.close()


def _check_bounds(cells: Cells, reopen: Reopen) -> None:
    key, value = b"k" * limits.CELL_KEY_BYTES_MAX, b"v" * limits.CELL_BYTES_MAX
    cells.commit({Table.META: {key: value, b"a": b"1"}})
    assert cells.get(Table.META, [key]) == [value]
    for wrong_key, wrong_value, field, limit in (
        (b"", b"", "key", limits.CELL_KEY_BYTES_MAX),
        (key + b"k", b"", "key", limits.CELL_KEY_BYTES_MAX),
        (b"a", value + b"v", "value", limits.CELL_BYTES_MAX),
    ):
        wrong = {Table.META: {b"b": b"2"}, Table.KEYS: {wrong_key: wrong_value}}
        error = _caught(errors.Fatal, partial(cells.commit, wrong))
        assert (error.field, error.limit) == (field, limit)
        assert str(limit) in error.message
        assert cells.get(Table.META, [b"a", b"b"]) == [b"1", None], "nothing of it was applied"
    for wrong_key in (b"", key + b"k"):
        _caught(errors.Fatal, partial(cells.get, Table.META, [wrong_key]))
    assert cells.check() == []
    cells.close()


def _check_durability(cells: Cells, reopen: Reopen) -> None:
    cells.commit({Table.META: {b"a": b"1", b"b": b"1"}, Table.KEYS: {b"a": b"1"}})
    cells = reopen(cells)
    cells.commit({Table.META: {b"a": b"2", b"b": None}})
    cells = reopen(reopen(cells))
    assert cells.range(Table.META, b"", b"\xff", limit=10) == [(b"a", b"2")]
    assert cells.range(Table.KEYS, b"", b"\xff", limit=10) == [(b"a", b"1")]
    assert cells.check() == []
    cells.close()


def _check_large_commits(cells: Cells, reopen: Reopen) -> None:
    # More than any inner step, in an order that is not that of the keys, with every kind of write.
    count = 20 * limits.CELLS_STEP
    keys = [(number * 7919 % count).to_bytes(4, "big") for number in range(count)]
    expected = {key: key * 3 for key in keys}
    cells.commit({Table.KEYS: dict(expected), Table.META: {b"a": b"1"}})
    changes: dict[bytes, bytes | None] = dict.fromkeys(keys[::3])
    changes |= dict.fromkeys(keys[1::3], b"new")
    changes |= {key + b"more": b"more" for key in keys[2::3]}
    cells.commit({Table.KEYS: changes})
    for key, value in changes.items():
        if value is None:
            del expected[key]
        else:
            expected[key] = value
    cells = reopen(cells)
    assert cells.range(Table.KEYS, b"", b"\xff", limit=2 * count) == sorted(expected.items())
    asked = [*keys, *(key + b"more" for key in keys)]
    assert cells.get(Table.KEYS, asked) == [expected.get(key) for key in asked]
    assert cells.check() == []
    cells.commit({Table.KEYS: dict.fromkeys(expected)})
    assert cells.range(Table.KEYS, b"", b"\xff", limit=10) == []
    assert cells.check() == []
    cells.close()


def _check_ends(cells: Cells, reopen: Reopen) -> None:
    assert not cells.short_of_space
    cells.maintain()
    cells.commit({})
    cells.close()
    cells.close()
    calls: Sequence[Callable[[], object]] = (
        partial(cells.get, Table.META, [b"a"]),
        partial(cells.range, Table.META, b"a", b"b", limit=1),
        partial(cells.commit, {Table.META: {b"a": b"1"}}),
        cells.maintain,
        cells.check,
    )
    for call in calls:
        _caught(errors.Closed, call)


def _caught(wanted: type[errors.MillraceError], call: Callable[[], object]) -> errors.MillraceError:
    try:
        call()
    except wanted as error:
        return error
    raise AssertionError(f"expected {wanted.__name__}")


CHECKS: Sequence[Callable[[Cells, Reopen], None]] = (
    _check_values,
    _check_tables,
    _check_ranges,
    _check_bounds,
    _check_durability,
    _check_large_commits,
    _check_ends,
)
"""Each takes cells that are new and empty, and closes them."""
