"""The traffic of a queue, as one page: computed by Spark, of one moment, without bodies.

Rule 1: what is told is told of messages that are still there. What workers have settled is gone,
but for the counters.
Rule 2: the driver gets sums, and the hottest few: never rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from millrace import limits, sync
from millrace.batch_jobs.plot import (
    Bar,
    bars,
    page,
    short,
    table,
)
from millrace.batch_jobs.site import Site
from millrace.core.group_cells import GROUP_HEADER
from millrace.pipeline.feed import Stretch

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
"""Seconds that a bar may stand for; beyond them, whole days."""


class Step(NamedTuple):
    """Some time."""

    begin: int
    """Seconds since 1970."""
    messages: int
    bytes: int


class Hot(NamedTuple):
    """A key or a group, and what came of it."""

    name: str
    messages: int
    bytes: int


class Report(msgspec.Struct, frozen=True):
    """The traffic of a queue."""

    queue: str
    upto: int
    messages: int
    deletes: int
    bytes: int
    largest: int
    first: int
    """When the first came, in seconds since 1970; 0: there is none."""
    last: int
    step: int
    """Seconds of a step."""
    steps: tuple[Step, ...]
    sizes: tuple[tuple[int, int], ...]
    """Messages by size: so many have less than so many bytes, and at least half of that."""
    latencies: tuple[tuple[float, float], ...]
    """Seconds from the time that a header tells until it was published, by percentile."""
    keys: tuple[Hot, ...]
    groups: tuple[Hot, ...]
    counts: dict[str, int]


PERCENTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


def report(site: Site, queue: sync.Queue, *, sent: str = "") -> Report:
    """Look at a queue.

    `sent` names a header that tells when a message was made: seconds or milliseconds since 1970, or
    a time as ISO 8601 writes it.
    """
    counts = queue.stats()
    with queue.snapshot(seconds=limits.JOB_PIN_SECONDS) as snapshot:
        stretch = Stretch(queue, snapshot._twin)
        ticket = stretch.ticket(stretch.whole())
        with site.asking("the report", "sent"):
            rows = _rows(site.read(queue, view="changes", endingSnapshot=ticket), sent).cache()
            try:
                return _made(rows, queue, stretch.upto.number, counts)
            finally:
                rows.unpersist()


def _rows(frame: DataFrame, sent: str) -> DataFrame:
    """What a report needs of messages: little of each."""
    made = _header(sent).cast("string")
    number = made.try_cast("double")
    # What is beyond the year 5138 in seconds was told in milliseconds.
    told = F.when(number > 1e11, number / 1000).when(number.isNotNull(), number)
    told = F.coalesce(told, F.try_to_timestamp(made).cast("double"))
    group = F.coalesce(_header(GROUP_HEADER), F.col("key"))
    return frame.select(
        "key",
        group.alias("group"),
        F.col("timestamp").cast("double").alias("at"),
        F.coalesce(F.length("value"), F.lit(0)).cast("bigint").alias("size"),
        F.col("op"),
        (F.col("timestamp").cast("double") - told if sent else F.lit(None).cast("double")).alias(
            "waited"
        ),
    )


def _header(name: str) -> Column:
    return F.try_element_at(F.filter("headers", lambda pair: pair["key"] == F.lit(name)), F.lit(1))[
        "value"
    ]


def _made(rows: DataFrame, queue: sync.Queue, upto: int, counts: dict[str, int]) -> Report:
    [whole] = rows.selectExpr(
        "count(*) n",
        "coalesce(sum(if(op = 'delete', 1, 0)), 0) deletes",
        "coalesce(sum(size), 0) size",
        "coalesce(max(size), 0) largest",
        "cast(floor(coalesce(min(at), 0)) AS bigint) first",
        "cast(floor(coalesce(max(at), 0)) AS bigint) last",
        f"percentile_approx(waited, array({', '.join(map(str, PERCENTILES))}), 10000) waited",
    ).collect()
    step = step_of(whole["last"] - whole["first"] + 1)
    steps = rows.groupBy(F.floor(F.col("at") / step).alias("n")).agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes")
    )
    sizes = rows.groupBy(F.ceil(F.log2(F.col("size") + 1)).cast("int").alias("n")).count()
    return Report(
        queue.name if queue.space == "default" else f"{queue.space}/{queue.name}",
        upto,
        whole["n"],
        whole["deletes"],
        whole["size"],
        whole["largest"],
        whole["first"],
        whole["last"],
        step,
        tuple(
            Step(row["n"] * step, row["messages"], row["bytes"])
            for row in steps.orderBy("n").collect()
        ),
        tuple((2 ** row["n"], row["count"]) for row in sizes.orderBy("n").collect()),
        tuple(zip(PERCENTILES, whole["waited"], strict=True)) if whole["waited"] else (),
        _hottest(rows, "key"),
        _hottest(rows, "group"),
        counts,
    )


def _hottest(rows: DataFrame, column: str) -> tuple[Hot, ...]:
    found = (
        rows.where(F.col(column).isNotNull())
        .groupBy(column)
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .orderBy(F.desc("messages"), column)
        .limit(limits.REPORT_KEYS)
    )
    return tuple(
        Hot(bytes(row[column]).decode(errors="backslashreplace"), row["messages"], row["bytes"])
        for row in found.collect()
    )


def step_of(seconds: int) -> int:
    """How long a bar stands for, so that all of them fit."""
    least = max(seconds // limits.REPORT_BARS, 1)
    days = -(-least // 86400) * 86400
    return next((step for step in _STEPS if step >= least), days)


def filled(steps: Sequence[Step], step: int) -> list[Step]:
    """The steps with those between them in which nothing came."""
    if not steps:
        return []
    known = {one.begin: one for one in steps}
    begins_ = range(steps[0].begin, steps[-1].begin + 1, step)
    return [known.get(begin, Step(begin, 0, 0)) for begin in begins_]


def to_html(found: Report) -> str:
    """The report as a page."""
    steps = filled(found.steps, found.step)
    span = max(found.last - found.first + 1, 1)
    facts = [
        ("messages", f"{found.messages:,}"),
        ("deletes", f"{found.deletes:,}"),
        ("bytes of bodies", short(found.bytes)),
        ("messages a second", short(found.messages / span)),
        ("the busiest second, about", short(_busiest(found))),
        ("the largest body", short(found.largest)),
    ]
    parts = [
        bars(
            "Messages over time",
            [
                Bar(
                    _moment(one.begin, found.step),
                    one.messages / found.step,
                    f"{_moment(one.begin, 0)}: {one.messages:,} messages, {one.bytes:,} bytes",
                )
                for one in steps
            ],
            f"messages a second, in steps of {found.step:,} s",
        ),
        bars(
            "Bytes over time",
            [
                Bar(
                    _moment(one.begin, found.step),
                    one.bytes / found.step,
                    f"{_moment(one.begin, 0)}: {one.bytes:,} bytes",
                )
                for one in steps
            ],
            "bytes of bodies a second",
        ),
        bars(
            "Sizes",
            [
                Bar(f"< {short(size)}", count, f"{count:,} bodies below {size:,} bytes")
                for size, count in found.sizes
            ],
            "messages by the size of their bodies, in powers of two",
        ),
    ]
    if found.latencies:
        rows = [[f"{share:.1%}", f"{seconds:,.3f}"] for share, seconds in found.latencies]
        parts.append(table("Seconds from made to published", ["of messages", "within"], rows))
    for title, name, hot in (
        ("Hottest keys", "key", found.keys),
        ("Hottest groups", "group", found.groups),
    ):
        if hot:
            rows = [[one.name[:80], f"{one.messages:,}", f"{one.bytes:,}"] for one in hot]
            parts.append(table(title, [name, "messages", "bytes"], rows))
    rows = [[name.replace("_", " "), f"{count:,}"] for name, count in found.counts.items()]
    parts.append(table("Counters, since the queue was made", ["", "messages"], rows))
    told = (
        f"{_moment(found.first, 0)} to {_moment(found.last, 0)} (UTC), up to seq {found.upto:,}: "
        "messages that are still in the queue"
        if found.messages
        else "no message is in the queue"
    )
    return page(f"Traffic of {found.queue}", told, facts, parts)


def _busiest(found: Report) -> float:
    return max((one.messages / found.step for one in found.steps), default=0)


def _moment(seconds: int, step: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    if step >= 86400:
        return moment.strftime("%Y-%m-%d")
    return moment.strftime("%H:%M:%S" if step else "%Y-%m-%d %H:%M:%S")
