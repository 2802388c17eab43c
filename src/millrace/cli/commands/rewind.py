"""`millrace rewind`: have workers work a log again."""

from __future__ import annotations

from datetime import datetime

import click

from millrace.cli.kinds import PLACE
from millrace.cli.shell import Shell, find_queue, shown_name
from millrace.cli.verb import verb


@verb(
    "rewind",
    examples="""
        millrace queue configure mail --retention log && millrace rewind mail --to 2
    """,
)
@click.argument("queue")
@click.option(
    "--to",
    type=PLACE,
    required=True,
    help="beginning, end, the first seq to be handed out, or a time (UTC).",
)
async def rewind(shell: Shell, queue: str, *, to: str | int | datetime) -> None:
    """Hand the messages of QUEUE out again, from a place on; its retention must be log.

    Leases that are held become stale, and every message counts its deliveries anew.
    """
    async with shell.open() as m:
        found = await find_queue(m, queue)
        first = await found.rewind(to)
    fields = {"queue": shown_name(found), "seq": first}
    shell.out.line("rewound", fields, f"workers go on with seq {first}")
