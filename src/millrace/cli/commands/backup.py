"""`millrace backup`, `restore` and `verify`: backups of a folder, and the archive of its log."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import click

from millrace.cli.formatting import size_text, time_text
from millrace.cli.parameter_types import TIME
from millrace.cli.printing import ProgressBar
from millrace.cli.shell import Shell, folder_required
from millrace.cli.target import TargetOptions, choose_target, is_address
from millrace.cli.verb import verb


@verb(
    "backup",
    examples="""
        millrace backup millrace-data backups
        millrace backup millrace-data backups --follow
        millrace backup millrace-data --unfollow
        millrace context add here millrace-data && millrace backup --context here backups
    """,
    has_data=False,
    has_access=True,
)
@click.argument("folder", metavar="PATH|URL", required=False)
@click.argument("into", type=click.Path(path_type=Path), required=False)
@click.option("--follow", is_flag=True, help="Archive the log continuously in INTO from now on.")
@click.option("--unfollow", is_flag=True, help="Stop archiving the log; no backup is made.")
async def backup(
    shell: Shell,
    folder: str | None,
    *,
    into: Path | None,
    follow: bool,
    unfollow: bool,
    context: str | None,
    token_file: Path | None,
    certificates: Path | None,
) -> None:
    """Create a backup of a folder or a server in the folder INTO.

    Backups are incremental: files that earlier backups in INTO have are shared. If a program has
    the folder open, it must serve or share it, or make backups itself, with `await m.backup(...)`.
    With --follow, every process that opens the folder later archives its log in INTO before
    segments are recycled, so that `millrace restore` reaches every point from this backup on. With
    --context, give only INTO. The backup of a server is written on its machine; INTO is an absolute
    path there.
    """
    if context is not None and folder is not None:
        if into is not None:
            raise click.UsageError("give --context or PATH|URL, not both")
        into, folder = Path(folder), None
    if context is None and folder is None:
        raise click.UsageError("give the folder or the server to back up")
    own = TargetOptions(folder, context, token_file, certificates)
    shell = shell.at(choose_target(own, TargetOptions(), os.environ))
    if unfollow:
        async with shell.open() as m:
            was_followed = await m.unfollow()
        text = "stopped archiving its log" if was_followed else "its log was not archived"
        shell.out.line("unfollowed", {"was_followed": was_followed}, text)
        return
    if into is None:
        raise click.UsageError("give the folder INTO for the backup")
    async with shell.open() as m:
        with ProgressBar("copying", total=None) as bar:
            made = await m.backup(into, follow=follow, progress=bar.reach)
    fields = {
        "path": str(made.path),
        "first_index": made.first_index,
        "last_index": made.last_index,
        "time": made.time.isoformat(),
        "bytes": made.bytes,
        "follow": follow,
    }
    text = f"created {made.path}: up to index {made.last_index}, {size_text(made.bytes)}"
    shell.out.line("backup", fields, text + (", and its log is archived" if follow else ""))


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
@click.option(
    "--index", type=int, metavar="N", help="Restore the state after entry N of the commit group."
)
@click.option("--time", type=TIME, metavar="TIME", help="Restore the state at this time (UTC).")
async def restore(
    shell: Shell, backup: Path, into: Path, *, index: int | None, time: datetime | None
) -> None:
    """Restore BACKUP, a folder of backups or one of them, into the new folder INTO.

    Without --index or --time, restore the latest state that the backup and its log archive have.
    The new folder has a history of its own: receipts and cursors of the source from after the
    restored point are invalid.
    """
    import millrace

    for path in (backup, into):
        if path is not None and is_address(str(path)):
            raise folder_required(path, "a backup is restored from files, into files")
    with ProgressBar("restoring", total=None) as bar:
        made = await millrace.restore(backup, into, index=index, time=time, progress=bar.reach)
    fields = {
        "path": str(made.path),
        "backup": str(made.backup),
        "index": made.index,
        "time": made.time.isoformat(),
    }
    as_of = time_text(round(made.time.timestamp() * 1000))
    text = f"restored {made.backup} into {made.path}, as of index {made.index} ({as_of})"
    shell.out.line("restored", fields, text)


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
    help="Compare it with the folder that it is a backup of, which must not be open.",
)
async def verify(shell: Shell, backup: Path, *, against: Path | None) -> int:
    """Read all data of BACKUP, verify checksums, and check that it opens. Nothing is changed.

    Exit code 1: its contents differ from FOLDER.
    """
    import millrace

    for path in (backup, against):
        if path is not None and is_address(str(path)):
            raise folder_required(path, "a backup is verified by its files")
    with ProgressBar("reading", total=None) as bar:
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
