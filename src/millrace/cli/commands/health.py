"""`millrace health`: the health of a folder's data; `millrace repair`: quarantined queues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from millrace.cli.exit_errors import FATAL, REFUSED, RETRY
from millrace.cli.formatting import Value, size_text, time_text
from millrace.cli.shell import Shell, split_name
from millrace.cli.verb import verb

if TYPE_CHECKING:
    from millrace import Health


@verb(
    "health",
    examples="""
        millrace health
        millrace health --json
        millrace health || echo "have a look"
    """,
)
async def health(shell: Shell) -> int:
    """Check whether publishing is refused, data is damaged, or the log archive lags.

    Exit codes: 0 healthy, 1 the archive has a gap or cannot be written, 3 publishing is refused
    for lack of disk space or memory (disk_low, memory_high), 4 data is damaged. A program that has
    the folder open can call `await m.health()`.
    """
    async with shell.open() as m:
        found = await m.health()
    archive = "none" if found.archive is None else str(found.archive)
    scrubbed = None if found.scrubbed is None else round(found.scrubbed.timestamp() * 1000)
    fields: dict[str, Value] = {
        "refuses": found.refuses,
        "disk_free_bytes": found.disk_free_bytes,
        "scrubbed_ms": scrubbed,
        "damaged": list(found.damaged),
        "archive": None if found.archive is None else archive,
        "archive_behind_bytes": found.archive_behind_bytes,
        "archive_gap": found.archive_gap,
        "archive_error": found.archive_error,
    }
    texts = {
        "publishing": f"refused: {found.refuses}" if found.refuses else "accepted",
        "free disk space": size_text(found.disk_free_bytes),
        "last full scrub": "never" if scrubbed is None else time_text(scrubbed),
        "damaged": ", ".join(found.damaged) or "nothing",
        "archive": archive,
    }
    if found.archive is not None:
        texts["archive behind"] = size_text(found.archive_behind_bytes)
        gap = "yes: create a new backup with --follow" if found.archive_gap else "none"
        texts["archive gap"] = gap
        texts["archive error"] = found.archive_error or "none"
    shell.out.listing("health", fields, texts)
    return exit_code_of(found)


def exit_code_of(found: Health) -> int:
    """Return the exit code of the most severe problem."""
    if found.damaged:
        return FATAL
    if found.refuses:
        return RETRY
    return REFUSED if found.archive_gap or found.archive_error else 0


# --- `millrace repair`: reopens a quarantined queue ----------------------------------------------


@verb(
    "repair",
    examples="""
        millrace repair orders --export saved --drop
        millrace repair orders --drop
    """,
)
@click.argument("queue")
@click.option("--topic", is_flag=True, help="QUEUE is a topic.")
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="First export readable messages and the raw damaged bytes to this folder.",
)
@click.option("--drop", is_flag=True, help="Delete messages that cannot be read.")
async def repair(shell: Shell, queue: str, *, topic: bool, export: Path | None, drop: bool) -> int:
    """Read all messages of a quarantined QUEUE, and reopen it if possible.

    Without --drop nothing is deleted: the queue is reopened only if every message is readable
    again, as after a damaged sealed file was replaced from a backup. Exit code 4: it is still
    quarantined. For a server, DIR is a folder on its machine.
    """
    space, name = split_name(queue)
    async with shell.open() as m:
        found = await m.repair(name, space=space, export=export, drop=drop, topic=topic)
    fields = {
        "queue": queue,
        "readable": found.readable,
        "unreadable": found.unreadable,
        "dropped": found.dropped,
        "is_open": found.is_open,
    }
    state = "it is open again" if found.is_open else "it stays quarantined; --drop deletes them"
    text = (
        f"{queue}: {found.readable:,} rows can be read, {found.unreadable:,} cannot, "
        f"{found.dropped:,} were dropped: {state}"
    )
    shell.out.line("repaired", fields, text)
    return 0 if found.is_open else FATAL
