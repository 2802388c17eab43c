"""Report: the traffic of a queue as one HTML page, computed by Spark from a snapshot.

Rule 1: figures cover messages that are still in the queue. Messages that workers have settled are
in the counters alone. No bodies are read.
Rule 2: the driver gets sums and the few hottest keys, never rows.
Rule 3: text from messages is escaped before it stands in the page, which has no scripts and loads
no other file.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from millrace import limits, sync
from millrace.batch_jobs.job_context import JobContext
from millrace.core.model import GROUP_HEADER
from millrace.pipeline.source import Stretch

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 220, 64, 28, 10

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --pale: #667085; --line: #d8dde6;
  --ground: #ffffff; --bar: #2f6fdd; --card: #f6f8fb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --pale: #98a2b3; --line: #333b49;
  --ground: #12161d; --bar: #6ea3ff; --card: #1a202a; } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { color: var(--pale); margin: .3rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.facts div { background: var(--card); border-radius: .5rem; padding: .6rem 1rem; }
.facts b { display: block; font-size: 1.25rem; }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
th { color: var(--pale); font-weight: 500; border-bottom: 1px solid var(--line); }
svg { width: 100%; height: auto; } svg text { fill: var(--pale); font: 11px system-ui, sans-serif; }
svg .bar { fill: var(--bar); } svg .grid { stroke: var(--line); }
"""


class ChartBar(msgspec.Struct, frozen=True):
    """A bar of a chart."""

    label: str
    height: float
    text: str
    """Tooltip of the bar."""


