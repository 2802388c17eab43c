"""`millrace top`: live figures of queues and pipelines."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from millrace.cli.parameter_types import DURATION
from millrace.cli.printing import Printer, TableColumn
from millrace.cli.shell import Shell, display_name
from millrace.cli.shutdown import ShutdownSignal
from millrace.cli.verb import verb
from millrace.errors import NotFound

if TYPE_CHECKING:
    from millrace import Millrace, Queue
    from millrace.sinks.boundary import Boundary


_CLEAR = "\x1b[H\x1b[2J"

_QUEUE_COLUMNS = [
    TableColumn("QUEUE", is_long=True),
    TableColumn("DEPTH", is_number=True),
    TableColumn("IN FLIGHT", is_number=True),
    TableColumn("OLDEST", is_number=True),
    TableColumn("IN/S", is_number=True),
    TableColumn("OUT/S", is_number=True),
    TableColumn("DEAD", is_number=True),
]


class QueueFigures(NamedTuple):
    """Figures of a queue at one time."""

    name: str
    depth: int
    in_flight: int
    oldest_seconds: float
    published: int
    ended: int
    dead_lettered: int
    at: float


@verb(
    "top",
    examples="""
        millrace top --times 1
        millrace top --times 2 --every 1s --json
    """,
)
@click.option("--every", type=DURATION, default=2, metavar="TIME", help="Refresh interval. [2s]")
@click.option("--times", type=click.IntRange(1), metavar="N", help="Exit after N refreshes.")
@click.option("--space", metavar="NAME", help="Show only the queues of this space.")
async def top(shell: Shell, *, every: float, times: int | None, space: str | None) -> None:
    """Show live figures of all queues, busiest first, until Ctrl-C.

    IN/S and OUT/S are the messages published and ended per second since the last refresh.
    Pipelines are listed below the queues, with the lag of each sink.
    """
    before: dict[str, QueueFigures] = {}
    async with ShutdownSignal() as stop, shell.open() as m:
        look = 0
        while not stop.is_set:
            look += 1
            lines = [line async for line in _look(m, space)]
            _show(shell, lines, before, is_screen=times is None)
            show_pipelines(shell.out, await read_pipelines(m, space))
            before = {line.name: line for line in lines}
            if look == times:
                return
            await stop.unless(asyncio.sleep(every))


async def _look(m: Millrace, space: str | None) -> AsyncIterator[QueueFigures]:
    for one in [space] if space is not None else await m.spaces():
        for name in await m.queues(space=one):
            try:
                yield await _line(await m.find(name, space=one))
            except NotFound:
                # Deleted in the meantime.
                continue


async def _line(queue: Queue) -> QueueFigures:
    counts = await queue.stats()
    rows = await queue.peek(1)
    age = max(0.0, time.time() - rows[0].time_ms / 1000) if rows else 0.0
    holders = await queue.holders()
    published, live = counts["published"], counts["live"]
    return QueueFigures(
        display_name(queue),
        live,
        holders.in_flight,
        age,
        published,
        published - live,
        counts["dead_lettered"],
        time.monotonic(),
    )


def _show(
    shell: Shell, lines: Iterable[QueueFigures], before: dict[str, QueueFigures], *, is_screen: bool
) -> None:
    rows: list[tuple[QueueFigures, float | None, float | None]] = []
    for line in lines:
        old = before.get(line.name)
        passed = line.at - old.at if old is not None else 0
        if old is None or not passed:
            rows.append((line, None, None))
        else:
            came, went = line.published - old.published, line.ended - old.ended
            rows.append((line, came / passed, went / passed))
    rows.sort(key=lambda row: (-((row[1] or 0) + (row[2] or 0)), -row[0].depth, row[0].name))
    if is_screen and not shell.out.is_json and sys.stdout.isatty():
        click.echo(_CLEAR, nl=False)
    shell.out.table(
        "queue",
        _QUEUE_COLUMNS,
        [
            (
                {
                    "queue": line.name,
                    "depth": line.depth,
                    "in_flight": line.in_flight,
                    "oldest_seconds": round(line.oldest_seconds, 3),
                    "published_per_second": None if came is None else round(came, 3),
                    "ended_per_second": None if went is None else round(went, 3),
                    "dead_letters": line.dead_lettered,
                },
                (
                    line.name,
                    f"{line.depth:,}",
                    f"{line.in_flight:,}",
                    _age(line.oldest_seconds) if line.depth else "",
                    "" if came is None else f"{came:,.0f}",
                    "" if went is None else f"{went:,.0f}",
                    f"{line.dead_lettered:,}",
                ),
            )
            for line, came, went in rows
        ],
        empty="there are no queues",
    )


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


_SPACE, _QUEUE = "millrace", "pipelines"

_PIPELINE_COLUMNS = [
    TableColumn("PIPELINE", is_long=True),
    TableColumn("QUEUE", is_long=True),
    TableColumn("SINK", is_long=True),
    TableColumn("STATE"),
    TableColumn("TOLD", is_number=True),
    TableColumn("LAG", is_number=True),
]


class PipelineFigures(NamedTuple):
    """Figures of a sink of a pipeline at one time."""

    pipeline: str
    queue: str
    sink: str
    state: str
    told_seconds: float
    """Age of the last status record of a run, in seconds."""
    lag: int | None
    """Lag in rows; None if the queue was deleted or recreated."""


async def read_pipelines(m: Millrace, space: str | None) -> list[PipelineFigures]:
    """Return all sinks of pipelines that read queues of this space, or of any space."""
    try:
        book = await m.find(_QUEUE, space=_SPACE)
    except NotFound:
        return []
    async with book.snapshot() as snapshot:
        bodies = [row.body async for row in snapshot.rows() if row.body is not None]
    # Importing it is slow.
    from millrace.pipeline.record import read_record

    records = [record for record in map(read_record, bodies) if record is not None]
    found: list[PipelineFigures] = []
    for record in sorted(records, key=lambda one: one.pipeline):
        if space not in (None, record.space):
            continue
        name = f"{record.space}/{record.queue}".removeprefix("default/")
        ends = await _ends(m, record.space, record.queue)
        told = max(0.0, time.time() - record.told_ms / 1000)
        for sink in record.sinks:
            lag = _lag(sink.boundary, ends)
            found.append(PipelineFigures(record.pipeline, name, sink.name, record.state, told, lag))
    return found


async def _ends(m: Millrace, space: str, name: str) -> dict[int, int]:
    try:
        queue = await m.find(name, space=space)
    except NotFound:
        return {}
    async with queue.snapshot() as snapshot:
        return dict(zip(map(int, queue.shards.ids), snapshot.boundaries, strict=True))


def _lag(boundary: Boundary | None, ends: dict[int, int]) -> int | None:
    if not ends:
        return None
    if boundary is None:
        return sum(ends.values())
    for place in boundary.places:
        if place.shards == tuple(ends):
            return sum(ends.values()) - sum(place.seqs)
    return None


def show_pipelines(out: Printer, lines: list[PipelineFigures]) -> None:
    """Print a table of pipelines, if there are any."""
    if lines and not out.is_json:
        out.note("")
    if lines:
        out.table(
            "pipeline",
            _PIPELINE_COLUMNS,
            [
                (
                    {
                        "pipeline": line.pipeline,
                        "queue": line.queue,
                        "sink": line.sink,
                        "state": line.state,
                        "told_seconds": round(line.told_seconds, 3),
                        "lag": line.lag,
                    },
                    (
                        line.pipeline,
                        line.queue,
                        line.sink,
                        line.state,
                        f"{line.told_seconds:.0f}s",
                        "?" if line.lag is None else f"{line.lag:,}",
                    ),
                )
                for line in lines
            ],
            empty="",
        )
