"""Steps in Python, for the tests."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def loud(parsed: DataFrame) -> DataFrame:
    return parsed.withColumn("word", F.upper("word"))


def number(parsed: DataFrame) -> int:
    return 1
