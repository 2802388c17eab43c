"""Source and sink on a cluster and through Spark Connect, by programs of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millrace import sync
from tests.server.server_process import Process
from tests.services.spark_cluster import Cluster
from tests.services.spark_connect import Connect
from tests.services.spark_home import spark_environment

# Each starts Spark, some three times, with executors.
pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM = """
import sys
from pyspark.sql import SparkSession

where, url, token, folder = sys.argv[1:]
builder = SparkSession.builder
if where.startswith("sc://"):
    builder = builder.remote(where)
else:
    builder = builder.master(where).config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.memory", "512m").config("spark.ui.enabled", "false")
    builder = builder.config("spark.executor.memory", "512m")
spark = builder.getOrCreate()
told = {"url": url, "tokenFile": token, "queue": "far", "minPartitions": "4"}
frame = spark.read.format("millrace").options(**told).load()
print(frame.count(), frame.selectExpr("sum(seq)").collect()[0][0], flush=True)
query = (
    spark.readStream.format("millrace")
    .options(**told, cursor=folder.rpartition("/")[2], maxOffsetsPerTrigger="600")
    .load()
    .writeStream.format("parquet")
    .option("path", folder + "/rows")
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(spark.read.parquet(folder + "/rows").selectExpr("count(distinct seq)").collect()[0][0])
into = {"url": url, "tokenFile": token, "queue": folder.rpartition("/")[2]}
frame.select("value").write.format("millrace").options(**into).mode("append").save()
query = (
    spark.readStream.format("millrace")
    .options(**told, cursor=into["queue"] + "-on", maxOffsetsPerTrigger="600")
    .load()
    .select("value", "key")
    .writeStream.format("millrace")
    .options(**into, checkpointLocation=folder + "/other")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
if not where.startswith("sc://"):
    try:
        spark.read.format("millrace").option("queue", "far").load(folder).collect()
    except Exception as error:
        print("use its url" in str(error))
spark.stop()
"""


def run(where: str, server: Process, folder: Path) -> list[str]:
    with sync.connect(server.address, token=server.token) as m:
        queue = m.queue("far", retention="log")
        if not queue.peek(1):
            queue.publish_many([b"x"] * 1000)
        m.queue(folder.name)
    folder.mkdir()
    with sync.open(folder) as m:
        m.queue("far").publish(b"x")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, where, server.address, server.token_file, str(folder)],
        env=spark_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with sync.connect(server.address, token=server.token) as m:
        filled = m.find(folder.name)
        assert len(filled.peek(3000)) == 2000
        assert filled.stages() == {}
    return done.stdout.split()


def test_a_cluster_reads_follows_writes_and_refuses_a_folder(
    cluster: Cluster, server: Process, tmp_path: Path
) -> None:
    found = run(cluster.url, server, tmp_path / "cluster")
    assert found == ["1000", "500500", "1000", "True"]


def test_connect_reads_follows_and_writes(
    connect: Connect, server: Process, tmp_path: Path
) -> None:
    assert run(connect.url, server, tmp_path / "connect") == ["1000", "500500", "1000"]
