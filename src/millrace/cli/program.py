"""The program `millrace`: its verbs, one module each, imported when they are called.

A new verb is a module in `millrace.cli.commands` and a line here.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import ClassVar

import click

from millrace import __version__
from millrace.cli.command_group import LazyCommand, LazyCommandGroup
from millrace.lazy_pandas import spare_pandas

_COMMANDS = "millrace.cli.commands"


class Program(LazyCommandGroup):
    """The root group: all verbs, in the order in which users meet them."""

    homes: ClassVar[Mapping[str, LazyCommand]] = {
        "demo": LazyCommand(f"{_COMMANDS}.demo", "demo", "Create a folder with sample data."),
        "serve": LazyCommand(
            f"{_COMMANDS}.serve", "serve", "Serve the queues of a folder over HTTP."
        ),
        "queue": LazyCommand(
            f"{_COMMANDS}.queue", "queue", "List, create, configure, purge or delete queues."
        ),
        "topic": LazyCommand(
            f"{_COMMANDS}.topic", "topic", "Create topics, subscribe queues, and publish."
        ),
        "publish": LazyCommand(
            f"{_COMMANDS}.publish", "publish", "Publish one message, or one per line of input."
        ),
        "lease": LazyCommand(
            f"{_COMMANDS}.lease", "lease", "Lease messages; print receipts and bodies."
        ),
        "settle": LazyCommand(
            f"{_COMMANDS}.lease", "settle", "Acknowledge leased messages: they are done."
        ),
        "release": LazyCommand(
            f"{_COMMANDS}.lease", "release", "Return leased messages to the queue."
        ),
        "discard": LazyCommand(f"{_COMMANDS}.lease", "discard", "Dead-letter leased messages."),
        "extend": LazyCommand(f"{_COMMANDS}.lease", "extend", "Extend the leases of messages."),
        "work": LazyCommand(f"{_COMMANDS}.work", "work", "Run a command for each message."),
        "rewind": LazyCommand(f"{_COMMANDS}.redrive", "rewind", "Redeliver the messages of a log."),
        "redrive": LazyCommand(
            f"{_COMMANDS}.redrive", "redrive", "Move dead letters back to their queues."
        ),
        "peek": LazyCommand(f"{_COMMANDS}.messages", "peek", "Show messages without leasing them."),
        "get": LazyCommand(f"{_COMMANDS}.messages", "get", "Show one message in full."),
        "explain": LazyCommand(
            f"{_COMMANDS}.messages", "explain", "Show the delivery state of a message."
        ),
        "follow": LazyCommand(
            f"{_COMMANDS}.follow", "follow", "Print a queue's messages as they arrive."
        ),
        "pipeline": LazyCommand(
            f"{_COMMANDS}.pipeline", "pipeline", "Run declared pipelines from queues to sinks."
        ),
        "job": LazyCommand(
            f"{_COMMANDS}.job", "job", "Run batch jobs over whole queues with Spark."
        ),
        "cursor": LazyCommand(f"{_COMMANDS}.cursor", "cursor", "List, reset or delete cursors."),
        "sql": LazyCommand(f"{_COMMANDS}.sql", "sql", "Query queues with SQL."),
        "top": LazyCommand(f"{_COMMANDS}.top", "top", "Show live figures of all queues."),
        "health": LazyCommand(
            f"{_COMMANDS}.health", "health", "Check the health of a folder or server."
        ),
        "backup": LazyCommand(f"{_COMMANDS}.backup", "backup", "Create a backup of a folder."),
        "restore": LazyCommand(
            f"{_COMMANDS}.backup", "restore", "Restore a backup into a new folder."
        ),
        "verify": LazyCommand(f"{_COMMANDS}.backup", "verify", "Verify a backup."),
        "repair": LazyCommand(f"{_COMMANDS}.health", "repair", "Reopen a quarantined queue."),
        "user": LazyCommand(
            f"{_COMMANDS}.user", "user", "Manage users, access rules and quotas of a server."
        ),
        "token": LazyCommand(f"{_COMMANDS}.token", "token", "Create or revoke access tokens."),
        "key": LazyCommand(
            f"{_COMMANDS}.key", "key", "Create or revoke access keys for SQS and SNS."
        ),
        "context": LazyCommand(
            f"{_COMMANDS}.context", "context", "Manage names for folders and servers."
        ),
        "bench": LazyCommand(
            f"{_COMMANDS}.bench", "bench", "Measure the throughput of this machine."
        ),
        "dump": LazyCommand(
            "millrace.cli.dump.command", "dump", "Print the contents of a folder, read offline."
        ),
        "check": LazyCommand(
            "millrace.cli.check.command", "check", "Verify a folder without changing it."
        ),
    }


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  millrace demo                 create sample data
  millrace queue list           list the queues
  millrace peek orders          show messages of one
  millrace publish --help       every verb has a help text

\b
Exit codes: 0 done, 1 refused, 2 usage, 3 in use or full (retry later), 4 damaged;
dump and check have their own.
""",
)
@click.option(
    "--data",
    metavar="PATH|URL",
    help="Folder with the queues, or URL of a server. Verbs take this option, too, except dump, "
    "check and those of backups, which take paths. [MILLRACE_URL, MILLRACE_DATA, the context in "
    "use, or ./millrace-data]",
)
@click.option("--context", metavar="NAME", help="Name of a folder or server in `millrace context`.")
@click.version_option(__version__, prog_name="millrace", message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context, data: str | None, context: str | None) -> None:
    """Millrace, a durable message queue.

    A folder can be open in one process at a time: each verb opens it, does its work and closes it.
    If a server has the folder open, the verb goes through the server. Remote servers are given by
    URL.
    """
    ctx.obj = {"data": data, "context": context}


def prepare() -> None:
    """Check dependencies, make the output streams tolerant, and skip importing pandas.

    Raises:
        ModuleNotFoundError: rich is not installed; it is imported only to print a table.
    """
    if find_spec("rich") is None:
        raise ModuleNotFoundError("there is no module rich", name="rich")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal's encoding lacks are printed as escapes.
            stream.reconfigure(errors="backslashreplace")
    spare_pandas()
