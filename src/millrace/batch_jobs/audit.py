"""Audit: compares the counters of a queue with its rows.

Rule 1: for each shard, published = live + all the ways in which messages end, and the last seq is
the number of published messages: nothing else consumes a seq.
Rule 2: a snapshot has as many rows as are live, no seq twice and none after the last one. Every seq
without a row is one that a counter has ended.
Rule 3: counters and rows are of one moment; if the queue never stands still, the audit judges by
the counters before and after the snapshot.
Rule 4: each Spark task returns statistics of constant size: sums, its first and last seq, and the
first few gaps. The driver merges the statistics and checks the seams between parts.
Rule 5: rows come in the order of seqs, as a queue gives them; a row out of order is a finding. Rows
without an order, such as those of files, are sorted by `in_order` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypedDict, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from millrace import limits, sync
from millrace.batch_jobs.job_context import JobContext
from millrace.client.snapshot_token import with_retained, write_snapshot_token

Numbers = npt.NDArray[np.int64]


class SeqStatistics(msgspec.Struct, frozen=True):
    """Statistics of the seqs of a shard's rows, or of a part of them."""

    rows: int
    first: int
    """The lowest seq; `last` is the highest."""
    last: int
    repeats: int = 0
    """Number of rows with the seq of an earlier row."""
    strays: int = 0
    """Number of rows with a lower seq than the row before."""
    missing: int = 0
    """Number of seqs between the first and the last without a row."""
    gaps: int = 0
    """Number of ranges of missing seqs."""
    examples: tuple[tuple[int, int], ...] = ()
    """The first few gaps, each as its first and last missing seq."""


_SCHEMA = (
    "shard int, rows bigint, first bigint, last bigint, repeats bigint, strays bigint, "
    "missing bigint, gaps bigint, examples array<bigint>"
)
_ARROW = pa.schema(
    [
        ("shard", pa.int32()),
        *((name, pa.int64()) for name in ("rows", "first", "last", "repeats")),
        *((name, pa.int64()) for name in ("strays", "missing", "gaps")),
        ("examples", pa.list_(pa.int64())),
    ]
)


def in_order(frame: DataFrame) -> DataFrame:
    """Sort rows of files by shard and seq, in consecutive partitions."""
    return (
        frame.select("shard", "seq")
        .repartitionByRange("shard", "seq")
        .sortWithinPartitions("shard", "seq")
    )


def row_statistics(frame: DataFrame) -> dict[int, SeqStatistics]:
    """Return the statistics of each shard; `frame` has the columns shard and seq."""
    told = frame.select("shard", "seq").mapInArrow(_look_at_part, _SCHEMA).toArrow().to_pylist()
    parts: dict[int, list[SeqStatistics]] = {}
    for row in cast("list[_Told]", told):
        pairs = row["examples"]
        seam = SeqStatistics(
            row["rows"],
            row["first"],
            row["last"],
            row["repeats"],
            row["strays"],
            row["missing"],
            row["gaps"],
            tuple(zip(pairs[::2], pairs[1::2], strict=True)),
        )
        parts.setdefault(row["shard"], []).append(seam)
    return {shard: merge_statistics(found) for shard, found in sorted(parts.items())}


class _Told(TypedDict):
    """Statistics of a shard as a row of a task's result."""

    shard: int
    rows: int
    first: int
    last: int
    repeats: int
    strays: int
    missing: int
    gaps: int
    examples: list[int]


def merge_statistics(parts: Iterable[SeqStatistics]) -> SeqStatistics:
    """Merge the statistics of at least one part."""
    first, *others = sorted(parts, key=lambda part: (part.first, part.last))
    for part in others:
        first = _joined(first, part)
    return first


def _joined(one: SeqStatistics, other: SeqStatistics) -> SeqStatistics:
    """Merge two parts, of which `other` does not begin before `one`."""
    gap = other.first - one.last - 1
    between = ((one.last + 1, other.first - 1),) if gap > 0 else ()
    return SeqStatistics(
        one.rows + other.rows,
        one.first,
        max(one.last, other.last),
        # Overlapping parts hold some seqs twice: a queue never returns such parts.
        one.repeats + other.repeats + (1 if gap == -1 else 0),
        one.strays + other.strays + (1 if gap < -1 else 0),
        one.missing + other.missing + max(gap, 0),
        one.gaps + other.gaps + len(between),
        (*one.examples, *between, *other.examples)[: limits.AUDIT_GAPS_SHOWN],
    )


def statistics_of(seqs: Numbers) -> SeqStatistics:
    """Return the statistics of at least one row, by their seqs in order of arrival."""
    steps = np.diff(seqs)
    holes = np.flatnonzero(steps > 1)
    examples = tuple(
        (int(seqs[at]) + 1, int(seqs[at + 1]) - 1) for at in holes[: limits.AUDIT_GAPS_SHOWN]
    )
    return SeqStatistics(
        len(seqs),
        int(seqs.min()),
        int(seqs.max()),
        int(np.count_nonzero(steps == 0)),
        int(np.count_nonzero(steps < 0)),
        int((steps[holes] - 1).sum()),
        len(holes),
        examples,
    )


