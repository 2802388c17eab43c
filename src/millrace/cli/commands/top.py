"""`millrace top`: what the queues do, as they do it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from millrace.cli.kinds import DURATION
from millrace.cli.pipeline_top import look_at_pipelines, show_pipelines
from millrace.cli.printing import Column
from millrace.cli.shell import Shell, shown_name
from millrace.cli.stopping import Stop
from millrace.cli.verb import verb
from millrace.errors import NotFound

if TYPE_CHECKING:
    from millrace import Millrace, Queue

_CLEAR = "\x1b[H\x1b[2J"

_COLUMNS = [
    Column("QUEUE", is_long=True),
    Column("DEPTH", is_number=True),
    Column("IN FLIGHT", is_number=True),
    Column("OLDEST", is_number=True),
    Column("IN/S", is_number=True),
    Column("OUT/S", is_number=True),
    Column("DEAD", is_number=True),
]


class Line(NamedTuple):
    """A queue at a moment."""

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
@click.option("--every", type=DURATION, default=2, metavar="TIME", help="How often. [2s]")
@click.option("--times", type=click.IntRange(1), metavar="N", help="End after so many looks.")
@click.option("--space", metavar="NAME", help="Only the queues of this space.")
async def top(shell: Shell, *, every: float, times: int | None, space: str | None) -> None:
    """Show the queues again and again, the busiest first, until Ctrl-C.

    IN/S are messages published a second since the last look, OUT/S those that ended. A folder that
    a server has is asked through the server. Pipelines stand below, with what waits for each sink.
    """
    before: dict[str, Line] = {}
    async with Stop() as stop, shell.open() as m:
        look = 0
        while not stop.is_set:
            look += 1
            lines = [line async for line in _look(m, space)]
            _show(shell, lines, before, is_screen=times is None)
            show_pipelines(shell.out, await look_at_pipelines(m, space))
            before = {line.name: line for line in lines}
            if look == times:
                return
            await stop.unless(asyncio.sleep(every))


async def _look(m: Millrace, space: str | None) -> AsyncIterator[Line]:
    for one in [space] if space is not None else await m.spaces():
        for name in await m.queues(space=one):
            try:
                yield await _line(await m.find(name, space=one))
            except NotFound:
                # It was deleted meanwhile.
                continue


async def _line(queue: Queue) -> Line:
    counts = await queue.stats()
    rows = await queue.peek(1)
    age = max(0.0, time.time() - rows[0].time_ms / 1000) if rows else 0.0
    holders = await queue.holders()
    published, live = counts["published"], counts["live"]
    return Line(
        shown_name(queue),
        live,
        holders.in_flight,
        age,
        published,
        published - live,
        counts["dead_lettered"],
        time.monotonic(),
    )


def _show(shell: Shell, lines: Iterable[Line], before: dict[str, Line], *, is_screen: bool) -> None:
    rows: list[tuple[Line, float | None, float | None]] = []
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
        _COLUMNS,
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
