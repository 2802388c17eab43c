"""`millrace job report`: the traffic of a queue as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from millrace.cli.ending import Ended
from millrace.cli.shell import Shell, find_queue, shown_name, split_name
from millrace.cli.sparked import CONF, Pairs, need_spark, on_spark
from millrace.cli.verb import verb
from millrace.cli.words import counted

if TYPE_CHECKING:
    from millrace.batch_jobs.report import Report
    from millrace.batch_jobs.site import Site


@verb(
    "report",
    examples="""
        millrace job report orders
        millrace job report mail --into mail.html --sent made
    """,
)
@click.argument("queue")
@click.option(
    "--into",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page that is written. [report.html]",
    default="report.html",
)
@click.option(
    "--sent",
    default="",
    metavar="HEADER",
    help="A header that tells when a message was made, for latencies.",
)
@CONF
async def report(shell: Shell, queue: str, *, into: Path, sent: str, conf: Pairs) -> None:
    """Write a page about the traffic of QUEUE: rates, sizes, latencies, hottest keys and groups.

    It tells of messages that are still there, as of one moment; those that workers have settled
    are in the counters alone. The page is one file, without scripts.
    """
    need_spark()
    if not into.parent.is_dir():
        raise Ended(f"there is no folder {into.parent}", "name another file with --into")
    from millrace.batch_jobs.report import report as run
    from millrace.batch_jobs.report import to_html

    async with shell.open() as m:
        shown = shown_name(await find_queue(m, queue))
    space, rest = split_name(queue)

    def work(site: Site) -> Report:
        found = run(site, site.m.find(rest, space=space), sent=sent)
        into.write_text(to_html(found), encoding="utf-8")
        return found

    found = await on_spark(shell, "report", conf, work)
    fields = {
        "queue": shown,
        "into": str(into),
        "messages": found.messages,
        "bytes": found.bytes,
        "latencies": {str(share): seconds for share, seconds in found.latencies},
        "keys": [one._asdict() for one in found.keys],
        "groups": [one._asdict() for one in found.groups],
    }
    shell.out.line(
        "reported", fields, f"wrote {into}: {counted(found.messages, 'message')} of {shown}"
    )
