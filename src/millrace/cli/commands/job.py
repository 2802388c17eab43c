"""`millrace job`: batch jobs that run on Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import click

from millrace.cli.command_group import CommandGroup
from millrace.cli.exit_errors import FATAL, USAGE, ExitError
from millrace.cli.formatting import plural
from millrace.cli.parameter_types import HEADER
from millrace.cli.printing import ProgressBar, TableColumn
from millrace.cli.shell import (
    Shell,
    display_name,
    find_queue,
    split_name,
)
from millrace.cli.target import pipeline_location
from millrace.cli.verb import epilog, verb

if TYPE_CHECKING:
    from millrace.batch_jobs.audit import QueueAudit, ShardAudit
    from millrace.batch_jobs.job_context import JobContext
    from millrace.batch_jobs.redrive import DryRun, RedriveResult
    from millrace.batch_jobs.report import TrafficReport
    from millrace.spark.options import View


class JobGroup(CommandGroup):
    """Lists the jobs in the order in which users meet them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=JobGroup,
    epilog=epilog("""
        millrace job load orders orders.csv --name first --key id
        millrace job audit orders
    """),
)
def job() -> None:
    """Run batch jobs over whole queues with Spark, for millions of messages and more.

    They need millrace[spark] and Java; docs/guide/spark-tuning.md describes Spark's settings. While
    a job runs, the folder is shared with Spark's processes. See docs/guide/batch-jobs.md.
    """


Pairs = tuple[tuple[str, bytes], ...]

T = TypeVar("T")

CONF = click.option(
    "--conf",
    type=HEADER,
    multiple=True,
    help="Set a Spark property, such as spark.master=spark://host:7077; repeatable.",
)


def require_spark() -> None:
    """Check that Spark is installed, before any other argument is checked.

    Raises:
        ExitError: Spark is not installed.
    """
    try:
        import pyspark.sql  # noqa: F401
    except ModuleNotFoundError:
        raise ExitError(
            "jobs run on Spark, which is not installed",
            "pip install 'millrace[spark]'",
            exit_code=USAGE,
        ) from None


async def run_on_spark(shell: Shell, name: str, conf: Pairs, job: Callable[[JobContext], T]) -> T:
    """Run a job on a thread with a progress bar for Spark's tasks; return its result."""
    from millrace.batch_jobs.job_context import open_job

    def work() -> T:
        with (
            ProgressBar(name, total=None) as bar,
            open_job(
                name,
                pipeline_location(shell.target),
                conf=text_options(conf),
                tell=bar.reach,
                say=shell.out.aside,
            ) as site,
        ):
            return job(site)

    return await asyncio.to_thread(work)


