"""A real Spark, one for all tests of this folder, and queues that its processes share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace import sync
from millrace.spark.session import session
from tests.server.server_process import Process


@pytest.fixture(scope="session")
def spark(
    starts_processes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """Two cores, little memory, each task tried twice."""
    folder = tmp_path_factory.mktemp("spark")
    # Workers import what is tested here, wherever else it is installed.
    root = Path(__file__).resolve().parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = {
        "spark.master": "local[2,2]",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "OFF",
    }
    found = session("millrace-tests", **conf)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[sync.Millrace, Path]]:
    """Queues that the processes of Spark reach by their folder."""
    folder = tmp_path_factory.mktemp("shared")
    with sync.open(folder) as m, sync.share(m):
        yield m, folder


@pytest.fixture(scope="session")
def server(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server."""
    with Process(tmp_path_factory.mktemp("server") / "data") as process:
        yield process
