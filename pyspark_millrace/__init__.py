"""Has Spark find the data source `millrace` by itself."""

from __future__ import annotations

from millrace.spark.source import MillraceSource as DefaultSource

__all__ = ["DefaultSource"]