def _runs(shards: Numbers) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows of one shard."""
    cuts = np.flatnonzero(np.diff(shards)) + 1
    edges = [0, *cuts.tolist(), len(shards)]
    yield from pairwise(edges)


def _look_at_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found: dict[int, tuple[SeqStatistics, int]] = {}
    """Statistics and latest seq of each shard."""
    for batch in batches:
        shards = np.asarray(batch.column(0)).astype(np.int64)
        seqs = np.asarray(batch.column(1)).astype(np.int64)
        for begin, end in _runs(shards) if len(shards) else ():
            shard, some = int(shards[begin]), seqs[begin:end]
            if shard not in found:
                found[shard] = (statistics_of(some), int(some[-1]))
                continue
            before, latest = found[shard]
            # The latest row is included again, to compare it with the next one.
            more = statistics_of(np.concatenate([[np.int64(latest)], some]))
            found[shard] = (_followed(before, more), int(some[-1]))
    yield _told(sorted((shard, seam) for shard, (seam, _) in found.items()))


def _followed(one: SeqStatistics, other: SeqStatistics) -> SeqStatistics:
    """Merge a part with the following one, which repeats the last row of the first."""
    return SeqStatistics(
        one.rows + other.rows - 1,
        min(one.first, other.first),
        max(one.last, other.last),
        one.repeats + other.repeats,
        one.strays + other.strays,
        one.missing + other.missing,
        one.gaps + other.gaps,
        (*one.examples, *other.examples)[: limits.AUDIT_GAPS_SHOWN],
    )


def _told(seams: Sequence[tuple[int, SeqStatistics]]) -> pa.RecordBatch:
    rows = [
        {
            **msgspec.structs.asdict(seam),
            "shard": shard,
            "examples": [end for pair in seam.examples for end in pair],
        }
        for shard, seam in seams
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)


_NOTHING = SeqStatistics(0, 0, 0)

ENDS = ("settled", "superseded", "expired", "dead_lettered", "dropped", "purged")
"""Counters of ended messages, by the way in which they ended."""


class ShardAudit(msgspec.Struct, frozen=True):
    """Result of the audit of one shard."""

    shard: int
    """Number of the shard in its queue, from 0."""
    counts: Mapping[str, int]
    rows: SeqStatistics
    upto: int
    """The last seq of the snapshot."""
    live: tuple[int, int]
    """Minimum and maximum number of live rows by the counters."""
    faults: tuple[str, ...]


class QueueAudit(msgspec.Struct, frozen=True):
    """Result of the audit of a queue."""

    space: str
    queue: str
    retention: str
    shards: tuple[ShardAudit, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """Descriptions of all faults."""
        return tuple(fault for shard in self.shards for fault in shard.faults)


def audit(site: JobContext, queue: sync.Queue) -> QueueAudit:
    """Compare the counters of a queue with its rows.

    Raises:
        Retry: the snapshot's pin was lost.
    """
    before, snapshot, after = _moment(queue)
    try:
        ticket = write_snapshot_token(with_retained(snapshot._twin))
        with site.asking("the audit", "queue"):
            frame = site.read(queue, view="changes", endingSnapshot=ticket, columns="shard,seq")
            found = row_statistics(frame)
        shards = tuple(
            audit_shard(shard, one, other, upto, found.get(shard, _NOTHING))
            for shard, (one, other, upto) in enumerate(
                zip(before, after, snapshot.boundaries, strict=True)
            )
        )
    finally:
        snapshot.unpin()
    return QueueAudit(queue.space, queue.name, queue.spec().retention, shards)


Counts = Mapping[str, int]


def _moment(
    queue: sync.Queue,
) -> tuple[Sequence[Counts], sync.Snapshot, Sequence[Counts]]:
    """Return a snapshot with the counters before and after it, equal if the queue was idle."""
    tries = limits.AUDIT_TRIES
    while True:
        before = queue.shard_stats()
        snapshot = queue.snapshot(seconds=limits.JOB_PIN_SECONDS).__enter__()
        try:
            after = queue.shard_stats()
        except BaseException:
            snapshot.unpin()
            raise
        tries -= 1
        if before == after or not tries:
            return before, snapshot, after
        snapshot.unpin()


def audit_shard(
    shard: int, before: Counts, after: Counts, upto: int, rows: SeqStatistics
) -> ShardAudit:
    """Audit a shard by its counters before and after a snapshot, and its rows.

    `upto` is the last seq of the snapshot.
    """
    ended = sum(before[name] for name in ENDS), sum(after[name] for name in ENDS)
    live = max(upto - ended[1], 0), upto - ended[0]
    faults: list[str] = []
    for counts in (before, after) if before != after else (before,):
        total = counts["live"] + sum(counts[name] for name in ENDS)
        if counts["published"] != total:
            faults.append(
                f"published is {counts['published']}, and live with all that ended is {total}"
            )
    if not before["published"] <= upto <= after["published"]:
        faults.append(f"the last seq is {upto}, and {after['published']} were published")
    if not live[0] <= rows.rows <= live[1]:
        said = str(live[0]) if live[0] == live[1] else f"between {live[0]} and {live[1]}"
        faults.append(f"rows are {rows.rows}, and {said} should be live")
    if rows.repeats:
        faults.append(f"rows with the seq of another one: {rows.repeats}")
    if rows.strays:
        faults.append(f"rows that are not in the order of seqs: {rows.strays}")
    if rows.last > upto:
        faults.append(f"a row has seq {rows.last}, after the last one, {upto}")
    if rows.rows and rows.first < 1:
        faults.append(f"a row has seq {rows.first}; they begin with 1")
    lost = count_missing(rows, upto) - ended[1]
    if lost > 0:
        faults.append(f"seqs without a row that no counter has ended: {lost}{_named(rows)}")
    return ShardAudit(
        shard, after, rows, upto, live, tuple(f"shard {shard}: {fault}" for fault in faults)
    )


def count_missing(rows: SeqStatistics, upto: int) -> int:
    """Return the number of seqs from 1 to the last one without a row."""
    if not rows.rows:
        return upto
    return (rows.first - 1) + rows.missing + max(upto - rows.last, 0)


def _named(rows: SeqStatistics) -> str:
    if not rows.examples:
        return ""
    shown = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in rows.examples)
    return f"; gaps at {shown}" + (" …" if rows.gaps > len(rows.examples) else "")
