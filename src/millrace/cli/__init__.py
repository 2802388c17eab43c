"""The command line: one module for each verb.

It needs the extra `cli`; where that is missing, the program says so.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program `millrace`, and end the process with its exit code."""
    try:
        from millrace.cli.entry import prepare, program

        prepare()
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(
            f"Error: the command line needs {error.name}, which is not installed\n"
            "Hint: pip install 'millrace[cli]'"
        )
    program(prog_name="millrace")
