"""A real Spark, one for all tests of this folder, and queues that its processes share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace import sync


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, little memory, no page in the browser."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    manager = (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    )
    session = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.checkpointFileManagerClass", manager)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[sync.Millrace, Path]]:
    """Queues that the processes of Spark reach by their folder."""
    folder = tmp_path_factory.mktemp("shared")
    with sync.open(folder) as m, sync.share(m):
        yield m, folder
