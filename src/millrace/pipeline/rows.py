"""Rows of a queue with the columns that steps and sinks see, where no Spark has read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core.column import Array
from millrace.sinks.base import DELETE, OP, PUT

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(_HEADER)),
    pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field(OP, pa.string(), nullable=False),
]
COLUMNS = pa.schema(_FIELDS)
"""What a row of a source looks like."""


def shaped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a snapshot with these columns."""
    value = batch.column("value")
    op = cast("Array", pc.if_else(pc.is_null(value), DELETE, PUT))
    columns: list[Array] = [
        cast("Array", pc.cast(batch.column("shard"), pa.int32())),
        cast("Array", pc.cast(batch.column("seq"), pa.int64())),
        batch.column("key"),
        value,
        _headers(batch.column("headers")),
        cast("Array", pc.cast(batch.column("time"), pa.timestamp("us", tz="UTC"))),
        op,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=COLUMNS)


def _headers(column: Array) -> Array:
    """Names are called keys, as Spark's sources call them; the bytes are the same."""
    # Spark takes no slice of lists.
    whole = pa.concat_arrays([column]) if column.offset else column
    return whole.view(pa.list_(_HEADER))


def all_shaped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, batch by batch."""
    return (shaped(batch) for batch in batches if batch.num_rows)


def small(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    """All rows, where they are few enough to be held in the driver; else None."""
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in all_shaped(batches):
        rows += batch.num_rows
        size += batch.nbytes
        if rows > limits.PIPELINE_SMALL_ROWS or size > limits.PIPELINE_SMALL_BYTES:
            return None
        found.append(batch)
    return pa.Table.from_batches(found, COLUMNS)
