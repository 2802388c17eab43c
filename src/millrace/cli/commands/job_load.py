"""`millrace job load`: files or a table into a queue, once for each name."""

from __future__ import annotations

import click

from millrace.cli.kinds import HEADER
from millrace.cli.shell import Shell, find_queue, shown_name, split_name
from millrace.cli.sparked import CONF, Pairs, need_spark, on_spark, texts
from millrace.cli.verb import verb
from millrace.cli.words import counted


@verb(
    "load",
    examples="""
        millrace job load orders orders.csv --name first --key id
        millrace job load mail orders.jsonl --name second --value note
        millrace job load orders delta:lake --name third --key id --column id --column total
        millrace job load mail orders.csv --name fourth --sql "SELECT note AS value FROM input"
    """,
)
@click.argument("queue")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--name", required=True, help="Names the load: what was loaded under it is not loaded again."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "csv", "json"]),
    help="Of files whose names do not tell.",
)
@click.option(
    "--option",
    "options",
    type=HEADER,
    multiple=True,
    help="An option of Spark's reader, such as sep=;; repeatable.",
)
@click.option("--key", default="", metavar="COLUMN", help="The column that becomes the key.")
@click.option(
    "--value",
    default="",
    metavar="COLUMN",
    help="The column that becomes the body, instead of a JSON object of all columns.",
)
@click.option(
    "--column", "columns", multiple=True, help="A column of the JSON object; repeatable. [all]"
)
@click.option(
    "--sql",
    default="",
    metavar="QUERY",
    help="Make messages by a query over `input`: value, and key, headers, op, group, delay, ttl, "
    "priority if they are wanted.",
)
@CONF
async def load(
    shell: Shell,
    queue: str,
    *,
    sources: tuple[str, ...],
    name: str,
    format_: str | None,
    options: Pairs,
    key: str,
    value: str,
    columns: tuple[str, ...],
    sql: str,
    conf: Pairs,
) -> None:
    """Load the rows of files, or of a table, into QUEUE: all of them at once, and once.

    SOURCE is a path of files in Parquet, CSV or JSON lines, which may hold *, or the address of a
    table: delta:/lake/orders, iceberg:/lake?table=shop.orders, parquet:/lake/orders. A load that
    was cut off has added nothing: run it again. One that was done adds nothing, for a week.
    """
    need_spark()
    from millrace.batch_jobs.load import (
        NUMBER,
        REPEAT,
        Load,
        check_load,
        producer_of,
    )
    from millrace.batch_jobs.load import load as run

    job = Load(
        name=name,
        sources=sources,
        format=format_ or "",
        options=texts(options),
        key=key,
        value=value,
        columns=columns,
        sql=sql,
    )
    async with shell.open() as m:
        found = await find_queue(m, queue)
        shown = shown_name(found)
        done = REPEAT if await found.producer(producer_of(job)) >= NUMBER else None
    if done is None:
        check_load(job, texts(conf))
        space, rest = split_name(queue)
        done = await on_spark(
            shell, "load", conf, lambda site: run(site, site.m.find(rest, space=space), job)
        )
    text = f"loaded {counted(done.rows, 'message')} into {shown}"
    if done.is_repeat:
        text = f"{name!r} was loaded into {shown} before; nothing was added"
    fields = {"queue": shown, "name": name, "rows": done.rows, "repeat": done.is_repeat}
    shell.out.line("loaded", fields, text)
