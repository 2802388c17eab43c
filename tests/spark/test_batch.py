"""`spark.read`: every view, both homes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

import millrace.sync
from tests.server.process import Process

pytestmark = pytest.mark.spark


def reader(spark: SparkSession, server: Process, queue: str, **options: object) -> DataFrameReader:
    found = spark.read.format("millrace").option("url", server.address)
    found = found.option("tokenFile", str(server.token_file)).option("queue", queue)
    for name, value in options.items():
        found = found.option(name, str(value))
    return found


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def test_rows_are_read_from_a_server(spark: SparkSession, server: Process) -> None:
    with millrace.sync.connect(server.address, token=server.token) as m:
        queue = m.queue("batch", retention="log")
        queue.publish(b"tea", key=b"k", headers=(("a", b"1"), ("b", b"2")))
        queue.publish_many([b"%d" % at for at in range(99)])
    frame = reader(spark, server, "batch").load()
    assert frame.columns == [
        "shard",
        "seq",
        "key",
        "value",
        "headers",
        "timestamp",
        "op",
        "snapshot",
    ]
    assert seqs(frame) == list(range(1, 101))
    first = frame.orderBy("seq").first()
    assert first is not None
    assert (first.shard, bytes(first.key), bytes(first.value), first.op, first.snapshot) == (
        0,
        b"k",
        b"tea",
        "put",
        100,
    )
    assert [(one.key, bytes(one.value)) for one in first.headers] == [("a", b"1"), ("b", b"2")]
    assert frame.where("timestamp > now() - interval 1 hour and timestamp <= now()").count() == 100


def test_a_folder_is_shared_with_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    with millrace.sync.open(tmp_path / "data") as m:
        m.queue("tea").publish_many([b"a", b"b", b"c"])
    frame = spark.read.format("millrace").option("queue", "tea").load(str(tmp_path / "data"))
    assert seqs(frame) == [1, 2, 3]
