"""`millrace health`: the health of a folder's data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.cli.exit_errors import FATAL, REFUSED, RETRY
from millrace.cli.formatting import Value, size_text, time_text
from millrace.cli.shell import Shell
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
