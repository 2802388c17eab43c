"""A cluster and a server of Spark Connect run Python of ours, and survive what is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.services.service import wait_until
from tests.services.spark_cluster import Cluster
from tests.services.spark_connect import Connect
from tests.services.spark_home import spark_environment

pytestmark = [pytest.mark.long, pytest.mark.spark]

DRIVER = """
import os, sys
from collections.abc import Iterator
import pyarrow as pa
from pyspark.sql import SparkSession

def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import millrace
    for batch in batches:
        yield pa.record_batch({"place": [os.getcwd()], "rows": [batch.num_rows]})

spark = (
    SparkSession.builder.master(sys.argv[1])
    .config("spark.driver.memory", "512m")
    .config("spark.executor.memory", "512m")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
for _ in range(2):
    table = spark.range(0, 1000, 1, 4).mapInArrow(where, "place string, rows long").toArrow()
    print(len(set(table["place"].to_pylist())), sum(table["rows"].to_pylist()), flush=True)
    sys.stdin.readline()
"""

CLIENT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(spark.version, spark.range(1000).count(), flush=True)
spark.stop()
"""


def test_a_cluster_works_on_after_an_executor_was_killed(cluster: Cluster) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.url],
        env=spark_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stdout.readline().split() == ["2", "1000"]
        first, second = cluster.executors()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: first not in cluster.executors())
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.stdout.readline().split()[1] == "1000"
        assert second in cluster.executors()
        driver.stdin.close()
    assert driver.returncode == 0
    wait_until(lambda: not cluster.executors())


def test_a_worker_comes_back(cluster: Cluster) -> None:
    worker = cluster.workers[0]
    worker.kill()
    worker.start()
    assert worker.port in cluster.master.ports_of_workers()


def test_a_server_of_connect_answers(connect: Connect) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, connect.url],
        env=spark_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split()[1:] == ["1000"], done.stderr
