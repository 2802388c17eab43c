"""`millrace cursor`: list, reset and delete the durable positions of followers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from millrace.cli.ending import Ended
from millrace.cli.kinds import PLACE
from millrace.cli.printing import Column
from millrace.cli.shell import Shell, find_queue, suggest
from millrace.cli.verb import epilog, verb
from millrace.cli.verbs import Verbs
from millrace.errors import Exists

if TYPE_CHECKING:
    from millrace import Cursor, Queue


@click.group(
    cls=Verbs,
    epilog=epilog("""
        millrace cursor list orders
        millrace cursor reset orders report --to beginning
    """),
)
def cursor() -> None:
    """List, reset or delete cursors: followers' durable positions in a queue.

    `millrace follow QUEUE --name NAME` makes one.
    """


@verb("list", examples="millrace cursor list orders")
@click.argument("queue")
async def list_cursors(shell: Shell, queue: str) -> None:
    """List the cursors of QUEUE, and how far each has committed."""
    async with shell.open() as m:
        found = await find_queue(m, queue)
        cursors = await found.cursors()
        async with found.snapshot() as snapshot:
            end = snapshot.boundary
    shell.out.table(
        "cursor",
        [
            Column("CURSOR", is_long=True),
            Column("SEQ", is_number=True),
            Column("END", is_number=True),
            Column("BEHIND", is_number=True),
        ],
        [
            (
                {"cursor": name, "seq": seq, "end": end, "behind": end - seq},
                [name, str(seq), str(end), f"{end - seq:,}"],
            )
            for name, seq in cursors.items()
        ],
        empty=f"no cursors; `millrace follow {queue} --name NAME` makes one",
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
    type=PLACE,
    default="beginning",
    show_default=True,
    help="beginning, end, the first seq to be read, or a time.",
)
async def reset(shell: Shell, queue: str, *, name: str, to: str | int | datetime) -> None:
    """Let the cursor NAME of QUEUE begin anew at another place."""
    async with shell.open() as m:
        found = await existing(await find_queue(m, queue), name)
        await found.reset(to)
        seq = found.position.seq
    shell.out.line("cursor", {"cursor": name, "seq": seq}, f"{name} goes on after seq {seq}")


@verb("delete", examples="millrace cursor delete orders report")
@click.argument("queue")
@click.argument("name")
async def delete(shell: Shell, queue: str, *, name: str) -> None:
    """Forget the cursor NAME of QUEUE; no message is changed."""
    async with shell.open() as m:
        found = await existing(await find_queue(m, queue), name)
        await found.delete()
    shell.out.line("deleted", {"cursor": name}, f"deleted the cursor {name}")


async def existing(queue: Queue, name: str) -> Cursor:
    """The cursor of this name, which is not made.

    Raises:
        Ended: there is none; the hint names the nearest.
    """
    known = await queue.cursors()
    if name not in known:
        listed = f"`millrace cursor list {queue.name}` lists them"
        raise Ended(f"there is no cursor {name!r}", suggest(name, known, listed), code="not_found")
    try:
        return await queue.cursor(name)
    except Exists:
        return await queue.cursor(name, retain=True)


for _verb in (list_cursors, reset, delete):
    cursor.add_command(_verb)
