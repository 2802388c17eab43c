"""`millrace job redrive`: dead letters back, changed on the way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from millrace.cli.ending import Ended
from millrace.cli.shell import Shell, find_queue, shown_name, split_name
from millrace.cli.sparked import CONF, Pairs, need_spark, on_spark
from millrace.cli.verb import verb
from millrace.cli.words import counted

if TYPE_CHECKING:
    from millrace.batch_jobs.redrive import Redriven, Tried
    from millrace.batch_jobs.site import Site


@verb(
    "redrive",
    examples="""
        millrace job redrive mail --to other --dry-run
        millrace job redrive mail --to other --sql "SELECT shard, seq, hex(value) value FROM input"
        millrace job redrive mail --to other --python mend.py:mend
    """,
)
@click.argument("queue")
@click.option("--to", default="", metavar="QUEUE", help="Where they go. [where each came from]")
@click.option("--sql", default="", metavar="QUERY", help="What becomes of letters, over `input`.")
@click.option(
    "--python",
    default="",
    metavar="FILE:FUNCTION",
    help="A function instead, from a DataFrame to a DataFrame.",
)
@click.option("--dry-run", is_flag=True, help="Show some letters before and after; move nothing.")
@CONF
async def redrive(
    shell: Shell, queue: str, *, to: str, sql: str, python: str, dry_run: bool, conf: Pairs
) -> None:
    """Move the dead letters in QUEUE back, changed by a query or a function, each exactly once.

    Letters have the columns shard, seq, key, value, headers, timestamp, dead_queue, dead_reason,
    dead_deliveries and dead_failures. What is made of one keeps its shard and seq, and without --to
    its dead_queue; a letter of which nothing is made stays. It may be interrupted: the same call
    again moves the rest.
    """
    need_spark()
    from millrace.batch_jobs.redrive import Change, check_change, try_out
    from millrace.batch_jobs.redrive import redrive as run

    async with shell.open() as m:
        found = await find_queue(m, queue)
        shown = shown_name(found)
        if to and (await find_queue(m, to)).shards.ids == found.shards.ids:
            raise Ended(f"{shown} cannot be redriven to itself", "name another queue with --to")
    space, rest = split_name(queue)
    change = Change(to="/".join(split_name(to)) if to else "", sql=sql, python=python)
    check_change(change)

    def trying(site: Site) -> Tried:
        return try_out(site, site.m.find(rest, space=space), change)

    def moving(site: Site) -> Redriven:
        return run(site, site.m.find(rest, space=space), change)

    if dry_run:
        tried = await on_spark(shell, "redrive", conf, trying)
        for kind, rows in (("before", tried.before), ("after", tried.after)):
            for row in rows:
                fields = _said(row)
                shell.out.line(kind, fields, f"{kind:6}  {json.dumps(fields)}")
        done = tried.redriven
    else:
        done = await on_spark(shell, "redrive", conf, moving)
    moved = f"{counted(done.letters, 'letter')} as {counted(done.published, 'message')}"
    stay = f"{done.kept:,} {'stays' if done.kept == 1 else 'stay'}"
    text = f"moved {moved}; {stay}"
    if dry_run:
        text = f"would move {moved}; {done.kept:,} would stay"
    fields = {
        "queue": shown,
        "letters": done.letters,
        "published": done.published,
        "kept": done.kept,
        "aimless": done.aimless,
        "reason": done.reason,
        "dry_run": dry_run,
    }
    shell.out.line("redriven", fields, text)
    if done.reason:
        shell.out.note(f"nothing {'would be' if dry_run else 'was'} moved: {done.reason}")
    elif done.aimless:
        shell.out.note(
            f"{counted(done.aimless, 'message')} had no queue to go to: dead_queue is not known; "
            "--to names one for all"
        )


def _said(row: Mapping[str, object]) -> dict[str, object]:
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return _said(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