def bar_chart(title: str, plotted: Sequence[ChartBar], unit: str) -> str:
    """Return a bar chart as SVG; `unit` describes the heights."""
    most = round_axis(max((bar.height for bar in plotted), default=0))
    step = (_WIDTH - _LEFT) / max(len(plotted), 1)
    room = _HEIGHT - _BOTTOM - _TOP
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for part in range(5):
        at = _HEIGHT - _BOTTOM - room * part / 4
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">'
            f"{short_number(most * part / 4)}</text>"
        )
    every = max(-(-len(plotted) // 6), 1)
    for at, bar in enumerate(plotted):
        tall = room * bar.height / most if most else 0
        x, width = _LEFT + at * step, max(step - 1, 0.5)
        parts.append(
            f'<rect class="bar" x="{x:.2f}" y="{_HEIGHT - _BOTTOM - tall:.2f}" '
            f'width="{width:.2f}" height="{tall:.2f}"><title>{escape(bar.text)}</title></rect>'
        )
        if at % every == 0:
            parts.append(f'<text x="{x:.2f}" y="{_HEIGHT - 10}">{escape(bar.label)}</text>')
    parts.append("</svg>")
    return f"<h2>{escape(title)}</h2><p>{escape(unit)}</p>{''.join(parts)}"


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML; all columns but the first are numbers."""
    kind = ["", *[' class="number"'] * (len(heads) - 1)]
    head = "".join(f"<th{k}>{escape(name)}</th>" for k, name in zip(kind, heads, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{escape(text)}</td>" for k, text in zip(kind, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def page(title: str, told: str, facts: Sequence[tuple[str, str]], parts: Sequence[str]) -> str:
    """Return a complete HTML page."""
    cards = "".join(f"<div><b>{escape(text)}</b>{escape(name)}</div>" for name, text in facts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(told)}</p>"
        f'<div class="facts">{cards}</div>{"".join(parts)}</body></html>\n'
    )


def round_axis(most: float) -> float:
    """Return the end of an axis: the next 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return 1
    power = 1.0
    while power * 10 <= most:
        power *= 10
    while power > most:
        power /= 10
    return next(power * step for step in (1, 2, 5, 10) if power * step >= most)


def short_number(number: float) -> str:
    """Return a number in few characters, with an SI prefix."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
"""Possible widths of a bar in seconds; above them, whole days."""


class TrafficStep(NamedTuple):
    """Traffic within one time step."""

    begin: int
    """Seconds since 1970."""
    messages: int
    bytes: int


class HotKey(NamedTuple):
    """A hot key or group with its traffic."""

    name: str
    messages: int
    bytes: int


class TrafficReport(msgspec.Struct, frozen=True):
    """The traffic of a queue."""

    queue: str
    upto: int
    messages: int
    deletes: int
    bytes: int
    largest: int
    first: int
    """Time of the first message in seconds since 1970; 0 if there is none."""
    last: int
    step: int
    """Length of a time step in seconds."""
    steps: tuple[TrafficStep, ...]
    sizes: tuple[tuple[int, int], ...]
    """Histogram of sizes: (limit, count) of bodies below limit bytes and of at least half of it."""
    latencies: tuple[tuple[float, float], ...]
    """Seconds from the time in the `sent` header to publication, by percentile."""
    keys: tuple[HotKey, ...]
    groups: tuple[HotKey, ...]
    counts: dict[str, int]


PERCENTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


def report(site: JobContext, queue: sync.Queue, *, sent: str = "") -> TrafficReport:
    """Compute the traffic report of a queue.

    `sent` is a header with the time at which a message was made: seconds or milliseconds since
    1970, or an ISO 8601 time.
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
    """Return the columns that the report needs, without bodies."""
    made = _header(sent).cast("string")
    number = made.try_cast("double")
    # Values beyond the year 5138 in seconds are milliseconds.
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


def _made(rows: DataFrame, queue: sync.Queue, upto: int, counts: dict[str, int]) -> TrafficReport:
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
    return TrafficReport(
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
            TrafficStep(row["n"] * step, row["messages"], row["bytes"])
            for row in steps.orderBy("n").collect()
        ),
        tuple((2 ** row["n"], row["count"]) for row in sizes.orderBy("n").collect()),
        tuple(zip(PERCENTILES, whole["waited"], strict=True)) if whole["waited"] else (),
        _hottest(rows, "key"),
        _hottest(rows, "group"),
        counts,
    )


def _hottest(rows: DataFrame, column: str) -> tuple[HotKey, ...]:
    found = (
        rows.where(F.col(column).isNotNull())
        .groupBy(column)
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .orderBy(F.desc("messages"), column)
        .limit(limits.REPORT_KEYS)
    )
    return tuple(
        HotKey(bytes(row[column]).decode(errors="backslashreplace"), row["messages"], row["bytes"])
        for row in found.collect()
    )


def step_of(seconds: int) -> int:
    """Return the length of a time step in seconds, so that the number of bars is bounded."""
    least = max(seconds // limits.REPORT_BARS, 1)
    days = -(-least // 86400) * 86400
    return next((step for step in _STEPS if step >= least), days)


def filled(steps: Sequence[TrafficStep], step: int) -> list[TrafficStep]:
    """Return the steps with empty ones in between."""
    if not steps:
        return []
    known = {one.begin: one for one in steps}
    begins_ = range(steps[0].begin, steps[-1].begin + 1, step)
    return [known.get(begin, TrafficStep(begin, 0, 0)) for begin in begins_]


def to_html(found: TrafficReport) -> str:
    """Return the report as an HTML page."""
    steps = filled(found.steps, found.step)
    span = max(found.last - found.first + 1, 1)
    facts = [
        ("messages", f"{found.messages:,}"),
        ("deletes", f"{found.deletes:,}"),
        ("bytes of bodies", short_number(found.bytes)),
        ("messages a second", short_number(found.messages / span)),
        ("the busiest second, about", short_number(_busiest(found))),
        ("the largest body", short_number(found.largest)),
    ]
    parts = [
        bar_chart(
            "Messages over time",
            [
                ChartBar(
                    _moment(one.begin, found.step),
                    one.messages / found.step,
                    f"{_moment(one.begin, 0)}: {one.messages:,} messages, {one.bytes:,} bytes",
                )
                for one in steps
            ],
            f"messages a second, in steps of {found.step:,} s",
        ),
        bar_chart(
            "Bytes over time",
            [
                ChartBar(
                    _moment(one.begin, found.step),
                    one.bytes / found.step,
                    f"{_moment(one.begin, 0)}: {one.bytes:,} bytes",
                )
                for one in steps
            ],
            "bytes of bodies a second",
        ),
        bar_chart(
            "Sizes",
            [
                ChartBar(f"< {short_number(size)}", count, f"{count:,} bodies below {size:,} bytes")
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


def _busiest(found: TrafficReport) -> float:
    return max((one.messages / found.step for one in found.steps), default=0)


def _moment(seconds: int, step: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    if step >= 86400:
        return moment.strftime("%Y-%m-%d")
    return moment.strftime("%H:%M:%S" if step else "%Y-%m-%d %H:%M:%S")
