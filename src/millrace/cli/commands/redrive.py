"""`millrace redrive`: moves dead letters back; `millrace rewind`: redelivers a log."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from millrace.cli.parameter_types import HEADER, START
from millrace.cli.printing import ProgressBar
from millrace.cli.shell import Shell, display_name, find_queue, split_name
from millrace.cli.shutdown import ShutdownSignal
from millrace.cli.verb import verb

if TYPE_CHECKING:
    from millrace import Message, Redrive, RedriveStats, Row


DEAD = "millrace-dead-"
"""Prefix of the headers that describe a dead letter."""

SOURCES = (f"{DEAD}queue", "millrace-queue")
"""Headers with the source queue, in dead letters of queues and of pipelines."""

Pairs = tuple[tuple[str, bytes], ...]


@verb(
    "redrive",
    examples="""
        millrace redrive mail --dry-run
        millrace redrive mail --from orders --reason failures
        millrace redrive mail --to orders --where source=shop --set source=again --rate 100
    """,
)
@click.argument("queue")
@click.option("--to", metavar="QUEUE", help="Target queue, instead of the queue of origin.")
@click.option("--from", "source", metavar="QUEUE", help="Move only letters from this queue.")
@click.option(
    "--reason",
    type=click.Choice(["failures", "deliveries", "discarded", "expired", "length"]),
    help="Move only letters with this cause.",
)
@click.option(
    "--where",
    "wanted",
    type=HEADER,
    multiple=True,
    help="Move only letters with this header; repeatable.",
)
@click.option("--set", "put", type=HEADER, multiple=True, help="Set this header; repeatable.")
@click.option("--unset", multiple=True, metavar="NAME", help="Remove this header; repeatable.")
@click.option("--rate", type=float, metavar="N", help="Move up to N messages per second.")
@click.option("--dry-run", is_flag=True, help="Count the letters without moving them.")
async def redrive(
    shell: Shell,
    queue: str,
    *,
    to: str | None,
    source: str | None,
    reason: str | None,
    wanted: Pairs,
    put: Pairs,
    unset: tuple[str, ...],
    rate: float | None,
    dry_run: bool,
) -> None:
    """Move the dead letters in QUEUE back to the queues that they came from, each exactly once.

    Letters that do not match stay unchanged. The command may be interrupted at any time: moved
    letters stay moved, and the same call moves the rest.
    """
    told = list(wanted)
    place = None if source is None else "/".join(split_name(source)).encode()
    if reason is not None:
        told.append((DEAD + "reason", reason.encode()))

    def where(row: Row) -> bool:
        if place is not None and not any((name, place) in row.headers for name in SOURCES):
            return False
        return all(pair in row.headers for pair in told)

    def edit(message: Message) -> Message:
        return _with_headers(message, put, unset)

    async with shell.open() as m, ShutdownSignal() as stop:
        found = await find_queue(m, queue)
        if to is not None:
            await find_queue(m, to)
        driving = found.redrive(
            to=None if to is None else "/".join(split_name(to)),
            where=where,
            edit=edit,
            rate=rate,
            dry_run=dry_run,
        )
        await _drive(driving, stop)
        await driving.close()
    stats = driving.stats
    fields = {
        "queue": display_name(found),
        "total": stats.total,
        "moved": stats.moved,
        "kept": stats.kept,
        "aimless": stats.aimless,
        "reason": stats.reason,
        "dry_run": dry_run,
    }
    text = f"moved {stats.moved:,} of {stats.total:,} messages; {stats.kept:,} stay"
    if dry_run:
        text = f"would move {stats.total:,} messages; {stats.kept:,} would stay"
    shell.out.line("redriven", fields, text)
    if stats.reason:
        shell.out.note(f"nothing {'would be' if dry_run else 'was'} moved: {stats.reason}")


async def _drive(driving: Redrive, stop: ShutdownSignal) -> None:
    """Run the redrive to its end, or until shutdown."""
    stats = await stop.unless(_step(driving))
    if stats is None:
        return
    with ProgressBar("moving", total=stats.total) as bar:
        while not stop.is_set:
            before = stats.moved
            stats = await stop.unless(_step(driving))
            if stats is None:
                return
            bar.advance(stats.moved - before)


async def _step(driving: Redrive) -> RedriveStats | None:
    """Return the statistics after the next step; None at the end."""
    return await anext(driving, None)


def _with_headers(message: Message, put: Pairs, unset: tuple[str, ...]) -> Message:
    from millrace import Message

    gone = {*unset, *(name for name, _ in put)}
    headers = message.headers
    pairs = list(headers.items() if hasattr(headers, "items") else headers)
    kept = [(name, value) for name, value in pairs if name not in gone]
    return Message(message.body, message.key, [*kept, *put])


# --- `millrace rewind`: redelivers the messages of a log -----------------------------------------


@verb(
    "rewind",
    examples="""
        millrace queue configure mail --retention log && millrace rewind mail --to 2
    """,
)
@click.argument("queue")
@click.option(
    "--to",
    type=START,
    required=True,
    help="Beginning, end, the first seq to deliver, or a time (UTC).",
)
async def rewind(shell: Shell, queue: str, *, to: str | int | datetime) -> None:
    """Deliver the messages of QUEUE to workers again, from a position on; needs retention log.

    Current leases become stale, and delivery counts start anew.
    """
    async with shell.open() as m:
        found = await find_queue(m, queue)
        first = await found.rewind(to)
    fields = {"queue": display_name(found), "seq": first}
    shell.out.line("rewound", fields, f"workers continue with seq {first}")
