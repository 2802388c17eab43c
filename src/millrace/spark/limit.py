"""Rate limit of a stream: computes the end of a micro-batch within a snapshot.

Rule 1: the end depends only on the rows of the snapshot and on the limit: a repeated batch, also
under another checkpoint, ends at the same place.

Rule 2: seqs are counted from the first existing row: a batch is never empty because the rows of its
range were settled or replaced long ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.client.cursor import Snapshot, engine_of
from millrace.client.snapshot_token import shard_ranges


class BatchLimit(msgspec.Struct, frozen=True):
    """Approximate maximum size of a micro-batch; None: no limit."""

    rows: int | None = None
    bytes: int | None = None


class _Ahead(msgspec.Struct, frozen=True):
    """A sample of the first unread rows of a shard."""

    low: int
    """The last seq before the first of them; the boundary, if there are no rows."""
    rows: int
    bytes: int


async def cut(snapshot: Snapshot, after: Sequence[int], limit: BatchLimit) -> tuple[int, ...]:
    """Return the end of a batch that begins at `after`: shards share the limit in proportion to
    their backlogs.
    """
    total = most = sum(snapshot.boundaries) - sum(after)
    if limit.rows is not None:
        most = min(most, limit.rows)
    if most >= total and limit.bytes is None:
        return snapshot.boundaries
    looked_at = 1 if limit.bytes is None else limits.SPARK_WEIGHED_ROWS
    ahead = [await _look(snapshot, at, seq, looked_at) for at, seq in enumerate(after)]
    if limit.bytes is not None:
        rows = max(sum(one.rows for one in ahead), 1)
        average = max(sum(one.bytes for one in ahead) // rows, 1)
        most = min(most, max(limit.bytes // average, 1))
    waiting = [high - one.low for one, high in zip(ahead, snapshot.boundaries, strict=True)]
    total = sum(waiting)
    if most >= total:
        return snapshot.boundaries
    shares = [most * one // total for one in waiting]
    for at, one in enumerate(waiting):
        if sum(shares) < most and shares[at] < one:
            shares[at] += 1
    return tuple(one.low + share for one, share in zip(ahead, shares, strict=True))


async def _look(snapshot: Snapshot, at: int, after: int, most: int) -> _Ahead:
    """Read up to `most` rows of a shard after a seq."""
    shard, _, boundary, reader = shard_ranges(snapshot)[at]
    low, rows, size = boundary, 0, 0
    if after >= boundary:
        return _Ahead(low, rows, size)
    async with aclosing(engine_of(snapshot).batches(shard, after, boundary, reader)) as batches:
        async for batch in batches:
            some = batch.slice(0, most - rows)
            if some.num_rows and not rows:
                low = some.column("seq")[0].as_py() - 1
            rows, size = rows + some.num_rows, size + _size(some)
            if rows >= most:
                break
    return _Ahead(low, rows, size)


def _size(batch: pa.RecordBatch) -> int:
    """Return the size in bytes of the rows' content, independent of their memory layout."""
    lists = cast("pa.ListArray[pa.StructScalar]", batch.column("headers"))
    pairs = cast("pa.StructArray", lists.flatten()).flatten()
    columns = cast("list[pa.BinaryArray]", [batch.column("key"), batch.column("value"), *pairs])
    sizes: list[int | None] = [pc.sum(pc.binary_length(column)).as_py() for column in columns]
    return sum(size or 0 for size in sizes)
