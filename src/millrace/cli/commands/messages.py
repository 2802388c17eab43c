"""`millrace peek`, `get` and `explain`: read messages without leasing them."""

from __future__ import annotations

import click

from millrace.cli.exit_errors import ExitError
from millrace.cli.formatting import (
    Value,
    body_text,
    escaped,
    headers_text,
    key_text,
    message_fields,
    time_text,
)
from millrace.cli.parameter_types import SEQ
from millrace.cli.printing import TableColumn
from millrace.cli.shell import Shell, display_name, find_queue
from millrace.cli.verb import verb

COLUMNS = [
    TableColumn("SEQ", is_number=True),
    TableColumn("PUBLISHED"),
    TableColumn("KEY", is_long=True),
    TableColumn("HEADERS", is_long=True),
    TableColumn("BODY", is_long=True),
]


@verb(
    "peek",
    examples="""
        millrace peek orders
        millrace peek orders --count 100 --after 3 --json
    """,
)
@click.argument("queue")
@click.option(
    "--count", default=10, show_default=True, metavar="N", help="Maximum number of messages."
)
@click.option("--after", type=SEQ, default=0, metavar="SEQ", help="Start after this seq.")
async def peek(shell: Shell, queue: str, *, count: int, after: int) -> None:
    """Show the first messages of QUEUE, leased or not, without leasing or changing them.

    Tables show the beginning of a body; --json and `millrace get` show it in full.
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
                    time_text(row.time_ms),
                    key_text(row.key),
                    headers_text(row.headers),
                    body_text(row.body),
                ],
            )
            for row in rows
        ],
        empty=f"no messages in {queue}" + (f" after seq {after}" if after else ""),
    )


@verb(
    "get",
    examples="""
        millrace get orders 1
        millrace get orders 1 --body > order.json
    """,
)
@click.argument("queue")
@click.argument("seq", type=SEQ)
@click.option("--body", "is_body", is_flag=True, help="Write only the body, unchanged.")
async def get(shell: Shell, queue: str, *, seq: int, is_body: bool) -> None:
    """Show the message SEQ of QUEUE in full."""
    async with shell.open() as m:
        found = await find_queue(m, queue)
        row = await found.get(seq)
    if row is None:
        hint = f"`millrace explain {queue} {seq}` shows why; `millrace peek {queue}` lists messages"
        raise ExitError(f"there is no message {seq} in {queue}", hint, code="not_found")
    if is_body:
        shell.out.raw(row.body or b"")
        return
    texts = {
        "seq": str(row.seq),
        "published": time_text(row.time_ms),
        "key": key_text(row.key),
        "headers": headers_text(row.headers),
        "body": "(deleted)" if row.body is None else escaped(row.body),
    }
    shell.out.listing("message", message_fields(row), texts)


@verb("explain", examples="millrace explain orders 2")
@click.argument("queue")
@click.argument("seq", type=SEQ)
async def explain(shell: Shell, queue: str, *, seq: int) -> None:
    """Show the delivery state of the message SEQ of QUEUE: ready, leased, settled, replaced …"""
    async with shell.open() as m:
        found = await find_queue(m, queue)
        answer = await found.explain(seq)
    fields: dict[str, Value] = {
        "queue": display_name(found),
        "seq": answer.seq,
        "state": answer.state,
        "lease": answer.lease,
        "until_ms": answer.until_ms,
        "deliveries": answer.deliveries,
        "failures": answer.failures,
        "superseded_by": answer.superseded_by,
        "session": answer.session,
        "not_before_ms": answer.not_before_ms,
    }
    counts = f"delivered {answer.deliveries} times, {answer.failures} failures"
    until = "" if answer.until_ms is None else f" until {time_text(answer.until_ms)}"
    if answer.not_before_ms is not None:
        until = f", behind many others, until {time_text(answer.not_before_ms)} at least"
    who = f"by lease call {answer.lease}"
    if answer.session is not None:
        who = f"by session {answer.session}"
    dead = "is no longer there: settled, replaced, expired, purged, or a dead letter"
    if answer.superseded_by is not None:
        dead = f"was replaced by message {answer.superseded_by}, of the same key"
    sentences: dict[str, str] = {
        "ready": "is ready: it was never delivered",
        "leased": f"is leased{until} {who}; {counts}",
        "returned": f"came back and is ready again; {counts}",
        "delayed": f"is delayed{until}; {counts}",
        "blocked": f"waits for others{until}, {who}" if answer.lease else "waits for others",
        "limited": f"waits{until} for the rate of its queue or group",
        "doomed": f"is on its way to the dead letters; {counts}",
        "settled": "is settled",
        "delete": "is a delete of its key, which is not delivered to workers",
        "dead": dead,
        "unknown": "is unknown: it was never published",
    }
    sentence = sentences.get(answer.state, f"is {answer.state}; {counts}")
    shell.out.line("explanation", fields, f"message {answer.seq} {sentence}")
