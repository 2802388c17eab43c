"""`millrace work`: runs a command for each message."""

from __future__ import annotations

import shutil
import time

import click

from millrace.cli.command_pool import CommandPool, CommandResult
from millrace.cli.exit_errors import REFUSED
from millrace.cli.parameter_types import DURATION
from millrace.cli.shell import Shell, find_queue
from millrace.cli.shutdown import ShutdownSignal
from millrace.cli.target import ServerTarget
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
    help="Number of concurrent commands.",
)
@click.option("--once", is_flag=True, help="Exit when the queue is empty; try each message once.")
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    default=30,
    metavar="TIME",
    help="Lease duration; leases are extended while their commands run. [30s]",
)
@click.option(
    "--pause",
    type=DURATION,
    default=1,
    metavar="TIME",
    help="Hold a failed message for this time before releasing it. [1s]",
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

    If the command exits with 0, the message is settled; otherwise it is released as failed.
    Everything after -- belongs to the command.

    \b
    The command's environment has
      MILLRACE_QUEUE, MILLRACE_SEQ, MILLRACE_TIME_MS, MILLRACE_KEY,
      MILLRACE_HEADER_<NAME> for each header, MILLRACE_HEADERS with all of them as JSON,
      MILLRACE_DELIVERIES, MILLRACE_FAILURES, MILLRACE_RECEIPT.

    SIGINT or SIGTERM shuts down gracefully: running commands finish, and no new ones start. A
    second signal terminates the commands and releases their messages. A command is terminated if
    its message was replaced by a newer revision. With --json, the output of commands goes to the
    error stream. While this runs, the folder is in use and no other process can publish to it,
    unless it is served. If a server is unreachable, this waits for it.
    """
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r}")
    began = time.monotonic()

    def tell(result: CommandResult) -> None:
        fields = {"seq": result.seq, "exit_code": result.exit_code, "seconds": result.seconds}
        if shell.out.is_json:
            shell.out.line(result.how, fields, "")
        elif result.how != "settled":
            shell.out.note(f"{result.how}: message {result.seq}, exit code {result.exit_code}")

    async with shell.open() as m, ShutdownSignal() as stop:
        found = await find_queue(m, queue)
        crew = CommandPool(
            found,
            command,
            stop,
            tell,
            pause=pause,
            is_json=shell.out.is_json,
            waits=isinstance(shell.target, ServerTarget),
        )
        await crew.run(concurrency=concurrency, seconds=seconds, once=once)
    counts = crew.counts
    fields = {**counts, "seconds": round(time.monotonic() - began, 3)}
    text = ", ".join(f"{count:,} {how}" for how, count in counts.items() if count) or "no messages"
    if shell.out.is_json:
        shell.out.line("end", fields, "")
    shell.out.note(text)
    return REFUSED if counts["failed"] else 0
