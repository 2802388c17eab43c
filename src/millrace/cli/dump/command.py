"""The command `millrace dump` and its subcommands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click

from millrace.cli.bounds import ROWS_DEFAULT
from millrace.cli.command_group import CommandGroup
from millrace.cli.dump.cells import dump_cells, dump_table
from millrace.cli.dump.log import LogSelection, dump_log
from millrace.cli.dump.overview import dump_overview
from millrace.cli.dump.rows import dump_blocks, dump_rows
from millrace.cli.dump.sealed import dump_sealed
from millrace.cli.dump.table import DumpOutput, note
from millrace.cli.folder import (
    DamageError,
    Folder,
    FolderError,
    FolderState,
)
from millrace.core.cells import Kind
from millrace.errors import Corrupt, MillraceError
from millrace.store.cells import Table
from millrace.store.sealed import Moved

F = TypeVar("F", bound=Callable[..., object])


def _json_option(verb: F) -> F:
    help_text = "Print one JSON object per line."
    return click.option("--json", "is_json", is_flag=True, help=help_text)(verb)


def _limit_option(verb: F) -> F:
    help_text = "Print at most N items."
    return click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        default=ROWS_DEFAULT,
        show_default=True,
        help=help_text,
    )(verb)


class DumpContext:
    """Folder and output format, shared by the subcommands."""

    def __init__(self, path: Path, *, is_json: bool) -> None:
        self.folder = Folder(path)
        self.is_json = is_json

    def output(self, *, is_json: bool) -> DumpOutput:
        return DumpOutput(is_json=is_json or self.is_json)

    @contextmanager
    def careful(self) -> Iterator[None]:
        """Note that a folder is in use, and add hints to errors from damage."""
        use = self.folder.use()
        if use.is_in_use:
            note(f"{use.owner} has the folder in use: this is its state a moment ago")
        try:
            yield
        except (Corrupt, Moved) as error:
            message = str(error) or "rows are not where the index says"
            if use.is_in_use:
                raise FolderError(
                    f"the data changed while it was read ({message})",
                    "the folder is in use: try again, or close it there first",
                ) from error
            hint = "`dump PATH log` and `dump PATH sealed` show what can be read without the index"
            raise DamageError(message, hint) from error
        except MillraceError as error:
            raise FolderError(
                str(error), "`millrace check PATH` verifies the whole folder"
            ) from error

    @contextmanager
    def state(self) -> Iterator[FolderState]:
        with self.careful():
            state = self.folder.state()
            try:
                yield state
            finally:
                state.close()


class DumpGroup(CommandGroup):
    """The subcommands; options of `dump` itself may also follow PATH."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[1:2] in (["--json"], ["--help"], ["-h"]):
            args = [args[1], args[0], *args[2:]]
        return super().parse_args(ctx, args)


@click.group(
    cls=DumpGroup,
    invoke_without_command=True,
    subcommand_metavar="[WHAT [OPTIONS]...]",
    epilog="""\b
Examples:
  millrace dump data
  millrace dump data log --from 3 --limit 10
  millrace dump data log --generation 1 --bytes
  millrace dump data cells --shard 1 --kind lease
  millrace dump data rows orders --after 3
  millrace dump data sealed
  millrace dump data blocks orders --json
""",
)
@click.argument("path", type=click.Path(path_type=Path))
@_json_option
@click.pass_context
def dump(context: click.Context, path: Path, is_json: bool) -> None:  # noqa: FBT001
    """Print the contents of the folder PATH, without changing anything.

    Without WHAT, print an overview. Bodies are shortened, and control characters escaped. A folder
    in use is shown as it was a moment ago.
    """
    look = DumpContext(path, is_json=is_json)
    context.obj = look
    if context.invoked_subcommand is None:
        with look.state() as state:
            dump_overview(state, look.output(is_json=False))


@dump.command()
@click.option(
    "--from", "first", type=click.IntRange(min=1), metavar="N", default=1, help="Start at record N."
)
@_limit_option
@click.option(
    "--generation", type=click.IntRange(min=1), metavar="N", help="Print only this generation."
)
@click.option("--bytes", "with_bytes", is_flag=True, help="Print payloads, too, in hexadecimal.")
@_json_option
@click.pass_obj
def log(
    look: DumpContext,
    first: int,
    limit: int,
    generation: int | None,
    with_bytes: bool,  # noqa: FBT001
    is_json: bool,  # noqa: FBT001
) -> None:
    """Print records of the log, with their entries, batches and changes.

    The index is not needed. All records still in the segments are shown, including those no longer
    needed; damage is shown where it is found.
    """
    with look.careful():
        wanted = LogSelection(first, limit, generation, with_bytes)
        dump_log(look.folder, look.output(is_json=is_json), wanted)


@dump.command()
@click.option(
    "--shard",
    type=click.IntRange(min=0),
    metavar="N",
    multiple=True,
    help="Print only this shard; repeatable.",
)
@click.option(
    "--kind",
    type=click.Choice([kind.name.lower() for kind in Kind]),
    help="Print only cells of this kind.",
)
@click.option(
    "--table",
    type=click.Choice([table.name.lower() for table in Table]),
    help="Print a table of the index as stored.",
)
@_json_option
@click.pass_obj
def cells(
    look: DumpContext,
    shard: tuple[int, ...],
    kind: str | None,
    table: str | None,
    is_json: bool,  # noqa: FBT001
) -> None:
    """Print cells: the state of shards besides their rows.

    With --table, print the entries of the index itself, as of its last checkpoint.
    """
    output = look.output(is_json=is_json)
    with look.state() as state:
        if table is not None:
            if shard or kind:
                raise click.UsageError("--table cannot be combined with --shard or --kind")
            dump_table(state, output, Table[table.upper()])
            return
        for number in shard:
            state.shard(f"shard:{number}")
        wanted = Kind[kind.upper()] if kind is not None else None
        dump_cells(state, output, shards=list(shard), kind=wanted)


@dump.command()
@click.argument("queue")
@click.option(
    "--after", type=click.IntRange(min=0), metavar="SEQ", default=0, help="Start after this seq."
)
@_limit_option
@_json_option
@click.pass_obj
def rows(look: DumpContext, queue: str, after: int, limit: int, is_json: bool) -> None:  # noqa: FBT001
    """Print messages of QUEUE that are live, or kept for cursors.

    QUEUE is a name, space/name, or shard:number.
    """
    with look.state() as state:
        dump_rows(state, look.output(is_json=is_json), queue, after=after, limit=limit)


@dump.command()
@click.argument("file", required=False)
@_json_option
@click.pass_obj
def sealed(look: DumpContext, file: str | None, is_json: bool) -> None:  # noqa: FBT001
    """Print sealed files; with FILE (a number or a name), its record batches."""
    with look.careful():
        dump_sealed(look.folder, look.output(is_json=is_json), file)


@dump.command()
@click.argument("queue")
@_json_option
@click.pass_obj
def blocks(look: DumpContext, queue: str, is_json: bool) -> None:  # noqa: FBT001
    """Print where the rows of QUEUE are stored: in the log, or in sealed files."""
    with look.state() as state:
        dump_blocks(state, look.output(is_json=is_json), queue)
