"""`millrace lease`: take messages, and print what proves it."""

from __future__ import annotations

import click

from millrace.cli.kinds import DURATION
from millrace.cli.printing import Column
from millrace.cli.shell import Shell, find_queue
from millrace.cli.text import body_text, key_text, message_fields, moment
from millrace.cli.verb import verb


@verb(
    "lease",
    examples="""
        millrace lease mail
        millrace lease mail --count 2 --for 5m --json
        millrace lease mail --receipts | millrace settle mail -
    """,
)
@click.argument("queue")
@click.option("--count", default=1, show_default=True, metavar="N", help="Messages, at most.")
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    default=30,
    metavar="TIME",
    help="How long they are yours alone. [30s]",
)
@click.option(
    "--wait", type=DURATION, default=0, metavar="TIME", help="Wait so long for the first."
)
@click.option("--receipts", is_flag=True, help="Print the receipts alone, one on each line.")
async def lease(
    shell: Shell, queue: str, *, count: int, seconds: float, wait: float, receipts: bool
) -> None:
    """Lease messages of QUEUE, and print their receipts and bodies.

    Whoever has the receipt can settle, release or extend the message, from any process. If nobody
    does so in time, it is handed out again.
    """
    async with shell.open() as m:
        found = await find_queue(m, queue)
        leases = await found.lease(count, seconds=seconds, wait=wait)
        if receipts and not shell.out.is_json:
            for each in leases:
                shell.out.line("lease", {}, each.receipt)
            return
        rows = [
            (
                {
                    **message_fields(each),
                    "receipt": each.receipt,
                    "deliveries": each.deliveries,
                    "failures": each.failures,
                    "deadline_ms": each.deadline_ms,
                },
                [
                    each.receipt,
                    str(each.seq),
                    moment(each.deadline_ms),
                    key_text(each.key),
                    body_text(each.body),
                ],
            )
            for each in leases
        ]
    columns = [
        Column("RECEIPT"),
        Column("SEQ", is_number=True),
        Column("UNTIL"),
        Column("KEY"),
        Column("BODY", is_long=True),
    ]
    shell.out.table("lease", columns, rows, empty=f"nothing to lease in {queue}")
