"""`millrace work`: run a command for each message."""

from __future__ import annotations

import shutil
import time

import click

from millrace.cli.crew import Crew, Result
from millrace.cli.ending import REFUSED
from millrace.cli.kinds import DURATION
from millrace.cli.shell import Shell, find_queue
from millrace.cli.stopping import Stop
from millrace.cli.target import Server
from millrace.cli.verb import verb


@verb(
    "work",
    examples="""
        millrace work mail --once -- cat
        millrace work orders --once --concurrency 4 -- sh -c 'echo "$MILLRACE_KEY"; wc -c'
    """,
)
@click.argument("queue")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Commands that run at a time.",
)
@click.option("--once", is_flag=True, help="End when nothing is left; try each message once.")
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    default=30,
    metavar="TIME",
    help="How long a lease lasts; it is extended by itself while the command runs. [30s]",
)
@click.option(
    "--pause",
    type=DURATION,
    default=1,
    metavar="TIME",
    help="How long a message that failed is held back before it is given back. [1s]",
)
async def work(
    shell: Shell,
    queue: str,
    *,
    command: tuple[str, ...],
    concurrency: int,
    once: bool,
    seconds: float,
    pause: float,
) -> int:
    """Run COMMAND for each message of QUEUE, with its body as standard input.

    A command that ends with 0 settles its message; otherwise the message is released as failed.
    What follows -- is the command's own, options too.

    \b
    The command's environment has
      MILLRACE_QUEUE, MILLRACE_SEQ, MILLRACE_TIME_MS, MILLRACE_KEY,
      MILLRACE_HEADER_<NAME> for each header, MILLRACE_HEADERS with all of them as JSON,
      MILLRACE_DELIVERIES, MILLRACE_FAILURES, MILLRACE_RECEIPT.

    SIGINT or SIGTERM ends it in order: running commands are waited for, nothing new is begun. A
    second one ends the commands, too, and gives their messages back. A command whose message was
    replaced by a newer revision is ended. With --json, what commands print goes to the error
    stream. As long as this runs, a folder is in use, so that nobody else can publish to it, unless
    it is served. A server that stops for a while is waited for.
    """
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r}")
    began = time.monotonic()

    def tell(result: Result) -> None:
        fields = {"seq": result.seq, "exit_code": result.exit_code, "seconds": result.seconds}
        if shell.out.is_json:
            shell.out.line(result.how, fields, "")
        elif result.how != "settled":
            shell.out.note(f"{result.how}: message {result.seq}, exit code {result.exit_code}")

    async with shell.open() as m, Stop() as stop:
        found = await find_queue(m, queue)
        crew = Crew(
            found,
            command,
            stop,
            tell,
            pause=pause,
            is_json=shell.out.is_json,
            waits=isinstance(shell.target, Server),
        )
        await crew.run(concurrency=concurrency, seconds=seconds, once=once)
    counts = crew.counts
    fields = {**counts, "seconds": round(time.monotonic() - began, 3)}
    text = ", ".join(f"{count:,} {how}" for how, count in counts.items() if count) or "no messages"
    if shell.out.is_json:
        shell.out.line("end", fields, "")
    shell.out.note(text)
    return REFUSED if counts["failed"] else 0
