"""`millrace pipeline`: check, plan, run and judge declared pipelines."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from millrace.cli.shell import Shell
from millrace.cli.stopping import Stop
from millrace.cli.target import Server
from millrace.cli.verb import epilog, verb
from millrace.cli.verbs import Verbs

if TYPE_CHECKING:
    from millrace.pipeline import Pipeline, Progress, Setting, Where

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
    """Check the declaration FILE, without running anything."""
    found = _read(file)
    shell.out.line(
        "valid",
        {"pipeline": found.name, "steps": len(found.steps), "sinks": len(found.sinks)},
        f"{found.name}: {len(found.steps)} steps, {len(found.sinks)} sinks; nothing is wrong with "
        "the declaration itself",
    )


@verb("run", examples="millrace pipeline run orders.toml --once")
@_FILE
@click.option("--once", is_flag=True, help="End when all that is there was carried.")
async def run(shell: Shell, file: Path, *, once: bool) -> None:
    """Carry rows as they come, until Ctrl-C; what was begun is finished."""
    from millrace.pipeline import run_pipeline

    found = _read(file)
    ending = Event()

    def tell(progress: Progress) -> None:
        shell.out.line("progress", _fields(progress), _line(progress))

    async with Stop() as stop:
        work = asyncio.create_task(
            asyncio.to_thread(
                run_pipeline, found, _setting(shell), once=once, stop=ending, tell=tell
            )
        )
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        ending.set()
        asked.cancel()
        await work


def _read(file: Path) -> Pipeline:
    from millrace.pipeline import read_pipeline

    return read_pipeline(file, os.environ)


def _setting(shell: Shell) -> Setting:
    from millrace.pipeline import Setting

    return Setting(where=where_meant(shell), environ=dict(os.environ))


def where_meant(shell: Shell) -> Where:
    """The folder or server of this call."""
    from millrace.pipeline import Where

    target = shell.target
    if isinstance(target, Server):
        certificates = str(target.certificates) if target.certificates else None
        return Where(target.url, "", target.token, certificates)
    return Where(path=str(target))


def _fields(progress: Progress) -> dict[str, object]:
    return {
        "pipeline": progress.pipeline,
        "rows": progress.rows,
        "seconds": round(progress.seconds, 3),
        "lag": progress.lag,
        "sinks": {sink.name: sink.rows for sink in progress.sinks},
    }


def _line(progress: Progress) -> str:
    rate = progress.rows / progress.seconds if progress.seconds else 0
    sinks = ", ".join(f"{sink.name} {sink.rows:,}" for sink in progress.sinks)
    return f"{progress.rows:,} rows, {rate:,.0f}/s; {sinks}; {progress.lag:,} wait"


for _verb in (validate, run):
    pipeline.add_command(_verb)
