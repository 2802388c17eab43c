"""Splits a range into tasks: at least one for every shard, several for large ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from millrace import limits
from millrace.client.cursor import Snapshot
from millrace.client.snapshot_token import shard_ranges, write_snapshot_token
from millrace.spark.read import ReadPartition


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
