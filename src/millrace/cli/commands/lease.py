"""`millrace lease`: take messages, and print what proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millrace.cli.kinds import DURATION
from millrace.cli.shell import Shell, find_queue
from millrace.cli.text import body_text, headers_text, key_text, message_fields, moment
from millrace.cli.verb import verb

if TYPE_CHECKING:
    from millrace import Lease


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
@click.option(
    "--attempt", metavar="ID", help="The same ID again gets the same messages, for a while."
)
@click.option("--receipts", is_flag=True, help="Print the receipts alone, one on each line.")
async def lease(
    shell: Shell,
    queue: str,
    *,
    count: int,
    seconds: float,
    wait: float,
    attempt: str | None,
    receipts: bool,
) -> None:
    """Lease messages of QUEUE, and print their receipts and bodies.

    Whoever has the receipt can settle, release or extend the message, from any process. If nobody
    does so in time, it is handed out again.
    """
    async with shell.open() as m:
        found = await find_queue(m, queue)
        leases = await found.lease(count, seconds=seconds, wait=wait, attempt=attempt)
        if receipts and not shell.out.is_json:
            for each in leases:
                shell.out.line("lease", {}, each.receipt)
            return
        for number, each in enumerate(leases):
            if number and not shell.out.is_json:
                shell.out.line("", {}, "")
            _show(shell, each)
    if not leases:
        shell.out.note(f"nothing to lease in {queue}")


def _show(shell: Shell, lease: Lease) -> None:
    """One below the other: a receipt must not be cut."""
    fields = {
        **message_fields(lease),
        "receipt": lease.receipt,
        "deliveries": lease.deliveries,
        "failures": lease.failures,
        "deadline_ms": lease.deadline_ms,
    }
    texts = {
        "receipt": lease.receipt,
        "seq": str(lease.seq),
        "until": moment(lease.deadline_ms),
        "handed out": f"{lease.deliveries} times, {lease.failures} failures",
        "key": key_text(lease.key),
        "headers": headers_text(lease.headers),
        "body": body_text(lease.body),
    }
    shell.out.listing("lease", fields, texts)
