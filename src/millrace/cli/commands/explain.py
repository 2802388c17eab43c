"""`millrace explain`: where a message stands, and why it is not to be had."""

from __future__ import annotations

import click

from millrace.cli.kinds import SEQ
from millrace.cli.shell import Shell, find_queue, shown_name
from millrace.cli.show import Value
from millrace.cli.text import moment
from millrace.cli.verb import verb


@verb("explain", examples="millrace explain orders 2")
@click.argument("queue")
@click.argument("seq", type=SEQ)
async def explain(shell: Shell, queue: str, *, seq: int) -> None:
    """Say where the message SEQ of QUEUE stands: ready, leased until when, settled, replaced."""
    async with shell.open() as m:
        found = await find_queue(m, queue)
        answer = await found.explain(seq)
    fields: dict[str, Value] = {
        "queue": shown_name(found),
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
    counts = f"handed out {answer.deliveries} times, {answer.failures} failures"
    until = "" if answer.until_ms is None else f" until {moment(answer.until_ms)}"
    if answer.not_before_ms is not None:
        until = f", behind many others, until {moment(answer.not_before_ms)} at least"
    who = f"by lease call {answer.lease}"
    if answer.session is not None:
        who = f"by session {answer.session}"
    dead = "is no longer there: settled, replaced, expired, purged, or a dead letter"
    if answer.superseded_by is not None:
        dead = f"was replaced by message {answer.superseded_by}, of the same key"
    sentences: dict[str, str] = {
        "ready": "is ready: no worker has had it yet",
        "leased": f"is leased{until} {who}; {counts}",
        "returned": f"came back and is ready again; {counts}",
        "delayed": f"is delayed{until}; {counts}",
        "blocked": f"waits for others{until}, {who}" if answer.lease else "waits for others",
        "limited": f"waits{until} for the rate of its queue or group",
        "doomed": f"is on its way to the dead letters; {counts}",
        "settled": "is settled: a worker has done it",
        "delete": "is a delete: it says that its key is gone, and is not handed out",
        "dead": dead,
        "unknown": "is unknown: it was never published",
    }
    sentence = sentences.get(answer.state, f"is {answer.state}; {counts}")
    shell.out.line("explanation", fields, f"message {answer.seq} {sentence}")
