"""The command line: one module for each verb."""

from millrace.cli.program import main

__all__ = ["main"]
