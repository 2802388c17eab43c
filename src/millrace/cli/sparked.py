"""What verbs share that run on Spark: how it is set, and progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from millrace.cli.commands.pipeline import where_meant
from millrace.cli.ending import USAGE, Ended
from millrace.cli.kinds import HEADER
from millrace.cli.progress import Bar
from millrace.cli.shell import Shell

if TYPE_CHECKING:
    from millrace.batch_jobs.site import Site

Pairs = tuple[tuple[str, bytes], ...]

T = TypeVar("T")

CONF = click.option(
    "--conf",
    type=HEADER,
    multiple=True,
    help="A setting of Spark, such as spark.master=spark://host:7077; repeatable.",
)


def need_spark() -> None:
    """See that Spark is installed, before anything of a job is looked at.

    Raises:
        Ended: it is not.
    """
    try:
        import pyspark.sql  # noqa: F401
    except ModuleNotFoundError:
        raise Ended(
            "jobs run on Spark, which is not installed",
            "pip install 'millrace[spark]'",
            exit_code=USAGE,
        ) from None


async def on_spark(shell: Shell, name: str, conf: Pairs, job: Callable[[Site], T]) -> T:
    """What a job comes to, which runs on a thread; its tasks are shown as a bar."""
    from millrace.batch_jobs.site import at_work

    def work() -> T:
        with (
            Bar(name, total=None) as bar,
            at_work(
                name,
                where_meant(shell),
                conf=texts(conf),
                tell=bar.reach,
                say=shell.out.aside,
            ) as site,
        ):
            return job(site)

    return await asyncio.to_thread(work)


def texts(pairs: Pairs) -> dict[str, str]:
    """Pairs that were given as NAME=VALUE."""
    return {name: value.decode(errors="replace") for name, value in pairs}
