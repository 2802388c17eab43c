"""What a task reads: one span of one shard, as of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millrace.core.fold import Reader
from millrace.core.model import ShardId
from millrace.spark.home import Home, reach


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


def read_part(home: Home, part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the order of seqs, as the queue has them.

    Raises:
        SnapshotExpired: it is no longer pinned.
        Closed: nobody answers, for longer than the home's patience.
    """
    engine = reach(home).engine
    reader = Reader(part.pin, part.retain)
    yield from engine.scan(ShardId(part.shard), part.after, part.upto, reader)
