"""`millrace rewind`: redelivers the messages of a log."""

from __future__ import annotations

from datetime import datetime

import click

from millrace.cli.parameter_types import START
from millrace.cli.shell import Shell, display_name, find_queue
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
