"""The program `millrace`: its verbs, one module each, imported when they are called.

A new verb is a module in `millrace.cli.commands` and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import click

from millrace import __version__
from millrace.cli.given import Given
from millrace.cli.verbs import Home, LateVerbs

_COMMANDS = "millrace.cli.commands"


class Program(LateVerbs):
    """All verbs, in the order in which one meets them."""

    homes: ClassVar[Mapping[str, Home]] = {
        "demo": Home(f"{_COMMANDS}.demo", "demo", "Make a folder with sample data to play with."),
        "serve": Home(f"{_COMMANDS}.serve", "serve", "Serve the queues over HTTP."),
        "queue": Home(f"{_COMMANDS}.queue", "queue", "List, make, show, change or end queues."),
        "topic": Home(f"{_COMMANDS}.topic", "topic", "Hand messages on to many queues."),
        "publish": Home(f"{_COMMANDS}.publish", "publish", "Publish a message, or one per line."),
        "lease": Home(f"{_COMMANDS}.lease", "lease", "Lease messages; print receipts and bodies."),
        "settle": Home(f"{_COMMANDS}.receipts", "settle", "The work is done: end messages."),
        "release": Home(f"{_COMMANDS}.receipts", "release", "Give leased messages back."),
        "discard": Home(f"{_COMMANDS}.receipts", "discard", "Make dead letters of messages."),
        "extend": Home(f"{_COMMANDS}.receipts", "extend", "Hold leased messages for longer."),
        "work": Home(f"{_COMMANDS}.work", "work", "Run a command for each message."),
        "rewind": Home(f"{_COMMANDS}.rewind", "rewind", "Have workers work a log again."),
        "redrive": Home(f"{_COMMANDS}.redrive", "redrive", "Move dead letters back."),
        "peek": Home(f"{_COMMANDS}.peek", "peek", "Look at messages without leasing them."),
        "get": Home(f"{_COMMANDS}.get", "get", "Show one message, whole."),
        "explain": Home(f"{_COMMANDS}.explain", "explain", "Say where a message stands, and why."),
        "follow": Home(f"{_COMMANDS}.follow", "follow", "Read a queue's changes as they come."),
        "pipeline": Home(
            f"{_COMMANDS}.pipeline", "pipeline", "Carry a queue through steps into sinks."
        ),
        "job": Home(f"{_COMMANDS}.job", "job", "Work on whole queues with Spark."),
        "cursor": Home(f"{_COMMANDS}.cursor", "cursor", "List, reset or delete cursors."),
        "sql": Home(f"{_COMMANDS}.sql", "sql", "Ask questions in SQL; queues are tables."),
        "top": Home(f"{_COMMANDS}.top", "top", "Watch what the queues do."),
        "health": Home(f"{_COMMANDS}.health", "health", "Say whether all is well with the data."),
        "backup": Home(f"{_COMMANDS}.backup", "backup", "Make a backup of a folder."),
        "restore": Home(f"{_COMMANDS}.restore", "restore", "Make a folder of a backup."),
        "verify": Home(f"{_COMMANDS}.verify", "verify", "Read a backup, and compare it."),
        "repair": Home(f"{_COMMANDS}.repair", "repair", "Open a quarantined queue again."),
        "user": Home(f"{_COMMANDS}.user", "user", "Say who may do what on a server."),
        "token": Home(f"{_COMMANDS}.token", "token", "Make or revoke what users are known by."),
        "key": Home(f"{_COMMANDS}.key", "key", "Make or revoke keys that sign requests."),
        "context": Home(f"{_COMMANDS}.context", "context", "Name folders and servers."),
        "bench": Home(f"{_COMMANDS}.bench", "bench", "Measure roughly how fast it is here."),
        "dump": Home("millrace.cli.dump", "dump", "Show what a folder holds, as it lies on disk."),
        "check": Home("millrace.cli.check", "check", "Verify a folder, without changing it."),
    }


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  millrace demo                 sample data to play with
  millrace queue list           which queues are there
  millrace peek orders          what lies in one of them
  millrace publish --help       every verb explains itself

\b
Exit codes: 0 done, 1 refused, 2 usage, 3 in use or full (try again), 4 damaged;
dump and check have their own.
""",
)
@click.option(
    "--data",
    metavar="PATH|URL",
    help="The folder with the queues, or the address of a server; each verb takes it, too, but "
    "dump, check and those of backups, which are given paths. [MILLRACE_URL, MILLRACE_DATA, the "
    "context in use, or ./millrace-data]",
)
@click.option("--context", metavar="NAME", help="The folder or server of `millrace context`.")
@click.version_option(__version__, prog_name="millrace", message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context, data: str | None, context: str | None) -> None:
    """Millrace, a durable message queue: its queues from the command line.

    A folder belongs to one process at a time; each verb takes it, does its work, and lets it go.
    Of a folder that is served, each verb asks the server. A server anywhere is named by its
    address.
    """
    ctx.obj = Given(data, context)
