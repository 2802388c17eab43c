"""`millrace repair`: open a quarantined queue again."""

from __future__ import annotations

from pathlib import Path

import click

from millrace.cli.ending import FATAL
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
    help="First write what can be read to this folder, and the damaged bytes as they are.",
)
@click.option("--drop", is_flag=True, help="End the rows that cannot be read.")
async def repair(shell: Shell, queue: str, *, topic: bool, export: Path | None, drop: bool) -> int:
    """Read all rows of a quarantined QUEUE, and open it again if that is possible.

    Without --drop nothing is ended: the queue is opened only where every row can be read again, as
    after a damaged sealed file was replaced by the one of a backup. Exit code 4: it is still
    quarantined. The folder DIR of a server is one of its machine.
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
    state = "it is open again" if found.is_open else "it stays quarantined; --drop ends them"
    text = (
        f"{queue}: {found.readable:,} rows can be read, {found.unreadable:,} cannot, "
        f"{found.dropped:,} were dropped: {state}"
    )
    shell.out.line("repaired", fields, text)
    return 0 if found.is_open else FATAL
