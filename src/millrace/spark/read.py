"""What a task reads: one span of one shard, as of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millrace import limits
from millrace.core.fold import Reader
from millrace.core.model import ShardId
from millrace.spark.fetch import fetch, snapshot_path
from millrace.spark.home import reach
from millrace.spark.options import Options


@dataclass(frozen=True)
class Part(InputPartition):
    """The rows of one task. It is pickled to executors."""

    number: int
    """Which one of the queue's shards, from 0."""
    shard: int
    after: int
    upto: int
    pin: int | None
    retain: bool
    ticket: str
    snapshot: int
    """What the column `snapshot` says."""


def read_part(
    options: Options, part: Part, columns: tuple[str, ...] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the order of seqs, with at least these columns of the queue's.

    Raises:
        SnapshotExpired: it is no longer pinned.
        Closed: nobody answers, for longer than the home's patience.
    """
    home = options.home
    path = snapshot_path(options.space, options.queue, part.ticket)
    # Tickets of very many shards are too long for an address.
    if home.url and len(path) <= limits.HTTP_URL_BYTES_MAX // 2:
        asked = {"shard": str(part.number), "upto": str(part.upto)}
        if columns is not None:
            asked["columns"] = ",".join(columns)
        yield from fetch(home, path, asked, part.after)
        return
    reader = Reader(part.pin, part.retain)
    yield from reach(home).engine.scan(ShardId(part.shard), part.after, part.upto, reader)
