"""`millrace repair`: reopens a quarantined queue."""

from __future__ import annotations

from pathlib import Path

import click

from millrace.cli.exit_errors import FATAL
from millrace.cli.shell import Shell, split_name
from millrace.cli.verb import verb


@verb(
    "repair",
    examples="""
        millrace repair orders --export saved --drop
        millrace repair orders --drop
    """,
)
@click.argument("queue")
@click.option("--topic", is_flag=True, help="QUEUE is a topic.")
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="First export readable messages and the raw damaged bytes to this folder.",
)
@click.option("--drop", is_flag=True, help="Delete messages that cannot be read.")
async def repair(shell: Shell, queue: str, *, topic: bool, export: Path | None, drop: bool) -> int:
    """Read all messages of a quarantined QUEUE, and reopen it if possible.

    Without --drop nothing is deleted: the queue is reopened only if every message is readable
    again, as after a damaged sealed file was replaced from a backup. Exit code 4: it is still
    quarantined. For a server, DIR is a folder on its machine.
    """
    space, name = split_name(queue)
    async with shell.open() as m:
        found = await m.repair(name, space=space, export=export, drop=drop, topic=topic)
    fields = {
        "queue": queue,
        "readable": found.readable,
        "unreadable": found.unreadable,
        "dropped": found.dropped,
        "is_open": found.is_open,
    }
    state = "it is open again" if found.is_open else "it stays quarantined; --drop deletes them"
    text = (
        f"{queue}: {found.readable:,} rows can be read, {found.unreadable:,} cannot, "
        f"{found.dropped:,} were dropped: {state}"
    )
    shell.out.line("repaired", fields, text)
    return 0 if found.is_open else FATAL
