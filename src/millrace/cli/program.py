"""The program `millrace`: its verbs, one module each."""

from __future__ import annotations

import click

from millrace import __version__
from millrace.cli.check import check
from millrace.cli.dump import dump
from millrace.cli.verbs import Verbs


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  millrace dump data            what a folder holds
  millrace check data           is it whole?
  millrace dump --help          what else can be shown
""",
)
@click.version_option(__version__, prog_name="millrace", message="%(prog)s %(version)s")
def main() -> None:
    """Millrace, a durable message queue: look at its folders, and verify them."""


main.add_command(dump)
main.add_command(check)
