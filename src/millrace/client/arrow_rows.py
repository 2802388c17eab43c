"""Rows as Arrow: what its columns say of each message.

`value` is the body, `key` and `headers` go with it. `group`, `priority`, `delay` and `ttl` say of
each message what they say of one, and where they are null, what the call says.

Nothing is done row by row in Python: a batch has tens of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.client.arrow_columns import (
    Flags,
    Rows,
    Values,
    Whole,
    check_shape,
    data_column,
    header_columns,
    numbers,
)
from millrace.core import bounds, check, check_rows
from millrace.core.block import VALUE, Block, HeaderColumns, column_of
from millrace.core.column import Array
from millrace.core.commands import Aside
from millrace.core.group_cells import GROUP_HEADER
from millrace.core.leased_commands import Life
from millrace.errors import Invalid, TooLarge

_NONE = -1
"""A row that says nothing of its own."""


def block_of(rows: Rows, check_names: Callable[[Array], None] | None = None) -> Block:
    """The rows side by side, checked; `check_names` is given the names of their headers as they are
    stored, without those that stand for another column.

    Raises:
        Invalid, TooLarge: a column, or a row; the error names the field and the limit.
    """
    check_shape(rows)
    names = rows.schema.names
    value = data_column(rows, "value")
    key = data_column(rows, "key") if "key" in names else None
    headers = header_columns(rows) if "headers" in names else None
    if headers is not None and check_names is not None:
        check_names(headers.names)
    if "group" in names:
        headers = _with_groups(data_column(rows, "group"), headers)
    block = Block.of_columns(value, key, headers)
    check_rows.whole_block(block)
    return block


def turns_of(rows: Rows, usual: tuple[int, int | None]) -> tuple[Aside, ...]:
    """Which rows do not wait in the order of their seqs; `usual` is what the call says.

    Raises:
        Invalid, TooLarge: a priority or a delay.
    """
    names = rows.schema.names
    if "priority" not in names and "delay" not in names:
        return ()
    priority, delay_ms = usual
    ranks = np.full(rows.num_rows, priority, np.int64)
    if "priority" in names:
        own, known = numbers(rows, "priority", is_whole=True)
        _check_each(known & ((own < 0) | (own > limits.PRIORITY_MAX)), own, check.priority)
        ranks = np.where(known, own.astype(np.int64), ranks)
    delays = np.full(rows.num_rows, _NONE if delay_ms is None else delay_ms, np.int64)
    if "delay" in names:
        millis = _millis(rows, "delay", limits.DELAY_MS_MAX, least_ms=0)
        delays = np.where(millis == _NONE, delays, millis)
    return tuple(
        Aside(at, count, rank, None if delay == _NONE else delay)
        for at, count, rank, delay in _runs(ranks, delays)
        if (rank, delay) != (limits.PRIORITY_DEFAULT, _NONE)
    )


def lives_of(rows: Rows, usual_ms: int | None) -> tuple[Life, ...]:
    """Which rows have a time to live; `usual_ms` is what the call says.

    Raises:
        Invalid, TooLarge: the time of one of them.
    """
    own = _millis(rows, "ttl", bounds.TTL_MS_MAX, least_ms=1)
    lives = np.where(own == _NONE, _NONE if usual_ms is None else usual_ms, own)
    return tuple(Life(at, count, ms) for at, count, ms, _ in _runs(lives, lives) if ms != _NONE)


def _runs(one: Whole, other: Whole) -> Iterator[tuple[int, int, int, int]]:
    """Place, number and both values of rows that follow each other and have the same."""
    if not len(one):
        return
    new = np.flatnonzero((np.diff(one) != 0) | (np.diff(other) != 0)) + 1
    begins = np.concatenate([np.zeros(1, np.int64), new])
    counts = np.diff(np.append(begins, len(one)))
    values = (begins, counts, one[begins], other[begins])
    yield from zip(*(value.tolist() for value in values), strict=True)


def _check_each(is_bad: Flags, given: Values, judge: Callable[[int | float], object]) -> None:
    """Have the first bad value judged, which refuses it, by the name of its row."""
    if not is_bad.any():
        return
    at = int(np.argmax(is_bad))
    try:
        judge(given[at].item())
    except (Invalid, TooLarge) as error:
        raise check_rows.in_row(at, error) from error


def _millis(rows: Rows, field: str, most_ms: int, *, least_ms: int) -> Whole:
    given, known = numbers(rows, field, is_whole=False)
    seconds = given.astype(np.float64)
    # A value that is no number compares with nothing.
    wrong = ~((seconds >= 0) & (seconds * 1000 <= most_ms))
    _check_each(wrong, seconds, lambda one: check.millis(one, field, most_ms, least_ms=least_ms))
    millis = np.maximum(np.rint(seconds * 1000).astype(np.int64), least_ms)
    return cast("Whole", np.where(known, millis, _NONE))


def _with_groups(groups: Array, headers: HeaderColumns | None) -> HeaderColumns:
    """The headers of the rows, with their groups before all others: the first one counts."""
    is_named = groups.is_valid().to_numpy(zero_copy_only=False)
    own = groups.drop_null()
    sizes = np.where(is_named, np.diff(column_of(groups).bounds()), 0)
    at = int(np.argmax(sizes))
    if sizes[at] > limits.KEY_BYTES_MAX:
        error = TooLarge(
            f"group has {sizes[at]} bytes, up to {limits.KEY_BYTES_MAX} are allowed",
            field="group",
            limit=limits.KEY_BYTES_MAX,
        )
        raise check_rows.in_row(at, error)
    names = pa.repeat(pa.scalar(GROUP_HEADER.encode(), VALUE), len(own))
    if headers is None:
        return HeaderColumns(is_named.astype(np.int64), names, own)
    # Each header moves on by the groups of the rows up to its own.
    groups_before = np.cumsum(is_named)
    headers_before = np.cumsum(headers.counts) - headers.counts
    order = np.empty(len(own) + len(headers.names), np.int64)
    order[(headers_before + groups_before - 1)[is_named]] = np.arange(len(own))
    places = np.arange(len(headers.names)) + np.repeat(groups_before, headers.counts)
    order[places] = len(own) + np.arange(len(headers.names))
    return HeaderColumns(
        headers.counts + is_named,
        pa.concat_arrays([names, headers.names]).take(order),
        pa.concat_arrays([own, headers.values]).take(order),
    )
