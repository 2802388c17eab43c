"""`millrace pipeline`: validate, plan, run and verify declared pipelines."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from millrace.cli.command_group import CommandGroup
from millrace.cli.exit_errors import REFUSED, USAGE, ExitError
from millrace.cli.formatting import plural
from millrace.cli.parameter_types import START
from millrace.cli.printing import Printer, TableColumn
from millrace.cli.shell import Shell
from millrace.cli.shutdown import ShutdownSignal
from millrace.cli.target import pipeline_location
from millrace.cli.verb import epilog, verb

if TYPE_CHECKING:
    from rich.live import Live as RichLive
    from rich.table import Table

    from millrace.pipeline import OnChange, Pipeline, Progress, Setting, SinkStatus


_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group(
    cls=CommandGroup,
    epilog=epilog("""
        millrace pipeline validate orders.toml
        millrace pipeline run orders.toml --once
    """),
)
def pipeline() -> None:
    """Run pipelines: carry messages of a queue through steps into sinks, exactly once.

    FILE is a declaration in TOML; see docs/guide/pipelines.md.
    """


@verb("validate", has_data=False, examples="millrace pipeline validate orders.toml")
@_FILE
async def validate(shell: Shell, file: Path) -> None:
    """Validate the declaration FILE without running it.

    If rows of steps may become dead letters, a local Spark analyzes the steps, to find out whether
    each row can be traced to its message.
    """
    from millrace.pipeline import Setting, check_letters, has_letters

    found = _read(file)
    if has_letters(found):
        if find_spec("pyspark") is None:
            shell.out.note("its steps were not checked, since Spark is not installed")
        else:
            setting = Setting(say=shell.out.aside)
            await asyncio.to_thread(check_letters, found, setting)
    shell.out.line(
        "valid",
        {"pipeline": found.name, "steps": len(found.steps), "sinks": len(found.sinks)},
        f"{found.name}: {plural(len(found.steps), 'step')}, {plural(len(found.sinks), 'sink')}; "
        "the declaration is valid",
    )


@verb("plan", examples="millrace pipeline plan orders.toml")
@_FILE
async def plan(shell: Shell, file: Path) -> None:
    """Show what would run: the columns of each step, and the position of each sink."""
    from millrace.pipeline import plan_pipeline

    found = await asyncio.to_thread(plan_pipeline, _read(file), _setting(shell))
    how = "as a stateful Spark stream" if found.is_stateful else "span by span"
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
        [TableColumn("VIEW"), TableColumn("COLUMNS", is_long=True)],
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
@click.option("--once", is_flag=True, help="Exit when all available rows are carried.")
@click.option(
    "--on-change",
    type=click.Choice(["resume", "backfill", "shadow"]),
    help="For sinks whose declaration changed since the last run: continue with new rows, rewrite "
    "all rows by key, or fill a second place beside the first.",
)
async def run(shell: Shell, file: Path, *, once: bool, on_change: OnChange | None) -> None:
    """Carry rows as they arrive, until Ctrl-C; the current span is finished first."""
    from millrace.pipeline import run_pipeline

    found, setting = _read(file), _setting(shell)
    with LiveProgress(shell.out) as live:
        async with ShutdownSignal() as stop:
            await stop.thread(
                lambda ending: run_pipeline(
                    found, setting, once=once, on_change=on_change, stop=ending, tell=live.tell
                )
            )


@verb("status", examples="millrace pipeline status orders.toml")
@_FILE
async def status(shell: Shell, file: Path) -> None:
    """Show the position and lag of each sink, without running anything."""
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
            f"its last run carried {found.before}; `millrace pipeline plan FILE` shows what "
            "the next one would do"
        )


@verb("verify", examples="millrace pipeline verify orders.toml")
@_FILE
async def verify(shell: Shell, file: Path) -> int:
    """Bring all sinks to one position of the queue, then compare them with it.

    A run of the pipeline in another process is fenced off, and ends.
    """
    from millrace.pipeline import verify_pipeline

    results = await asyncio.to_thread(verify_pipeline, _read(file), _setting(shell))
    for result in results:
        judged = "correct" if result.is_right else f"{result.wrong} wrong"
        how = f"{judged}; {plural(result.found, 'row')}, {result.expected:,} expected"
        if result.method != "rows":
            how = f"not compared: {result.why}; {plural(result.found, 'row')}"
        if result.keyless:
            how += f"; {plural(result.keyless, 'row')} without a key cannot be in it"
        if result.keyless_found:
            how += f"; it holds {plural(result.keyless_found, 'row')} without a key"
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
    type=START,
    required=True,
    help="Beginning, end, the first seq to carry again, or a time.",
)
@click.option(
    "--sink", "sinks", multiple=True, metavar="NAME", help="Rewind only this sink; repeatable."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
async def rewind(
    shell: Shell, file: Path, *, to: str | int | datetime, sinks: tuple[str, ...], yes: bool
) -> None:
    """Move sinks back to a position; the next run carries the messages after it again.

    Sinks with a key replace the same rows; append-only sinks will have them twice.
    """
    from millrace.pipeline import adding_sinks, rewind_pipeline

    found = _read(file)
    named = [sink.name for sink in found.sinks]
    for name in sinks:
        if name not in named:
            raise ExitError(f"{file} has no sink {name!r}", f"there are {', '.join(named)}")
    if not yes:
        adding = adding_sinks(found, os.environ, sinks)
        twice = f" {', '.join(adding)} will have rows twice." if adding else ""
        question = f"Rewind {', '.join(sinks) or 'all sinks'} of {found.name} to {to}?{twice}"
        if shell.out.is_json or not click.confirm(question, err=True):
            raise ExitError(
                "nothing was rewound", "give --yes", exit_code=USAGE, code="not_confirmed"
            )
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

    return Setting(where=pipeline_location(shell.target), say=shell.out.aside)


LAG_COLUMNS = [
    TableColumn("SINK", is_long=True),
    TableColumn("FROM"),
    TableColumn("KIND"),
    TableColumn("METHOD"),
    TableColumn("AT", is_long=True),
    TableColumn("LAG", is_number=True),
    TableColumn("BYTES", is_number=True),
    TableColumn("SECONDS", is_number=True),
]


def lag_fields(sink: SinkStatus) -> dict[str, object]:
    """Return the status of a sink for JSON."""
    lag = sink.lag
    return {
        "sink": sink.name,
        "from": sink.rows,
        "kind": sink.kind,
        "method": sink.method,
        "boundary": [list(place.seqs) for place in sink.boundary.places] if sink.boundary else None,
        "lag_rows": None if lag is None else lag.rows,
        "lag_bytes": None if lag is None else lag.bytes,
        "lag_seconds": None if lag is None else round(lag.seconds, 3),
        "why": sink.why,
        "is_asked": sink.is_asked,
    }


def lag_texts(sink: SinkStatus) -> tuple[str, ...]:
    """Return the status of a sink as texts of a table row."""
    at = "nothing yet"
    if sink.boundary is not None:
        at = " ".join("+".join(map(str, place.seqs)) for place in sink.boundary.places)
    lag = sink.lag
    behind = ("?", "?", sink.why or "?")
    if lag is not None:
        behind = (f"{lag.rows:,}", f"{lag.bytes:,}", f"{lag.seconds:,.1f}")
    if sink.boundary is not None and not sink.is_asked:
        at += " at least"
    return (sink.name, sink.rows, sink.kind, sink.method, at, *behind)


def progress_fields(progress: Progress) -> dict[str, object]:
    """Return the progress of a run for JSON."""
    return {
        "pipeline": progress.pipeline,
        "rows": progress.rows,
        "seconds": round(progress.seconds, 3),
        "lag": progress.lag,
        "sinks": {sink.name: sink.rows for sink in progress.sinks},
    }


def progress_line(progress: Progress) -> str:
    """Return the progress of a run as one line of text."""
    rate = progress.rows / progress.seconds if progress.seconds else 0
    sinks = ", ".join(f"{sink.name} {sink.rows:,}" for sink in progress.sinks)
    return f"{plural(progress.rows, 'row')}, {rate:,.0f}/s; {sinks}; {progress.lag:,} wait"


class LiveProgress:
    """Shows progress as a live table on a terminal, else as lines."""

    def __init__(self, out: Printer) -> None:
        self._out = out
        self._live: RichLive | None = None
        self._rows = 0
        self._began = time.monotonic()

    def __enter__(self) -> LiveProgress:
        if not self._out.is_json and sys.stdout.isatty():
            from rich.live import Live as RichLive

            self._live = RichLive(refresh_per_second=4)
            self._live.start()
        return self

    def tell(self, progress: Progress) -> None:
        """Show the progress of the current span."""
        self._rows += progress.rows
        if self._live is None:
            self._out.line("progress", progress_fields(progress), progress_line(progress))
        else:
            self._live.update(self._table(progress))

    def _table(self, progress: Progress) -> Table:
        from rich.table import Table

        passed = time.monotonic() - self._began
        now = progress.rows / progress.seconds if progress.seconds else 0
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("PIPELINE", "ROWS", "ROWS/S", "OVERALL/S", "LAG"):
            table.add_column(heading, justify="left" if heading == "PIPELINE" else "right")
        table.add_row(
            progress.pipeline,
            f"{self._rows:,}",
            f"{now:,.0f}",
            f"{self._rows / passed:,.0f}",
            f"{progress.lag:,}",
        )
        for sink in progress.sinks:
            table.add_row(f"  {sink.name}", f"{sink.rows:,}", "", "", "")
        return table

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()


for _verb in (validate, plan, run, status, verify, rewind):
    pipeline.add_command(_verb)
