"""`millrace backup`: a backup of a folder, and the archive of its log."""

from __future__ import annotations

import os
from pathlib import Path

import click

from millrace.cli.given import Given
from millrace.cli.progress import Bar
from millrace.cli.shell import Shell
from millrace.cli.show import size_text
from millrace.cli.target import choose
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
@click.option(
    "--follow", is_flag=True, help="Archive the log in INTO from now on, whoever opens it."
)
@click.option("--unfollow", is_flag=True, help="Archive the log no more; no backup is made.")
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
    """Make a backup of a folder or a server in the folder INTO, beside those that are there.

    It shares with them what they have in common. If a program has the folder open, it must serve or
    share it, or make backups itself, with `await m.backup(...)`. With --follow, every process that
    opens the folder later archives its log in INTO before it is recycled, and `millrace restore`
    reaches every point from this backup on. With --context, only INTO is given. The backup of a
    server is made on its machine, by the whole path of INTO there.
    """
    if context is not None and folder is not None:
        if into is not None:
            raise click.UsageError("give --context or PATH|URL, not both")
        into, folder = Path(folder), None
    if context is None and folder is None:
        raise click.UsageError("name the folder or the server that a backup is made of")
    own = Given(folder, context, token_file, certificates)
    shell = shell.at(choose(own, Given(), os.environ))
    if unfollow:
        async with shell.open() as m:
            was_followed = await m.unfollow()
        text = "its log is archived no more" if was_followed else "its log was not archived"
        shell.out.line("unfollowed", {"was_followed": was_followed}, text)
        return
    if into is None:
        raise click.UsageError("name the folder INTO that the backup is made in")
    async with shell.open() as m:
        with Bar("copying", total=None) as bar:
            made = await m.backup(into, follow=follow, progress=bar.reach)
    fields = {
        "path": str(made.path),
        "first_index": made.first_index,
        "last_index": made.last_index,
        "time": made.time.isoformat(),
        "bytes": made.bytes,
        "follow": follow,
    }
    text = f"made {made.path}: up to index {made.last_index}, {size_text(made.bytes)}"
    shell.out.line("backup", fields, text + (", and its log is archived" if follow else ""))
