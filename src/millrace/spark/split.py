"""Which tasks read a range: every shard by at least one, large ones by several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from millrace import limits
from millrace.client.cursor import Snapshot
from millrace.client.ticket import spans_of, write_ticket
from millrace.spark.read import Part


def split(
    snapshot: Snapshot,
    after: Sequence[int],
    upto: Sequence[int],
    *,
    row_bytes: int,
    partition_bytes: int,
    partitions_min: int,
) -> list[Part]:
    """The parts of what lies after the one place up to the other, as of the snapshot.

    Each has about as many seqs as every other of its shard. Shards with nothing in them have none.
    """
    spans = [
        (number, shard, low, min(high, boundary), reader)
        for number, ((shard, _, boundary, reader), low, high) in enumerate(
            zip(spans_of(snapshot), after, upto, strict=True)
        )
    ]
    spans = [span for span in spans if span[2] < span[3]]
    total = sum(span[3] - span[2] for span in spans)
    ticket, place = write_ticket(snapshot), sum(snapshot.boundaries)
    parts: list[Part] = []
    for number, shard, low, high, reader in spans:
        rows = high - low
        wanted = max(-(-rows * row_bytes // partition_bytes), -(-rows * partitions_min // total), 1)
        count = min(wanted, rows, limits.SPARK_PARTITIONS_MAX // len(spans) or 1)
        cuts = [low + rows * at // count for at in range(count + 1)]
        parts += [
            Part(number, shard, begin, end, reader.pin, reader.retain, ticket, place)
            for begin, end in pairwise(cuts)
        ]
    return parts