def text_options(pairs: Pairs) -> dict[str, str]:
    """Return NAME=VALUE options as a dictionary of texts."""
    return {name: value.decode(errors="replace") for name, value in pairs}


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
    "--name",
    required=True,
    help="Name of the load; a finished load is not repeated under the same name.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "csv", "json"]),
    help="Format of the files. [by their suffix]",
)
@click.option(
    "--option",
    "options",
    type=HEADER,
    multiple=True,
    help="Set an option of Spark's reader, such as sep=;; repeatable.",
)
@click.option("--key", default="", metavar="COLUMN", help="Column for the message key.")
@click.option(
    "--value",
    default="",
    metavar="COLUMN",
    help="Column for the message body, instead of a JSON object of all columns.",
)
@click.option(
    "--column", "columns", multiple=True, help="Column of the JSON object; repeatable. [all]"
)
@click.option(
    "--sql",
    default="",
    metavar="QUERY",
    help="Query over `input` that returns messages: value, and optionally key, headers, op, group, "
    "delay, ttl, priority.",
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
    """Publish the rows of files, or of a table, to QUEUE: atomically, and exactly once.

    SOURCE is a path of files in Parquet, CSV or JSON lines, which may contain *, or the address of
    a table: delta:/lake/orders, iceberg:/lake?table=shop.orders, parquet:/lake/orders. A load that
    was interrupted has published nothing: run it again. A finished load is recognized by its name
    for a week, and publishes nothing again.
    """
    require_spark()
    from millrace.batch_jobs.load import (
        NUMBER,
        REPEAT,
        LoadJob,
        check_load,
        producer_of,
    )
    from millrace.batch_jobs.load import load as run

    job = LoadJob(
        name=name,
        sources=sources,
        format=format_ or "",
        options=text_options(options),
        key=key,
        value=value,
        columns=columns,
        sql=sql,
    )
    async with shell.open() as m:
        found = await find_queue(m, queue)
        shown = display_name(found)
        done = REPEAT if await found.producer(producer_of(job)) >= NUMBER else None
    if done is None:
        check_load(job, text_options(conf))
        space, rest = split_name(queue)
        done = await run_on_spark(
            shell, "load", conf, lambda site: run(site, site.m.find(rest, space=space), job)
        )
    text = f"loaded {plural(done.rows, 'message')} into {shown}"
    if done.is_repeat:
        text = f"{name!r} was loaded into {shown} before; nothing was added"
    fields = {"queue": shown, "name": name, "rows": done.rows, "repeat": done.is_repeat}
    shell.out.line("loaded", fields, text)


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
    "--into", required=True, metavar="SINK", help="Sink: delta:PATH, parquet:PATH or any other."
)
@click.option(
    "--name", help="Name of the export; a repeat under it is incremental. [name of the queue]"
)
@click.option(
    "--view",
    type=click.Choice(["changes", "latest", "log"]),
    default="changes",
    show_default=True,
    help="Each key once with deletes, live keys only, or all rows of a queue without keys.",
)
@click.option(
    "--schema",
    default="",
    metavar="COLUMNS",
    help="Parse bodies into these columns, declared as in Spark.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json", "avro", "arrow"]),
    default="json",
    show_default=True,
    help="Format of the bodies, with --schema.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    help="Column of the queue's rows to export; repeatable. [all]",
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
    """Export a snapshot of QUEUE to files or a table, together with its position.

    A repeated export to the same place adds only newer messages. With the view `latest`, each
    export is complete and needs a place of its own.
    """
    require_spark()
    from millrace.batch_jobs.export import ExportJob
    from millrace.batch_jobs.export import export as run
    from millrace.sinks.kinds import parse_sink

    async with shell.open() as m:
        shown = display_name(await find_queue(m, queue))
    space, rest = split_name(queue)
    job = ExportJob(
        name=name or rest,
        sink=parse_sink(into),
        view=cast("View", view),
        schema=schema,
        format=format_,
        columns=columns,
    )
    done = await run_on_spark(
        shell, "export", conf, lambda site: run(site, site.m.find(rest, space=space), job)
    )
    [place] = done.boundary.places
    seqs = "+".join(map(str, place.seqs))
    shell.out.line(
        "exported",
        {"queue": shown, "into": into, "rows": done.rows, "seqs": list(place.seqs)},
        f"exported {plural(done.rows, 'row')} of {shown} into {into}, up to seq {seqs}",
    )


_ENDS = ("settled", "superseded", "expired", "dead_lettered", "dropped", "purged")

_COLUMNS = (
    TableColumn("queue", is_long=True),
    TableColumn("shard", is_number=True),
    TableColumn("published", is_number=True),
    TableColumn("live", is_number=True),
    *(TableColumn(name.replace("_", " "), is_number=True) for name in _ENDS),
    TableColumn("rows", is_number=True),
    TableColumn("gaps", is_number=True),
    TableColumn("repeats", is_number=True),
    TableColumn("verdict"),
)


@verb(
    "audit",
    examples="""
        millrace job audit orders
        millrace job audit --json
    """,
)
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@CONF
async def audit(shell: Shell, *, queues: tuple[str, ...], conf: Pairs) -> int:
    """Count the rows of each QUEUE, and compare them with its counters.

    Without a name, audit all queues. For each shard, published = live + settled + superseded +
    expired + dead lettered + dropped + purged must hold; the number of rows must equal live, with
    no seq twice; and each seq without a row must be counted as ended. Exit codes: 0 if all counters
    match, 4 if not.
    """
    require_spark()
    from millrace.batch_jobs.audit import audit as run

    async with shell.open() as m:
        for name in queues:
            await find_queue(m, name)
        names = [split_name(name) for name in queues] or [
            (space, name) for space in await m.spaces() for name in await m.queues(space=space)
        ]

    def work(site: JobContext) -> list[QueueAudit]:
        return [run(site, site.m.find(name, space=space)) for space, name in names]

    found = await run_on_spark(shell, "audit", conf, work)
    shell.out.table(
        "audited",
        _COLUMNS,
        [(_fields(one, shard), _texts(one, shard)) for one in found for shard in one.shards],
        empty="there are no queues",
    )
    faults = [f"{_shown(one)}, {fault}" for one in found for fault in one.faults]
    for fault in faults:
        shell.out.note(fault)
    return FATAL if faults else 0


def _shown(one: QueueAudit) -> str:
    return one.queue if one.space == "default" else f"{one.space}/{one.queue}"


