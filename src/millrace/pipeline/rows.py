"""Rows of a queue with the columns that steps and sinks see, where no Spark has read them."""

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
"""What a row of a source looks like: as Spark's own reader gives it."""


def shaped(batches: Iterable[pa.RecordBatch], snapshot: int) -> Iterator[pa.RecordBatch]:
    """Rows of a snapshot with these columns, batch by batch; `snapshot` is its number."""
    for batch in batches:
        if batch.num_rows:
            shard: int = batch.column("shard")[0].as_py()
            yield Shaper(COLUMNS, shard, snapshot).shape(batch)


def small(batches: Iterable[pa.RecordBatch], snapshot: int) -> pa.Table | None:
    """All rows, where they are few enough to be held in the driver; else None."""
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in shaped(batches, snapshot):
        rows += batch.num_rows
        size += batch.nbytes
        if rows > limits.PIPELINE_SMALL_ROWS or size > limits.PIPELINE_SMALL_BYTES:
            return None
        found.append(batch)
    # Spark takes no table without a batch.
    return pa.Table.from_batches(found, COLUMNS) if found else COLUMNS.empty_table()
