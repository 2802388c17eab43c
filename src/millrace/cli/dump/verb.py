"""The verb `dump` and what may be asked of it; each is shown by a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click

from millrace.cli.bounds import ROWS_DEFAULT
from millrace.cli.dump.blocks import dump_blocks
from millrace.cli.dump.cells import dump_cells, dump_table
from millrace.cli.dump.log import Wanted, dump_log
from millrace.cli.dump.overview import dump_overview
from millrace.cli.dump.rows import dump_rows
from millrace.cli.dump.sealed import dump_sealed
from millrace.cli.folder import Damage, Folder, Problem, State
from millrace.cli.show import Output, note
from millrace.cli.verbs import Verbs
from millrace.core.model import Kind
from millrace.errors import Corrupt, MillraceError
from millrace.store.cells import Table
from millrace.store.sealed import Moved

F = TypeVar("F", bound=Callable[..., object])


def _json_option(verb: F) -> F:
    help_text = "One JSON object per line, for programs."
    return click.option("--json", "is_json", is_flag=True, help=help_text)(verb)


def _limit_option(verb: F) -> F:
    help_text = "Show at most so many."
    return click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        default=ROWS_DEFAULT,
        show_default=True,
        help=help_text,
    )(verb)


class Look:
    """What all parts of the verb are given: the folder, and whether JSON is wanted."""

    def __init__(self, path: Path, *, is_json: bool) -> None:
        self.folder = Folder(path)
        self.is_json = is_json

    def output(self, *, is_json: bool) -> Output:
        return Output(is_json=is_json or self.is_json)

    @contextmanager
    def careful(self) -> Iterator[None]:
        """Say of a folder in use that it is, and of damage what can be done."""
        use = self.folder.use()
        if use.is_in_use:
            note(f"{use.owner} has the folder in use: this is how it was a moment ago")
        try:
            yield
        except (Corrupt, Moved) as error:
            message = str(error) or "rows are not where the index says"
            if use.is_in_use:
                raise Problem(
                    f"what was to be shown has changed meanwhile ({message})",
                    "the folder is in use: try again, or close it there first",
                ) from error
            hint = "`dump PATH log` and `dump PATH sealed` show what can be read without the index"
            raise Damage(message, hint) from error
        except MillraceError as error:
            raise Problem(str(error), "`millrace check PATH` verifies the whole folder") from error

    @contextmanager
    def state(self) -> Iterator[State]:
        with self.careful():
            state = self.folder.state()
            try:
                yield state
            finally:
                state.close()


class Parts(Verbs):
    """What can be shown; the verb's own options may also stand behind PATH."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[1:2] in (["--json"], ["--help"], ["-h"]):
            args = [args[1], args[0], *args[2:]]
        return super().parse_args(ctx, args)


@click.group(
    cls=Parts,
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
    """Show what the folder PATH holds. Nothing is ever changed.

    Without WHAT, an overview. Bodies are shortened, and control characters escaped. A folder in use
    is shown as it was a moment ago.
    """
    look = Look(path, is_json=is_json)
    context.obj = look
    if context.invoked_subcommand is None:
        with look.state() as state:
            dump_overview(state, look.output(is_json=False))


@dump.command()
@click.option(
    "--from", "first", type=click.IntRange(min=1), metavar="N", default=1, help="Begin at record N."
)
@_limit_option
@click.option("--generation", type=click.IntRange(min=1), metavar="N", help="Only this generation.")
@click.option("--bytes", "with_bytes", is_flag=True, help="Payloads, too, in hexadecimal.")
@_json_option
@click.pass_obj
def log(
    look: Look,
    first: int,
    limit: int,
    generation: int | None,
    with_bytes: bool,  # noqa: FBT001
    is_json: bool,  # noqa: FBT001
) -> None:
    """Records of the log, with their entries, batches and changes.

    The index is not needed. Whatever a segment still holds is shown, also what is no longer needed;
    damage is shown where it is met.
    """
    with look.careful():
        wanted = Wanted(first, limit, generation, with_bytes)
        dump_log(look.folder, look.output(is_json=is_json), wanted)


@dump.command()
@click.option(
    "--shard", type=click.IntRange(min=0), metavar="N", multiple=True, help="Only this shard."
)
@click.option(
    "--kind",
    type=click.Choice([kind.name.lower() for kind in Kind]),
    help="Only cells of this kind.",
)
@click.option(
    "--table",
    type=click.Choice([table.name.lower() for table in Table]),
    help="A table of the index instead, as it is stored.",
)
@_json_option
@click.pass_obj
def cells(
    look: Look,
    shard: tuple[int, ...],
    kind: str | None,
    table: str | None,
    is_json: bool,  # noqa: FBT001
) -> None:
    """Cells: what shards remember besides their rows.

    With --table, the entries of the index itself, as of its last checkpoint.
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
    "--after", type=click.IntRange(min=0), metavar="SEQ", default=0, help="Begin behind it."
)
@_limit_option
@_json_option
@click.pass_obj
def rows(look: Look, queue: str, after: int, limit: int, is_json: bool) -> None:  # noqa: FBT001
    """Messages of QUEUE that are live, or kept for cursors.

    QUEUE is a name, space/name, or shard:number.
    """
    with look.state() as state:
        dump_rows(state, look.output(is_json=is_json), queue, after=after, limit=limit)


@dump.command()
@click.argument("file", required=False)
@_json_option
@click.pass_obj
def sealed(look: Look, file: str | None, is_json: bool) -> None:  # noqa: FBT001
    """Sealed files; with FILE (a number or a name), its record batches."""
    with look.careful():
        dump_sealed(look.folder, look.output(is_json=is_json), file)


@dump.command()
@click.argument("queue")
@_json_option
@click.pass_obj
def blocks(look: Look, queue: str, is_json: bool) -> None:  # noqa: FBT001
    """Where the rows of QUEUE lie: in the log, or in sealed files."""
    with look.state() as state:
        dump_blocks(state, look.output(is_json=is_json), queue)
