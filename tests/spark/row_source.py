"""The source under a name for which Spark finds no class of Java: it makes rows of its batches."""

from __future__ import annotations

from millrace.spark.source import MillraceSource

ROWS = "millrace_rows"


class RowSource(MillraceSource):
    """As every source in Python."""

    @classmethod
    def name(cls) -> str:
        return ROWS
