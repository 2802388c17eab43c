"""Steps in Python, for the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def loud(parsed: DataFrame) -> DataFrame:
    return parsed.withColumn("word", F.upper("word"))


def number(parsed: DataFrame) -> int:
    return 1


def frail(parsed: DataFrame) -> DataFrame:
    """The worker dies that finds a file in the folder which a row names, and takes it along."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for folder in map(str, batch["word"].to_pylist()):
                for file in Path(folder).iterdir():
                    file.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return parsed.mapInArrow(pass_on, parsed.schema)


def amounts(source: DataFrame) -> DataFrame:
    body = F.col("value").cast("string")
    return source.select("op", F.get_json_object(body, "$.amount").alias("amount")).where("true")


def by_partition(source: DataFrame) -> DataFrame:
    return source.select("seq").mapInArrow(lambda batches: batches, "amount bigint")


def kept(source: DataFrame) -> DataFrame:
    """A function over whole partitions, which keeps the columns of the message."""
    columns = "shard int, seq bigint, key binary, value binary, "
    columns += "headers array<struct<key:string,value:binary>>"
    passed = source.select("shard", "seq", "key", "value", "headers").mapInArrow(
        lambda batches: batches, columns
    )
    return passed.withColumn("amount", F.get_json_object(F.col("value").cast("string"), "$.amount"))
