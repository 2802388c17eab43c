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
