"""`millrace restore`: a folder from a backup, at its end or at an earlier point."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from millrace.cli.kinds import MOMENT
from millrace.cli.progress import Bar
from millrace.cli.shell import Shell, not_files
from millrace.cli.target import is_address
from millrace.cli.text import moment
from millrace.cli.verb import verb


@verb(
    "restore",
    examples="""
        millrace backup millrace-data backups && millrace restore backups restored
        millrace backup millrace-data b && millrace restore b/000001 restored --json
    """,
    has_data=False,
)
@click.argument("backup", type=click.Path(path_type=Path))
@click.argument("into", type=click.Path(path_type=Path))
@click.option("--index", type=int, metavar="N", help="As it was after entry N of the commit group.")
@click.option("--time", type=MOMENT, metavar="TIME", help="As it was at this time (UTC).")
async def restore(
    shell: Shell, backup: Path, into: Path, *, index: int | None, time: datetime | None
) -> None:
    """Make the new folder INTO of BACKUP: a folder of backups, or one of them.

    Without a point, it is as new as the backup, and its archive, can make it. The folder has a
    history of its own: receipts and cursors of the source from beyond the point are not valid.
    """
    import millrace

    for path in (backup, into):
        if path is not None and is_address(str(path)):
            raise not_files(path, "a backup is restored from files, into files")
    with Bar("restoring", total=None) as bar:
        made = await millrace.restore(backup, into, index=index, time=time, progress=bar.reach)
    fields = {
        "path": str(made.path),
        "backup": str(made.backup),
        "index": made.index,
        "time": made.time.isoformat(),
    }
    as_of = moment(round(made.time.timestamp() * 1000))
    text = f"made {made.path} of {made.backup}, as of index {made.index} ({as_of})"
    shell.out.line("restored", fields, text)
