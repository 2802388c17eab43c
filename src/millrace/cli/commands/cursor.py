"""`millrace cursor`: list, reset and delete the durable positions of followers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from millrace.cli.command_group import CommandGroup
from millrace.cli.exit_errors import ExitError
from millrace.cli.parameter_types import START
from millrace.cli.printing import TableColumn
from millrace.cli.shell import Shell, find_queue, suggest
from millrace.cli.verb import epilog, verb
from millrace.errors import Exists

if TYPE_CHECKING:
    from millrace import Cursor, Queue


@click.group(
    cls=CommandGroup,
    epilog=epilog("""
        millrace cursor list orders
        millrace cursor reset orders report --to beginning
    """),
)
def cursor() -> None:
    """List, reset or delete cursors: the durable positions of followers.

    `millrace follow QUEUE --name NAME` creates one.
    """


@verb("list", examples="millrace cursor list orders")
@click.argument("queue")
async def list_cursors(shell: Shell, queue: str) -> None:
    """List the cursors of QUEUE with their positions and lag."""
    async with shell.open() as m:
        found = await find_queue(m, queue)
        cursors = await found.cursors()
        async with found.snapshot() as snapshot:
            end = snapshot.boundary
    shell.out.table(
        "cursor",
        [
            TableColumn("CURSOR", is_long=True),
            TableColumn("SEQ", is_number=True),
            TableColumn("END", is_number=True),
            TableColumn("BEHIND", is_number=True),
        ],
        [
            (
                {"cursor": name, "seq": seq, "end": end, "behind": end - seq},
                [name, str(seq), str(end), f"{end - seq:,}"],
            )
            for name, seq in cursors.items()
        ],
        empty=f"no cursors; `millrace follow {queue} --name NAME` creates one",
    )


@verb(
    "reset",
    examples="""
        millrace cursor reset orders report
        millrace cursor reset orders report --to 3
    """,
)
@click.argument("queue")
@click.argument("name")
@click.option(
    "--to",
    type=START,
    default="beginning",
    show_default=True,
    help="New position: beginning, end, the first seq to be read, or a time.",
)
async def reset(shell: Shell, queue: str, *, name: str, to: str | int | datetime) -> None:
    """Move the cursor NAME of QUEUE to another position."""
    async with shell.open() as m:
        found = await find_cursor(await find_queue(m, queue), name)
        await found.reset(to)
        seq = found.position.seq
    shell.out.line("cursor", {"cursor": name, "seq": seq}, f"{name} continues after seq {seq}")


@verb("delete", examples="millrace cursor delete orders report")
@click.argument("queue")
@click.argument("name")
async def delete(shell: Shell, queue: str, *, name: str) -> None:
    """Delete the cursor NAME of QUEUE; no message is changed."""
    async with shell.open() as m:
        found = await find_cursor(await find_queue(m, queue), name)
        await found.delete()
    shell.out.line("deleted", {"cursor": name}, f"deleted the cursor {name}")


async def find_cursor(queue: Queue, name: str) -> Cursor:
    """Return an existing cursor.

    Raises:
        ExitError: it does not exist; the hint suggests the nearest name.
    """
    known = await queue.cursors()
    if name not in known:
        listed = f"`millrace cursor list {queue.name}` lists them"
        raise ExitError(
            f"there is no cursor {name!r}", suggest(name, known, listed), code="not_found"
        )
    try:
        return await queue.cursor(name)
    except Exists:
        return await queue.cursor(name, retain=True)


for _verb in (list_cursors, reset, delete):
    cursor.add_command(_verb)