def _fields(one: QueueAudit, shard: ShardAudit) -> dict[str, object]:
    rows = shard.rows
    return {
        "queue": _shown(one),
        "shard": shard.shard,
        "retention": one.retention,
        **shard.counts,
        "upto": shard.upto,
        "rows": rows.rows,
        "missing": rows.missing,
        "gaps": rows.gaps,
        "first_gaps": [list(pair) for pair in rows.examples],
        "repeats": rows.repeats,
        "faults": list(shard.faults),
    }


def _texts(one: QueueAudit, shard: ShardAudit) -> list[str]:
    numbers = [shard.counts[name] for name in ("published", "live", *_ENDS)]
    numbers += [shard.rows.rows, shard.rows.gaps, shard.rows.repeats]
    verdict = "wrong" if shard.faults else "balances"
    return [_shown(one), str(shard.shard), *(f"{number:,}" for number in numbers), verdict]


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
    help="File to write. [report.html]",
    default="report.html",
)
@click.option(
    "--sent",
    default="",
    metavar="HEADER",
    help="Header with the time at which a message was made, for latencies.",
)
@CONF
async def report(shell: Shell, queue: str, *, into: Path, sent: str, conf: Pairs) -> None:
    """Write an HTML report of the traffic of QUEUE: rates, sizes, latencies, hot keys and groups.

    It covers a snapshot of the messages still in the queue; messages that workers have settled are
    in the counters only. The report is a single file, without scripts.
    """
    require_spark()
    if not into.parent.is_dir():
        raise ExitError(f"there is no folder {into.parent}", "give another file with --into")
    from millrace.batch_jobs.report import report as run
    from millrace.batch_jobs.report import to_html

    async with shell.open() as m:
        shown = display_name(await find_queue(m, queue))
    space, rest = split_name(queue)

    def work(site: JobContext) -> TrafficReport:
        found = run(site, site.m.find(rest, space=space), sent=sent)
        into.write_text(to_html(found), encoding="utf-8")
        return found

    found = await run_on_spark(shell, "report", conf, work)
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
        "reported", fields, f"wrote {into}: {plural(found.messages, 'message')} of {shown}"
    )


@verb(
    "redrive",
    examples="""
        millrace job redrive mail --to other --dry-run
        millrace job redrive mail --to other --sql "SELECT shard, seq, hex(value) value FROM input"
        millrace job redrive mail --to other --python mend.py:mend
    """,
)
@click.argument("queue")
@click.option(
    "--to", default="", metavar="QUEUE", help="Target queue. [where each letter came from]"
)
@click.option(
    "--sql",
    default="",
    metavar="QUERY",
    help="Query over `input` that returns the changed letters.",
)
@click.option(
    "--python",
    default="",
    metavar="FILE:FUNCTION",
    help="Function from DataFrame to DataFrame, instead of --sql.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print some letters before and after the change; move nothing."
)
@CONF
async def redrive(
    shell: Shell, queue: str, *, to: str, sql: str, python: str, dry_run: bool, conf: Pairs
) -> None:
    """Move the dead letters in QUEUE back, changed by a query or a function, each exactly once.

    Letters have the columns shard, seq, key, value, headers, timestamp, dead_queue, dead_reason,
    dead_deliveries and dead_failures. The result must keep shard and seq, and without --to also
    dead_queue; a letter without a result stays in QUEUE. The job may be interrupted: the same call
    moves the rest.
    """
    require_spark()
    from millrace.batch_jobs.redrive import LetterTransform, check_transform, try_transform
    from millrace.batch_jobs.redrive import redrive as run

    async with shell.open() as m:
        found = await find_queue(m, queue)
        shown = display_name(found)
        if to and (await find_queue(m, to)).shards.ids == found.shards.ids:
            raise ExitError(f"{shown} cannot be redriven to itself", "name another queue with --to")
    space, rest = split_name(queue)
    change = LetterTransform(to="/".join(split_name(to)) if to else "", sql=sql, python=python)
    check_transform(change)

    def trying(site: JobContext) -> DryRun:
        return try_transform(site, site.m.find(rest, space=space), change)

    def moving(site: JobContext) -> RedriveResult:
        return run(site, site.m.find(rest, space=space), change)

    if dry_run:
        tried = await run_on_spark(shell, "redrive", conf, trying)
        for kind, rows in (("before", tried.before), ("after", tried.after)):
            for row in rows:
                fields = _said(row)
                shell.out.line(kind, fields, f"{kind:6}  {json.dumps(fields)}")
        done = tried.redriven
    else:
        done = await run_on_spark(shell, "redrive", conf, moving)
    moved = f"{plural(done.letters, 'letter')} as {plural(done.published, 'message')}"
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
            f"{plural(done.aimless, 'message')} had no target: dead_queue is unknown; "
            "--to gives one for all"
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


for _verb in (load, export, audit, report, redrive):
    job.add_command(_verb)
