"""`millrace get`: one message, whole."""

from __future__ import annotations

import click

from millrace.cli.ending import Ended
from millrace.cli.kinds import SEQ
from millrace.cli.shell import Shell, find_queue
from millrace.cli.show import escaped
from millrace.cli.text import headers_text, key_text, message_fields, moment
from millrace.cli.verb import verb


@verb(
    "get",
    examples="""
        millrace get orders 1
        millrace get orders 1 --body > order.json
    """,
)
@click.argument("queue")
@click.argument("seq", type=SEQ)
@click.option("--body", "is_body", is_flag=True, help="Write the body's bytes, and nothing else.")
async def get(shell: Shell, queue: str, *, seq: int, is_body: bool) -> None:
    """Show the message SEQ of QUEUE, whole."""
    async with shell.open() as m:
        found = await find_queue(m, queue)
        row = await found.get(seq)
    if row is None:
        hint = f"`millrace explain {queue} {seq}` says why; `millrace peek {queue}` lists some"
        raise Ended(f"there is no message {seq} in {queue}", hint, code="not_found")
    if is_body:
        shell.out.raw(row.body or b"")
        return
    texts = {
        "seq": str(row.seq),
        "published": moment(row.time_ms),
        "key": key_text(row.key),
        "headers": headers_text(row.headers),
        "body": "(deleted)" if row.body is None else escaped(row.body),
    }
    shell.out.listing("message", message_fields(row), texts)
