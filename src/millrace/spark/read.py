"""The input partition of a task: one span of one shard, as of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millrace import limits
from millrace.core.model import ShardId
from millrace.core.state.fold import Reader
from millrace.spark.fetch import fetch, snapshot_path
from millrace.spark.home import reach
from millrace.spark.options import Options


@dataclass(frozen=True)
class ReadPartition(InputPartition):
    """The rows of one task. It is pickled to executors."""

    number: int
    """Index of the queue's shard, from 0."""
    shard: int
    after: int
    upto: int
    pin: int | None
    retain: bool
    ticket: str
    snapshot: int
    """Value of the column `snapshot`."""


def read_part(
    options: Options, part: ReadPartition, columns: tuple[str, ...] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, ordered by seq, with at least these columns of the queue.

    Raises:
        SnapshotExpired: it is no longer pinned.
        Closed: the server did not respond within the home's timeout (`patience`).
    """
    home = options.home
    path = snapshot_path(options.space, options.queue, part.ticket)
    # Tickets of very many shards are too long for a URL.
    if home.url and len(path) <= limits.HTTP_URL_BYTES_MAX // 2:
        asked = {"shard": str(part.number), "upto": str(part.upto)}
        if columns is not None:
            asked["columns"] = ",".join(columns)
        yield from fetch(home, path, asked, part.after)
        return
    reader = Reader(part.pin, part.retain)
    yield from reach(home).engine.scan(ShardId(part.shard), part.after, part.upto, reader)
