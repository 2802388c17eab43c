"""Rows looked at one by one, however many: each task tells of its own part, and the driver looks at
the seams between parts.

Rule 1: a task tells as much of ten rows as of a billion: sums, its first and last seq, and the
first few gaps.
Rule 2: rows come in the order of seqs, as a queue gives them; one that does not is a finding. Of
rows that lie in no order, such as those of files, `in_order` makes an order first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypedDict, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from millrace import limits

Numbers = npt.NDArray[np.int64]


class Seam(msgspec.Struct, frozen=True):
    """What the rows of a shard, or of a part of it, look like."""

    rows: int
    first: int
    """The lowest seq; so is `last` the highest."""
    last: int
    repeats: int = 0
    """Rows whose seq an earlier one had."""
    strays: int = 0
    """Rows whose seq is lower than that of the row before."""
    missing: int = 0
    """Seqs between the first and the last that no row has."""
    gaps: int = 0
    """In so many places."""
    examples: tuple[tuple[int, int], ...] = ()
    """The first of them: the first and the last seq that is missing."""


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
    """Rows of files in the order of seqs, each shard in parts that follow each other."""
    return (
        frame.select("shard", "seq")
        .repartitionByRange("shard", "seq")
        .sortWithinPartitions("shard", "seq")
    )


def look(frame: DataFrame) -> dict[int, Seam]:
    """What the rows of each shard look like; `frame` has the columns shard and seq."""
    told = frame.select("shard", "seq").mapInArrow(_look_at_part, _SCHEMA).toArrow().to_pylist()
    parts: dict[int, list[Seam]] = {}
    for row in cast("list[_Told]", told):
        pairs = row["examples"]
        seam = Seam(
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
    return {shard: join(found) for shard, found in sorted(parts.items())}


class _Told(TypedDict):
    """What a task tells of a shard."""

    shard: int
    rows: int
    first: int
    last: int
    repeats: int
    strays: int
    missing: int
    gaps: int
    examples: list[int]


def join(parts: Iterable[Seam]) -> Seam:
    """What parts look like together; there is at least one."""
    first, *others = sorted(parts, key=lambda part: (part.first, part.last))
    for part in others:
        first = _joined(first, part)
    return first


def _joined(one: Seam, other: Seam) -> Seam:
    """Two parts, of which the other does not begin before the one."""
    gap = other.first - one.last - 1
    between = ((one.last + 1, other.first - 1),) if gap > 0 else ()
    return Seam(
        one.rows + other.rows,
        one.first,
        max(one.last, other.last),
        # Parts that overlap hold some seqs twice: no queue gives such parts.
        one.repeats + other.repeats + (1 if gap == -1 else 0),
        one.strays + other.strays + (1 if gap < -1 else 0),
        one.missing + other.missing + max(gap, 0),
        one.gaps + other.gaps + len(between),
        (*one.examples, *between, *other.examples)[: limits.AUDIT_GAPS_SHOWN],
    )


def look_at(seqs: Numbers) -> Seam:
    """What some rows look like, at least one, by their seqs in the order in which they came."""
    steps = np.diff(seqs)
    holes = np.flatnonzero(steps > 1)
    examples = tuple(
        (int(seqs[at]) + 1, int(seqs[at + 1]) - 1) for at in holes[: limits.AUDIT_GAPS_SHOWN]
    )
    return Seam(
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
    """Where rows of one shard begin and end."""
    cuts = np.flatnonzero(np.diff(shards)) + 1
    edges = [0, *cuts.tolist(), len(shards)]
    yield from pairwise(edges)


def _look_at_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found: dict[int, tuple[Seam, int]] = {}
    """Of each shard, and its latest seq."""
    for batch in batches:
        shards = np.asarray(batch.column(0)).astype(np.int64)
        seqs = np.asarray(batch.column(1)).astype(np.int64)
        for begin, end in _runs(shards) if len(shards) else ():
            shard, some = int(shards[begin]), seqs[begin:end]
            if shard not in found:
                found[shard] = (look_at(some), int(some[-1]))
                continue
            before, latest = found[shard]
            # The latest row is looked at again, together with those that follow it.
            more = look_at(np.concatenate([[np.int64(latest)], some]))
            found[shard] = (_followed(before, more), int(some[-1]))
    yield _told(sorted((shard, seam) for shard, (seam, _) in found.items()))


def _followed(one: Seam, other: Seam) -> Seam:
    """A part, and what follows it, which begins with the last row of the part."""
    return Seam(
        one.rows + other.rows - 1,
        min(one.first, other.first),
        max(one.last, other.last),
        one.repeats + other.repeats,
        one.strays + other.strays,
        one.missing + other.missing,
        one.gaps + other.gaps,
        (*one.examples, *other.examples)[: limits.AUDIT_GAPS_SHOWN],
    )


def _told(seams: Sequence[tuple[int, Seam]]) -> pa.RecordBatch:
    rows = [
        {
            **msgspec.structs.asdict(seam),
            "shard": shard,
            "examples": [end for pair in seam.examples for end in pair],
        }
        for shard, seam in seams
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)
