"""`millrace dump`: show what a folder holds, offline and without changing it."""

from millrace.cli.dump.verb import dump

__all__ = ["dump"]
