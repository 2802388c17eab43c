"""`millrace pipeline`: check, plan, run and judge declared pipelines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeVar

import click

from millrace.cli.ending import REFUSED, USAGE, Ended
from millrace.cli.kinds import PLACE
from millrace.cli.pipeline_shown import LAG_COLUMNS, Live, lag_fields, lag_texts
from millrace.cli.printing import Column
from millrace.cli.shell import Shell
from millrace.cli.stopping import Stop
from millrace.cli.target import Server
from millrace.cli.verb import epilog, verb
from millrace.cli.verbs import Verbs
from millrace.cli.words import counted

if TYPE_CHECKING:
    from millrace.pipeline import OnChange, Pipeline, Setting, Where

T = TypeVar("T")

_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group(
    cls=Verbs,
    epilog=epilog("""
        millrace pipeline validate orders.toml
        millrace pipeline run orders.toml --once
    """),
)
def pipeline() -> None:
    """Carry the rows of a queue through steps into sinks, exactly once.

    FILE is a declaration in TOML; the guide has a page on pipelines.
    """


@verb("validate", has_data=False, examples="millrace pipeline validate orders.toml")
@_FILE
async def validate(shell: Shell, file: Path) -> None:
    """Check the declaration FILE, without running anything.

    Where rows of steps may become dead letters, a Spark on this machine reads the steps: it has to
    be known which message a row was made of.
    """
    from millrace.pipeline import Setting, check_letters, has_letters

    found = _read(file)
    if has_letters(found):
        if find_spec("pyspark") is None:
            shell.out.note("its steps were not looked at, since Spark is not installed")
        else:
            setting = Setting(say=shell.out.aside)
            await asyncio.to_thread(check_letters, found, setting)
    shell.out.line(
        "valid",
        {"pipeline": found.name, "steps": len(found.steps), "sinks": len(found.sinks)},
        f"{found.name}: {counted(len(found.steps), 'step')}, {counted(len(found.sinks), 'sink')}; "
        "nothing is wrong with the declaration itself",
    )


@verb("plan", examples="millrace pipeline plan orders.toml")
@_FILE
async def plan(shell: Shell, file: Path) -> None:
    """Say what would run: the columns of each step, and where each sink stands."""
    from millrace.pipeline import plan_pipeline

    found = await asyncio.to_thread(plan_pipeline, _read(file), _setting(shell))
    how = "as a stream of Spark's, which keeps a state" if found.is_stateful else "span by span"
    shell.out.line(
        "plan",
        {
            "pipeline": found.pipeline,
            "queue": found.queue,
            "is_stateful": found.is_stateful,
            "changed": found.changed,
        },
        f"{found.pipeline} carries {found.queue}, {how}",
    )
    shell.out.table(
        "view",
        [Column("VIEW"), Column("COLUMNS", is_long=True)],
        [
            (
                {"view": view.name, "columns": dict(view.columns)},
                (view.name, ", ".join(f"{name} {kind}" for name, kind in view.columns)),
            )
            for view in found.views
        ],
        empty="",
    )
    shell.out.table(
        "sink",
        LAG_COLUMNS,
        [(lag_fields(sink), lag_texts(sink)) for sink in found.sinks],
        empty="",
    )
    if found.changed:
        shell.out.note(found.changed)


@verb(
    "run",
    examples="""
        millrace pipeline run orders.toml --once
        millrace pipeline run orders.toml --once --json
    """,
)
@_FILE
@click.option("--once", is_flag=True, help="End when all that is there was carried.")
@click.option(
    "--on-change",
    type=click.Choice(["resume", "backfill", "shadow"]),
    help="What becomes of sinks whose declaration was changed since the last run: they go on with "
    "new rows, get all rows again by key, or another place is filled beside theirs.",
)
async def run(shell: Shell, file: Path, *, once: bool, on_change: OnChange | None) -> None:
    """Carry rows as they come, until Ctrl-C; what was begun is finished."""
    from millrace.pipeline import run_pipeline

    found, setting, ending = _read(file), _setting(shell), Event()
    with Live(shell.out) as live:
        await _until_stopped(
            ending,
            lambda: run_pipeline(
                found, setting, once=once, on_change=on_change, stop=ending, tell=live.tell
            ),
        )


async def _until_stopped(ending: Event, work: Callable[[], T]) -> T:
    async with Stop() as stop:
        task = asyncio.create_task(asyncio.to_thread(work))
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        ending.set()
        asked.cancel()
        return await task


@verb("status", examples="millrace pipeline status orders.toml")
@_FILE
async def status(shell: Shell, file: Path) -> None:
    """Say how far the sinks are, and how far behind, without running anything."""
    from millrace.pipeline import pipeline_status

    found = await asyncio.to_thread(pipeline_status, _read(file), _setting(shell))
    record = found.record
    shell.out.line(
        "pipeline",
        {
            "pipeline": record.pipeline,
            "queue": f"{record.space}/{record.queue}",
            "last_queue": found.before or f"{record.space}/{record.queue}",
            "state": record.state,
            "message": record.message,
            "host": record.host,
            "pid": record.pid,
            "told_ms": record.told_ms,
        },
        f"{record.pipeline} carries {record.space}/{record.queue}: {record.state}"
        + (f", {record.message}" if record.message else ""),
    )
    shell.out.table(
        "sink",
        LAG_COLUMNS,
        [(lag_fields(sink), lag_texts(sink)) for sink in found.sinks],
        empty="it has no sinks",
    )
    if found.before:
        shell.out.note(
            f"its last run has carried {found.before}; `millrace pipeline plan FILE` says what "
            "the next one would do"
        )


@verb("verify", examples="millrace pipeline verify orders.toml")
@_FILE
async def verify(shell: Shell, file: Path) -> int:
    """Compare the sinks with the queue, at one boundary that they are brought to first.

    A run of the pipeline that goes on elsewhere is overtaken, and ends.
    """
    from millrace.pipeline import verify_pipeline

    results = await asyncio.to_thread(verify_pipeline, _read(file), _setting(shell))
    for result in results:
        judged = "right" if result.is_right else f"{result.wrong} wrong"
        how = f"{judged}; {counted(result.found, 'row')}, {result.expected:,} expected"
        if result.method != "rows":
            how = f"not compared: {result.why}; {counted(result.found, 'row')}"
        if result.keyless:
            how += f"; {counted(result.keyless, 'row')} without a key cannot be in it"
        if result.keyless_found:
            how += f"; it holds {counted(result.keyless_found, 'row')} without a key"
        shell.out.line(
            "verified",
            {
                "sink": result.sink,
                "method": result.method,
                "is_right": result.is_right,
                "expected": result.expected,
                "found": result.found,
                "wrong": result.wrong,
                "keyless": result.keyless,
                "keyless_found": result.keyless_found,
                "why": result.why,
                "differences": [{"key": one.key, "what": one.what} for one in result.differences],
            },
            f"{result.sink}: {how}",
        )
        for one in result.differences:
            shell.out.note(f"  {one.key}: {one.what}")
    return 0 if all(result.is_right for result in results) else REFUSED


@verb("rewind", examples="millrace pipeline rewind orders.toml --to beginning --yes")
@_FILE
@click.option(
    "--to",
    type=PLACE,
    required=True,
    help="beginning, end, the first seq that is carried again, or a time.",
)
@click.option("--sink", "sinks", multiple=True, metavar="NAME", help="Only this one; may repeat.")
@click.option("--yes", is_flag=True, help="Do not ask.")
async def rewind(
    shell: Shell, file: Path, *, to: str | int | datetime, sinks: tuple[str, ...], yes: bool
) -> None:
    """Have sinks begin anew at a place; the next run carries what comes after it once more.

    Sinks with a key take the same rows again; sinks that only add rows will have them twice.
    """
    from millrace.pipeline import adding_sinks, rewind_pipeline

    found = _read(file)
    named = [sink.name for sink in found.sinks]
    for name in sinks:
        if name not in named:
            raise Ended(f"{file} has no sink {name!r}", f"there are {', '.join(named)}")
    if not yes:
        adding = adding_sinks(found, os.environ, sinks)
        twice = f" {', '.join(adding)} will have rows twice." if adding else ""
        question = f"Rewind {', '.join(sinks) or 'all sinks'} of {found.name} to {to}?{twice}"
        if shell.out.is_json or not click.confirm(question, err=True):
            raise Ended("nothing was rewound", "say --yes", exit_code=USAGE, code="not_confirmed")
    record = await asyncio.to_thread(rewind_pipeline, found, _setting(shell), to, sinks)
    meant = sinks or [sink.name for sink in found.sinks]
    names = [sink.name for sink in record.sinks if sink.name in meant]
    shell.out.line(
        "rewound",
        {"pipeline": found.name, "sinks": names},
        f"{', '.join(names)} will be filled again from {to} on, by the next run",
    )


def _read(file: Path) -> Pipeline:
    from millrace.pipeline import read_pipeline

    return read_pipeline(file)


def _setting(shell: Shell) -> Setting:
    from millrace.pipeline import Setting

    return Setting(where=where_meant(shell), say=shell.out.aside)


def where_meant(shell: Shell) -> Where:
    """The folder or server of this call."""
    from millrace.pipeline import Where

    target = shell.target
    if isinstance(target, Server):
        certificates = str(target.certificates) if target.certificates else None
        return Where(target.url, "", target.token, certificates)
    return Where(path=str(target))


for _verb in (validate, plan, run, status, verify, rewind):
    pipeline.add_command(_verb)
