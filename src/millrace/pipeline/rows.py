"""Rows of a queue with the columns of steps and sinks, converted without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from millrace import limits
from millrace.spark.columns import Shaper

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.field("element", _HEADER))),
    pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("op", pa.string(), nullable=False),
    pa.field("snapshot", pa.int64(), nullable=False),
]
COLUMNS = pa.schema(_FIELDS)
"""The columns of a source's rows, as Spark's own reader returns them."""


def shaped(batches: Iterable[pa.RecordBatch], snapshot: int) -> Iterator[pa.RecordBatch]:
    """Convert rows of a snapshot to these columns, batch by batch; `snapshot` is its number."""
    for batch in batches:
        if batch.num_rows:
            shard: int = batch.column("shard")[0].as_py()
            yield Shaper(COLUMNS, shard, snapshot).shape(batch)


def small(batches: Iterable[pa.RecordBatch], snapshot: int) -> pa.Table | None:
    """Return all rows if they are few enough to be held in the driver, else None."""
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in shaped(batches, snapshot):
        rows += batch.num_rows
        size += batch.nbytes
        if rows > limits.PIPELINE_SMALL_ROWS or size > limits.PIPELINE_SMALL_BYTES:
            return None
        found.append(batch)
    # Spark does not accept a table without a batch.
    return pa.Table.from_batches(found, COLUMNS) if found else COLUMNS.empty_table()
