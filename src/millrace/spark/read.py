"""Input partitions: a span of one shard, as of a snapshot, for each task; splitting a range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millrace import limits
from millrace.client.cursor import Snapshot
from millrace.client.snapshot_token import shard_ranges, write_snapshot_token
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


# --- Splits a range into tasks: at least one for every shard, several for large ones -------------


def split(
    snapshot: Snapshot,
    after: Sequence[int],
    upto: Sequence[int],
    *,
    row_bytes: int,
    partition_bytes: int,
    partitions_min: int,
) -> list[ReadPartition]:
    """Return the parts of the rows between two places, as of the snapshot.

    The parts of a shard have about the same number of seqs. Shards without rows have no part.
    """
    spans = [
        (number, shard, low, min(high, boundary), reader)
        for number, ((shard, _, boundary, reader), low, high) in enumerate(
            zip(shard_ranges(snapshot), after, upto, strict=True)
        )
    ]
    spans = [span for span in spans if span[2] < span[3]]
    total = sum(span[3] - span[2] for span in spans)
    ticket, place = write_snapshot_token(snapshot), sum(snapshot.boundaries)
    parts: list[ReadPartition] = []
    for number, shard, low, high, reader in spans:
        rows = high - low
        wanted = max(-(-rows * row_bytes // partition_bytes), -(-rows * partitions_min // total), 1)
        count = min(wanted, rows, limits.SPARK_PARTITIONS_MAX // len(spans) or 1)
        cuts = [low + rows * at // count for at in range(count + 1)]
        parts += [
            ReadPartition(number, shard, begin, end, reader.pin, reader.retain, ticket, place)
            for begin, end in pairwise(cuts)
        ]
    return parts
