"""How the process begins: what a shell expects of any program."""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec

from millrace.cli.program import program
from millrace.lazy_pandas import spare_pandas

__all__ = ["prepare", "program"]


def prepare() -> None:
    """See that all is there that is needed, and no more, and that all can be printed.

    Raises:
        ModuleNotFoundError: rich is missing, which is imported only where a table is shown.
    """
    if find_spec("rich") is None:
        raise ModuleNotFoundError("there is no module rich", name="rich")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal's encoding does not have is shown by its number.
            stream.reconfigure(errors="backslashreplace")
    spare_pandas()
