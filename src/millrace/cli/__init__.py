"""The command line: one module for each verb or family of verbs.

It needs the extra `cli`; without it, the program ends with an error that names the extra.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program `millrace`, and end the process with its exit code."""
    try:
        from millrace.cli.program import prepare, program

        prepare()
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(
            f"Error: the command line needs {error.name}, which is not installed\n"
            "Hint: pip install 'millrace[cli]'"
        )
    program(prog_name="millrace")
