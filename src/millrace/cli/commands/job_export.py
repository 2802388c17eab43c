"""`millrace job export`: one moment of a queue, in files or a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from millrace.cli.shell import Shell, find_queue, shown_name, split_name
from millrace.cli.sparked import CONF, Pairs, need_spark, on_spark
from millrace.cli.verb import verb
from millrace.cli.words import counted

if TYPE_CHECKING:
    from millrace.spark.options import View


@verb(
    "export",
    examples="""
        millrace job export orders --into parquet:orders
        millrace job export orders --into "delta:lake?mode=upsert&key=key" --schema "state string"
        millrace job export orders --into delta:latest --view latest --column key --column value
    """,
)
@click.argument("queue")
@click.option(
    "--into", required=True, metavar="SINK", help="delta:PATH, parquet:PATH, or any other sink."
)
@click.option("--name", help="Names the export; the same one goes on where it ended. [the queue's]")
@click.option(
    "--view",
    type=click.Choice(["changes", "latest", "log"]),
    default="changes",
    show_default=True,
    help="Every key once with deletes, live keys only, or all rows of a queue without keys.",
)
@click.option("--schema", default="", metavar="COLUMNS", help="Parse bodies into these columns.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json", "avro", "arrow"]),
    default="json",
    show_default=True,
    help="Of the bodies, with --schema.",
)
@click.option(
    "--column", "columns", multiple=True, help="A column of the queue's rows; repeatable. [all]"
)
@CONF
async def export(
    shell: Shell,
    queue: str,
    *,
    into: str,
    name: str | None,
    view: str,
    schema: str,
    format_: str,
    columns: tuple[str, ...],
    conf: Pairs,
) -> None:
    """Bring QUEUE as it is now into files or a table, which then knows how far it was read.

    Exported again into the same place, only what came since is added. With the view `latest`
    everything is exported each time, into a place of its own.
    """
    need_spark()
    from millrace.batch_jobs.export import Export
    from millrace.batch_jobs.export import export as run
    from millrace.sinks.kinds import parse_sink

    async with shell.open() as m:
        shown = shown_name(await find_queue(m, queue))
    space, rest = split_name(queue)
    job = Export(
        name=name or rest,
        sink=parse_sink(into),
        view=cast("View", view),
        schema=schema,
        format=format_,
        columns=columns,
    )
    done = await on_spark(
        shell, "export", conf, lambda site: run(site, site.m.find(rest, space=space), job)
    )
    [place] = done.boundary.places
    seqs = "+".join(map(str, place.seqs))
    shell.out.line(
        "exported",
        {"queue": shown, "into": into, "rows": done.rows, "seqs": list(place.seqs)},
        f"exported {counted(done.rows, 'row')} of {shown} into {into}, up to seq {seqs}",
    )
