"""`millrace peek`: look at messages without leasing them."""

from __future__ import annotations

import click

from millrace.cli.kinds import SEQ
from millrace.cli.printing import Column
from millrace.cli.shell import Shell, find_queue
from millrace.cli.text import body_text, headers_text, key_text, message_fields, moment
from millrace.cli.verb import verb

COLUMNS = [
    Column("SEQ", is_number=True),
    Column("PUBLISHED"),
    Column("KEY", is_long=True),
    Column("HEADERS", is_long=True),
    Column("BODY", is_long=True),
]


@verb(
    "peek",
    examples="""
        millrace peek orders
        millrace peek orders --count 100 --after 3 --json
    """,
)
@click.argument("queue")
@click.option("--count", default=10, show_default=True, metavar="N", help="Messages, at most.")
@click.option("--after", type=SEQ, default=0, metavar="SEQ", help="Only those after this seq.")
async def peek(shell: Shell, queue: str, *, count: int, after: int) -> None:
    """Look at the first messages of QUEUE, leased or not. Nothing is leased or changed.

    Tables show the beginning of a body; --json and `millrace get` show all of it.
    """
    async with shell.open() as m:
        found = await find_queue(m, queue)
        rows = await found.peek(count, after=after)
    shell.out.table(
        "message",
        COLUMNS,
        [
            (
                message_fields(row),
                [
                    str(row.seq),
                    moment(row.time_ms),
                    key_text(row.key),
                    headers_text(row.headers),
                    body_text(row.body),
                ],
            )
            for row in rows
        ],
        empty=f"no messages in {queue}" + (f" after seq {after}" if after else ""),
    )
