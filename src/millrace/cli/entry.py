"""How the process begins: what a shell expects of any program."""

from __future__ import annotations

import io
import sys

# Tables need it. It is imported later, where it is used; that it is there is asked here.
from importlib.util import find_spec

from millrace.cli.program import program


def run() -> None:
    """Run the program with the arguments of the process."""
    if find_spec("rich") is None:
        raise ModuleNotFoundError("there is no module rich", name="rich")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal's encoding does not have is shown by its number.
            stream.reconfigure(errors="backslashreplace")
    program(prog_name="millrace")
