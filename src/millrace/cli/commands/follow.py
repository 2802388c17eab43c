"""`millrace follow`: prints or carries the messages of a queue, snapshot by snapshot."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click

from millrace.cli.bounds import FOLLOW_SECONDS, WRITE_CHARACTERS
from millrace.cli.commands.cursor import find_cursor
from millrace.cli.formatting import (
    body_text,
    headers_text,
    key_text,
    message_fields,
    plural,
    time_text,
)
from millrace.cli.parameter_types import START
from millrace.cli.printing import ProgressBar
from millrace.cli.shell import Shell, find_queue, split_name
from millrace.cli.shutdown import ShutdownSignal
from millrace.cli.target import pipeline_location
from millrace.cli.verb import verb
from millrace.limits import CARRY_ROWS_MAX

if TYPE_CHECKING:
    from millrace import Cursor, Queue, Row, Snapshot
    from millrace.pipeline import Progress


@verb(
    "follow",
    examples="""
        millrace follow orders --once
        millrace follow orders --once --from 3 --json
        millrace follow orders --once --name report
        millrace follow orders --once --into console:
    """,
)
@click.argument("queue")
@click.option(
    "--from",
    "start",
    type=START,
    default="beginning",
    show_default=True,
    help="Start of a new cursor: beginning, end, the first seq, or a time (UTC).",
)
@click.option("--name", help="Durable cursor: the next call resumes where this one ended.")
@click.option(
    "--retain",
    is_flag=True,
    help="Create the cursor as retaining: it also gets messages that workers have settled.",
)
@click.option("--once", is_flag=True, help="Exit when all messages are read.")
@click.option(
    "--into", metavar="SINK", help="Write to this sink, exactly once, such as delta:/lake/x."
)
@click.option(
    "--rows",
    type=click.IntRange(1, CARRY_ROWS_MAX),
    default=CARRY_ROWS_MAX,
    show_default=True,
    help="With --into: maximum rows of one commit.",
)
async def follow(
    shell: Shell,
    queue: str,
    *,
    start: str | int | datetime,
    name: str | None,
    retain: bool,
    once: bool,
    into: str | None,
    rows: int,
) -> None:
    """Print the messages of QUEUE in order, then wait for more until interrupted.

    A durable cursor is moved only after the lines of a snapshot are written. While this runs, the
    folder is in use and no other process can publish to it, unless it is served; use --once to read
    what is there and exit.

    With --into, messages are written to a sink, which stores its position with the data: another
    call resumes there, even after a crash. The folder is then shared with other processes.
    """
    if into is not None:
        if start != "beginning":
            raise click.UsageError(
                "--from cannot be used with --into, which resumes at the sink's position"
            )
        await _carry(shell, queue, into, name, rows, once=once)
        return
    if retain and name is None:
        raise click.UsageError("--retain needs a --name: only durable cursors can retain messages")
    async with shell.open() as m, ShutdownSignal() as stop:
        found = await find_queue(m, queue)
        async with _cursor(found, name, start, retain=retain) as cursor:
            while not stop.is_set:
                snapshot = await stop.unless(cursor.next(wait=0 if once else FOLLOW_SECONDS))
                if snapshot is not None:
                    await snapshot.commit(await _write(shell, snapshot, stop))
                elif once:
                    break


async def _carry(
    shell: Shell, queue: str, into: str, name: str | None, rows: int, *, once: bool
) -> None:
    from millrace.pipeline import Carried, carry
    from millrace.sinks.kinds import kind_of, parse_sink, place_of

    space, plain = split_name(queue)
    kind, sink = kind_of(into), parse_sink(into)
    carried = Carried(
        name=name or f"{plain}-into-{kind}",
        cursor=name or f"{plain}-into-{kind}-{place_of(into)}",
        space=space,
        queue=plain,
        sink=kind,
        rows=rows,
    )
    count = 0

    def tell(progress: Progress) -> None:
        nonlocal count
        count = sum(one.rows for one in progress.sinks)
        bar.reach(count, count + progress.lag)

    where = pipeline_location(shell.target)
    with ProgressBar(f"{plain} into {kind}", total=None) as bar:
        async with ShutdownSignal() as stop:
            await stop.thread(
                lambda ending: carry(
                    carried,
                    where,
                    sink,
                    once=once,
                    stop=ending,
                    tell=tell,
                    say=shell.out.aside,
                )
            )
    fields = {"queue": queue, "sink": kind, "cursor": carried.cursor, "rows": count}
    shell.out.line("carried", fields, f"{plural(count, 'row')} of {queue} written to {kind}")


@asynccontextmanager
async def _cursor(
    queue: Queue, name: str | None, start: str | int | datetime, *, retain: bool
) -> AsyncIterator[Cursor]:
    """Yield the durable cursor, or a temporary one that is deleted at the end."""
    if name is not None and not retain and name in await queue.cursors():
        yield await find_cursor(queue, name)
        return
    if name is not None:
        yield await queue.cursor(name, start=start, retain=retain)
        return
    passing = await queue.cursor(f"follow-{secrets.token_hex(8)}", start=start)
    try:
        yield passing
    finally:
        await passing.delete()


async def _write(shell: Shell, snapshot: Snapshot, stop: ShutdownSignal) -> int | None:
    """Print the rows of a snapshot; return the last seq printed on shutdown, else None."""
    lines: list[str] = []
    size, last = 0, snapshot.after
    async for row in snapshot.rows():
        lines.append(shell.out.line_of("message", message_fields(row), _line(row)))
        size, last = size + len(lines[-1]), row.seq
        if size >= WRITE_CHARACTERS:
            click.echo("\n".join(lines))
            lines, size = [], 0
            if stop.is_set:
                return last
    if lines:
        click.echo("\n".join(lines))
    return None


def _line(row: Row) -> str:
    parts = [f"{row.seq!s:>6}", time_text(row.time_ms), key_text(row.key)]
    if row.headers:
        parts.append(headers_text(row.headers))
    return "  ".join([*parts, body_text(row.body)])
