"""`millrace follow`: a queue's changes as lines, one consistent snapshot after another."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click

from millrace.cli.bounds import FOLLOW_SECONDS, WRITE_CHARACTERS
from millrace.cli.commands.cursor import existing
from millrace.cli.commands.pipeline import where_meant
from millrace.cli.kinds import PLACE
from millrace.cli.progress import Bar
from millrace.cli.shell import Shell, find_queue, split_name
from millrace.cli.stopping import Stop
from millrace.cli.text import body_text, headers_text, key_text, message_fields, moment
from millrace.cli.verb import verb
from millrace.cli.words import counted
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
    type=PLACE,
    default="beginning",
    show_default=True,
    help="beginning, end, the first seq, or a time (UTC); where a new cursor begins.",
)
@click.option("--name", help="A durable cursor: the next call goes on where this one ended.")
@click.option("--retain", is_flag=True, help="A new cursor is also shown what workers settle.")
@click.option("--once", is_flag=True, help="End when everything was read.")
@click.option("--into", metavar="SINK", help="Carry them there, exactly once: delta:/lake/x …")
@click.option(
    "--rows",
    type=click.IntRange(1, CARRY_ROWS_MAX),
    default=CARRY_ROWS_MAX,
    show_default=True,
    help="With --into: rows that are carried at once, at most.",
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

    A durable cursor is moved only after the lines of a snapshot were written. As long as this
    runs, the folder is in use, so that nobody else can publish to it: mostly one wants --once.

    With --into they are carried into a sink instead, which stores how far it is: another call goes
    on there, whatever has happened to this one. A folder is shared with others meanwhile.
    """
    if into is not None:
        if start != "beginning":
            raise click.UsageError("--from is not for --into, which goes on where the sink is")
        await _carry(shell, queue, into, name, rows, once=once)
        return
    if retain and name is None:
        raise click.UsageError("--retain needs a --name: only a durable cursor can be kept for")
    async with shell.open() as m, Stop() as stop:
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

    where = where_meant(shell)
    with Bar(f"{plain} into {kind}", total=None) as bar:
        async with Stop() as stop:
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
    shell.out.line("carried", fields, f"{counted(count, 'row')} of {queue} carried into {kind}")


@asynccontextmanager
async def _cursor(
    queue: Queue, name: str | None, start: str | int | datetime, *, retain: bool
) -> AsyncIterator[Cursor]:
    """The durable cursor, or one that is gone at the end."""
    if name is not None and not retain and name in await queue.cursors():
        yield await existing(queue, name)
        return
    if name is not None:
        yield await queue.cursor(name, start=start, retain=retain)
        return
    passing = await queue.cursor(f"follow-{secrets.token_hex(8)}", start=start)
    try:
        yield passing
    finally:
        await passing.delete()


async def _write(shell: Shell, snapshot: Snapshot, stop: Stop) -> int | None:
    """Write the rows; returns up to where if it was stopped, None at the end."""
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
    parts = [f"{row.seq!s:>6}", moment(row.time_ms), key_text(row.key)]
    if row.headers:
        parts.append(headers_text(row.headers))
    return "  ".join([*parts, body_text(row.body)])
