"""`millrace job`: ready jobs on Spark, one module each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import click

from millrace.cli.verb import epilog
from millrace.cli.verbs import Home, LateVerbs

_COMMANDS = "millrace.cli.commands"


class Jobs(LateVerbs):
    """All jobs."""

    homes: ClassVar[Mapping[str, Home]] = {
        "load": Home(f"{_COMMANDS}.job_load", "load", "Load files or a table into a queue."),
        "export": Home(f"{_COMMANDS}.job_export", "export", "Bring a queue into files or a table."),
        "audit": Home(f"{_COMMANDS}.job_audit", "audit", "Count rows, and compare the counters."),
        "report": Home(f"{_COMMANDS}.job_report", "report", "Write a page about the traffic."),
        "redrive": Home(f"{_COMMANDS}.job_redrive", "redrive", "Move dead letters, changed."),
    }


@click.group(
    cls=Jobs,
    epilog=epilog("""
        millrace job load orders orders.csv --name first --key id
        millrace job audit orders
    """),
)
def job() -> None:
    """Work on whole queues with Spark: for millions of messages and more.

    Needs millrace[spark] and Java; docs/guide/spark-tuning.md has what Spark starts with. A folder
    is shared with Spark's processes while a job runs. The guide has a page on jobs.
    """
