"""Rows as an Arrow batch: what its columns say of each message.

`value` is the body, `key` and `headers` go with it. `group`, `priority`, `delay` and `ttl` say of
each message what they say of one, and where they are null, what the call says.

Nothing is done row by row in Python: a batch has tens of thousands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace import limits
from millrace.core import bounds, check, check_rows
from millrace.core.block import HEADER_TYPE, SCHEMA, Block
from millrace.core.column import Array
from millrace.core.commands import Aside
from millrace.core.group_cells import GROUP_HEADER
from millrace.core.leased_commands import Life
from millrace.errors import Invalid, TooLarge

_OWN = ("value", "key", "headers")
_KNOWN = (*_OWN, "group", "priority", "delay", "ttl")
_NONE = -1
"""A row that says nothing of its own."""

Whole = npt.NDArray[np.int64]


def block_of(batch: pa.RecordBatch) -> Block:
    """The rows side by side, checked.

    Raises:
        Invalid, TooLarge: a column, or a row; the error names the field and the limit.
    """
    names = batch.schema.names
    unknown = [name for name in names if name not in _KNOWN]
    if unknown or "value" not in names or len(set(names)) < len(names):
        raise Invalid(
            f"an Arrow batch has the column 'value' and may have {', '.join(_KNOWN[1:])}, once; "
            f"this one has {', '.join(names)}",
            field="batch",
        )
    plain = batch.select([name for name in _OWN if name in names])
    if "group" in names:
        plain = _with_groups(plain, batch.column("group"))
    return check_rows.rows(plain)


def turns_of(batch: pa.RecordBatch, usual: tuple[int, int | None]) -> tuple[Aside, ...]:
    """Which rows do not wait in the order of their seqs; `usual` is what the call says.

    Raises:
        Invalid, TooLarge: a priority or a delay.
    """
    names = batch.schema.names
    if "priority" not in names and "delay" not in names:
        return ()
    priority, delay_ms = usual
    ranks = np.full(batch.num_rows, priority, np.int64)
    if "priority" in names:
        own = _whole(batch.column("priority"), "priority")
        for one in own[(own != _NONE) & ((own < 0) | (own > limits.PRIORITY_MAX))][:1].tolist():
            check.priority(one)
        ranks = np.where(own == _NONE, ranks, own)
    delays = np.full(batch.num_rows, _NONE if delay_ms is None else delay_ms, np.int64)
    if "delay" in names:
        own = _millis(batch.column("delay"), "delay", limits.DELAY_MS_MAX, least_ms=0)
        delays = np.where(own == _NONE, delays, own)
    return tuple(
        Aside(at, count, rank, None if delay == _NONE else delay)
        for at, count, rank, delay in _runs(ranks, delays)
        if (rank, delay) != (limits.PRIORITY_DEFAULT, _NONE)
    )


def lives_of(batch: pa.RecordBatch, usual_ms: int | None) -> tuple[Life, ...]:
    """Which rows have a time to live; `usual_ms` is what the call says.

    Raises:
        Invalid, TooLarge: the time of one of them.
    """
    own = _millis(batch.column("ttl"), "ttl", bounds.TTL_MS_MAX, least_ms=1)
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


def _whole(column: Array, field: str) -> Whole:
    if not pa.types.is_integer(column.type):
        raise Invalid(f"column {field!r} is {column.type}, not of whole numbers", field=field)
    return cast("Whole", column.cast(pa.int64()).fill_null(_NONE).to_numpy(zero_copy_only=False))


def _millis(column: Array, field: str, most_ms: int, *, least_ms: int) -> Whole:
    try:
        seconds = column.cast(pa.float64())
    except pa.ArrowException as error:
        raise Invalid(
            f"column {field!r} is {column.type}, not of numbers of seconds", field=field
        ) from error
    known = seconds.is_valid().to_numpy(zero_copy_only=False)
    given = seconds.fill_null(0).to_numpy(zero_copy_only=False)
    # What is no number compares with nothing.
    wrong = ~((given >= 0) & (given * 1000 <= most_ms))
    for one in given[wrong][:1].tolist():
        check.millis(one, field, most_ms, least_ms=least_ms)
    millis = np.maximum(np.rint(given * 1000).astype(np.int64), least_ms)
    return cast("Whole", np.where(known, millis, _NONE))


def _with_groups(batch: pa.RecordBatch, column: Array) -> pa.RecordBatch:
    """The rows with their groups as headers, before all others: the first one counts."""
    try:
        groups = column.cast(pa.binary())
    except pa.ArrowException as error:
        raise Invalid(f"column 'group' is {column.type}, not binary", field="group") from error
    rows = np.flatnonzero(groups.is_valid().to_numpy(zero_copy_only=False))
    own = groups.drop_null()
    longest = max((len(one or b"") for one in own.unique().to_pylist()), default=0)
    if longest > limits.KEY_BYTES_MAX:
        raise TooLarge(
            f"group has {longest} bytes, up to {limits.KEY_BYTES_MAX} are allowed",
            field="group",
            limit=limits.KEY_BYTES_MAX,
        )
    lengths = np.zeros(batch.num_rows, np.int64)
    names: Array = cast("Array", pa.repeat(pa.scalar(GROUP_HEADER), len(own)))
    values: Array = own
    if "headers" in batch.schema.names:
        lists = cast("pa.ListArray[pa.StructScalar]", batch.column("headers"))
        lengths = np.asarray(lists.value_lengths().fill_null(0), np.int64)
        pairs = cast(pa.StructArray, lists.flatten())
        names = pa.concat_arrays([names, pairs.field(0).cast(pa.utf8())])
        values = pa.concat_arrays([values, pairs.field(1).cast(pa.binary())])
    of_rows = np.concatenate([rows, np.repeat(np.arange(batch.num_rows), lengths)])
    order = np.argsort(of_rows, kind="stable")
    lengths[rows] += 1
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    items = pa.StructArray.from_arrays(
        [names.take(order), values.take(order)],
        fields=[HEADER_TYPE.field(0), HEADER_TYPE.field(1)],
    )
    kind = SCHEMA.field("headers").type
    headers = cast("Array", pa.ListArray.from_arrays(offsets, items, type=kind))
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["headers"] = headers
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
