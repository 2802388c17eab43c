"""`millrace verify`: is a backup whole, and does it hold what its source does?"""

from __future__ import annotations

from pathlib import Path

import click

from millrace.cli.progress import Bar
from millrace.cli.shell import Shell, not_files
from millrace.cli.target import is_address
from millrace.cli.verb import verb


@verb(
    "verify",
    examples="""
        millrace backup millrace-data backups && millrace verify backups
        millrace backup millrace-data b && millrace verify b/000001 --against millrace-data
    """,
    has_data=False,
)
@click.argument("backup", type=click.Path(path_type=Path))
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Compare it with the folder that it was made of, which must not be open.",
)
async def verify(shell: Shell, backup: Path, *, against: Path | None) -> int:
    """Read everything of BACKUP, and see that it opens; nothing is changed.

    Exit code 1: it holds something else than FOLDER.
    """
    import millrace

    for path in (backup, against):
        if path is not None and is_address(str(path)):
            raise not_files(path, "a backup is verified by its files")
    with Bar("reading", total=None) as bar:
        found = await millrace.verify(backup, against=against, progress=bar.reach)
    for difference in found.differences:
        shell.out.line("difference", {"what": difference}, difference)
    fields = {
        "path": str(found.path),
        "index": found.index,
        "shards": found.shards,
        "rows": found.rows,
        "differences": len(found.differences),
    }
    result = "no damage"
    if against is not None:
        result = f"{len(found.differences)} differences" if found.differences else "the same"
    text = f"read {found.path} as of index {found.index}: {found.rows:,} rows, {result}"
    shell.out.line("verified", fields, text)
    return 1 if found.differences else 0
