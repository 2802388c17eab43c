"""A function that changes dead letters."""

from __future__ import annotations

from pyspark.sql import DataFrame


def mend(letters: DataFrame) -> DataFrame:
    """Say everything louder."""
    return letters.selectExpr(
        "shard", "seq", "dead_queue", "key", "upper(cast(value AS string)) value", "headers"
    )


def wrong(letters: DataFrame) -> int:
    """No DataFrame."""
    return len(letters.columns)
