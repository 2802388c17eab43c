"""Pipelines on a cluster and through Spark Connect, as commands that start their own session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from millrace import Message, sync
from tests.server.server_process import Process
from tests.services.spark_cluster import Cluster
from tests.services.spark_connect import Connect
from tests.services.spark_home import spark_environment

# Each starts Spark, some three times, with executors.
pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]

MANY = 12_000
"""More than the driver takes itself: executors read and stage them."""

SOURCE = """
name = "{name}"
[source]
queue = "{name}"
url = "{url}"
token_file = "{token}"
[spark]
{spark}
"""

PARSED = (
    SOURCE
    + """
[steps.parsed]
sql = "SELECT *, cast(key AS string) id, cast(value AS string) word FROM source"
expect = {{ short = "length(word) < 9" }}
on_fail = "dead_letter"
dead_letter = "{name}-bad"
[steps.loud]
python = "steps.py:loud"
[sinks.lake]
from = "loud"
delta = "lake"
mode = "upsert"
key = ["id"]
"""
)

STEPS = """
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def loud(parsed: DataFrame) -> DataFrame:
    return parsed.select("id", "seq", "op", F.upper("word").alias("word"))
"""

TOTALS = (
    SOURCE
    + """
[steps.totals]
sql = "SELECT cast(key AS string) id, count(*) many FROM source GROUP BY key"
[sinks.lake]
from = "totals"
delta = "lake"
mode = "upsert"
key = ["id"]
[run]
{run}
"""
)

BY_PROGRAM = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from millrace.pipeline import Setting, read_pipeline, run_pipeline

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
pipeline = read_pipeline(Path(sys.argv[2]), os.environ)
run_pipeline(pipeline, Setting(environ=dict(os.environ)), once=True, spark=spark)
print(spark.range(3).count())
"""


def on_cluster(cluster: Cluster) -> str:
    conf = {
        "spark.master": cluster.url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
    }
    return "\n".join(f'"{name}" = "{value}"' for name, value in conf.items())


def through(connect: Connect) -> str:
    # What stands behind the semicolon may be a token.
    return f'"spark.remote" = "{connect.url}/;x-secret=hidden"'


@pytest.fixture
def millrace(server: Process) -> Iterator[sync.Millrace]:
    with sync.connect(server.address, token=server.token) as m:
        yield m


def declared(text: str, folder: Path, server: Process, **given: str) -> Path:
    """A declaration whose name, and queue, are the folder's."""
    folder.mkdir()
    (folder / "steps.py").write_text(STEPS)
    shutil.copy(server.token_file, folder / "token")
    file = folder / "orders.toml"
    file.write_text(text.format(name=folder.name, url=server.address, token="token", **given))
    return file


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """What came of a program in Python, which has no token in its environment."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=spark_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def pipeline(verb: str, file: Path, *options: str) -> str:
    done = command("-m", "millrace.cli", "pipeline", verb, file, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lake(file: Path) -> dict[str, dict[str, object]]:
    rows = DeltaTable(file.with_name("lake")).to_pyarrow_table().to_pylist()
    return {str(row["id"]): row for row in rows}


def carried(millrace: sync.Millrace, file: Path) -> None:
    """Many rows are staged by executors, a few in the driver, and bad ones become dead letters."""
    queue = millrace.queue(file.parent.name, keyed=True, retention="log")
    queue.publish_many([Message(b"a%d" % n, b"%d" % n) for n in range(MANY)])
    queue.publish(b"much too long", key=b"long")
    pipeline("run", file, "--once")
    assert len(lake(file)) == MANY
    queue.publish_many([Message(None, b"7"), Message(b"new", b"8")])
    assert "lake: correct" in pipeline("verify", file)
    rows = lake(file)
    assert (len(rows), rows["8"]["word"]) == (MANY - 1, "NEW")
    [letter] = millrace.find(f"{file.parent.name}-bad").peek(10)
    assert b"much too long" in (letter.body or b"")


def test_a_cluster_carries_rows(
    cluster: Cluster, server: Process, millrace: sync.Millrace, tmp_path: Path
) -> None:
    file = declared(PARSED, tmp_path / "on-cluster", server, spark=on_cluster(cluster))
    carried(millrace, file)


def test_connect_carries_rows(
    connect: Connect, server: Process, millrace: sync.Millrace, tmp_path: Path
) -> None:
    file = declared(PARSED, tmp_path / "through-connect", server, spark=through(connect))
    carried(millrace, file)
    millrace.find(file.parent.name).publish(b"last", key=b"9")
    done = command("-c", BY_PROGRAM, connect.url, file)
    assert (done.returncode, done.stdout.split()) == (0, ["3"]), done.stderr
    assert lake(file)["9"]["word"] == "LAST"


def test_a_cluster_keeps_a_state(
    cluster: Cluster, server: Process, millrace: sync.Millrace, tmp_path: Path
) -> None:
    run = 'checkpoint = "checkpoint"'
    file = declared(TOTALS, tmp_path / "state", server, spark=on_cluster(cluster), run=run)
    queue = millrace.queue("state", retention="log")
    for more in (MANY, 14):
        queue.publish_many([Message(b"", b"%d" % (n % 7)) for n in range(more)])
        pipeline("run", file, "--once")
    assert sum(int(str(row["many"])) for row in lake(file).values()) == MANY + 14


def test_connect_refuses_a_state(
    connect: Connect, server: Process, millrace: sync.Millrace, tmp_path: Path
) -> None:
    millrace.queue("stateless").publish(b"1", key=b"a")
    file = declared(TOTALS, tmp_path / "stateless", server, spark=through(connect), run="")
    done = command("-m", "millrace.cli", "pipeline", "run", file, "--once")
    assert done.returncode != 0
    assert "step 'totals' keeps a state (Aggregate)" in done.stderr
    assert "name spark.master" in done.stderr
    assert "hidden" not in done.stderr
    assert not file.with_name("lake").exists()
