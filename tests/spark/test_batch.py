"""`spark.read`: every view, both homes, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from millrace import Message, sync
from millrace.client.snapshot_token import write_snapshot_token
from tests.server.server_process import Process

pytestmark = pytest.mark.spark

COLUMNS = ["shard", "seq", "key", "value", "headers", "timestamp", "op", "snapshot"]


@pytest.fixture(scope="module")
def m(server: Process) -> Iterator[sync.Millrace]:
    with sync.connect(server.address, token=server.token) as found:
        yield found


@pytest.fixture(scope="module")
def keyed(m: sync.Millrace) -> sync.Queue:
    """Two shards, 40 keys of which one was deleted and one replaced."""
    queue = m.queue("keyed", keyed=True, shards=2)
    queue.publish_many([Message(b"%d" % at, key=b"k%d" % at) for at in range(40)])
    queue.publish_many([Message(None, key=b"k1"), Message(b"new", key=b"k2")])
    return queue


def reader(spark: SparkSession, server: Process, queue: str, **options: object) -> DataFrameReader:
    found = spark.read.format("millrace").option("url", server.address)
    found = found.option("tokenFile", server.token_file).option("queue", queue)
    for name, value in options.items():
        found = found.option(name, str(value))
    return found


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def test_rows_are_read_from_a_server(
    spark: SparkSession, server: Process, m: sync.Millrace
) -> None:
    queue = m.queue("batch", retention="log")
    queue.publish(b"tea", key=b"k", headers=(("a", b"1"), ("b", b"2")))
    queue.publish_many([b"%d" % at for at in range(99)])
    frame = reader(spark, server, "batch", view="log", minPartitions=4).load()
    assert frame.columns == COLUMNS
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.where("timestamp > now() - interval 1 hour and timestamp <= now()").collect()
    assert sorted(row.seq for row in rows) == list(range(1, 101))
    first = min(rows, key=lambda row: int(row.seq))
    assert (first.shard, bytes(first.key), bytes(first.value), first.op, first.snapshot) == (
        0,
        b"k",
        b"tea",
        "put",
        100,
    )
    assert [(one.key, bytes(one.value)) for one in first.headers] == [("a", b"1"), ("b", b"2")]
    places = {"startingOffsets": '{"0": 11}', "endingOffsets": "[21]"}
    part = reader(spark, server, "batch", columns="op,seq", **places).load()
    assert part.columns == ["op", "seq"]
    assert seqs(part) == list(range(11, 21))


def test_changes_have_deletes_and_latest_has_live_keys(
    spark: SparkSession, server: Process, keyed: sync.Queue
) -> None:
    changes = reader(spark, server, "keyed").load().collect()
    assert len(changes) == 40
    assert {bytes(row.key) for row in changes if row.op == "delete"} == {b"k1"}
    latest = reader(spark, server, "keyed", view="latest").load().collect()
    assert {bytes(row.key) for row in latest} == {b"k%d" % at for at in range(40) if at != 1}
    assert [bytes(row.value) for row in latest if bytes(row.key) == b"k2"] == [b"new"]
    some = reader(spark, server, "keyed", keys="k2, k1,k9", columns="key,op").load().collect()
    assert sorted((bytes(row.key), row.op) for row in some) == [
        (b"k1", "delete"),
        (b"k2", "put"),
        (b"k9", "put"),
    ]


def test_filters_narrow_what_is_read(
    spark: SparkSession, server: Process, keyed: sync.Queue
) -> None:
    plain = reader(spark, server, "keyed").load()
    wanted = "shard = 1 and seq > 3 and seq <= 9 and key in (X'6b32', X'6b35', X'6b39')"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = reader(spark, server, "keyed", filterPushdown=True, minPartitions=1).load()
        assert pushed.where(wanted).collect() == plain.where(wanted).collect()
        assert pushed.where("seq > 3 and shard = 0").rdd.getNumPartitions() == 1
        assert plain.where("seq > 3 and shard = 0").rdd.getNumPartitions() == 2
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_bodies_become_columns_and_bad_ones_are_kept(
    spark: SparkSession, server: Process, m: sync.Millrace
) -> None:
    queue = m.queue("bodies")
    queue.publish_many([b'{"id": 1, "key": "a"}', b"no json"])
    options = {"schema": "id int, key string", "columns": "seq,op"}
    frame = reader(spark, server, "bodies", **options).load()
    assert frame.columns == ["seq", "op", "id", "key", "_corrupt"]
    rows = [tuple(row) for row in frame.orderBy("seq").collect()]
    assert rows == [(1, "put", 1, "a", None), (2, "put", None, None, bytearray(b"no json"))]
    with pytest.raises(PySparkException, match="has a field 'key', and so has the row itself"):
        reader(spark, server, "bodies", schema="id int, key string").load().collect()
    with pytest.raises(PySparkException, match="the columns of this read are"):
        reader(spark, server, "bodies").schema("id int").load().collect()


def test_a_snapshot_is_read_again_and_again_from_a_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    with sync.open(folder) as m:
        m.queue("tea").publish_many([b"a", b"b", b"c"])
        with pytest.raises(PySparkException, match=re.escape("millrace.share")):
            spark.read.format("millrace").option("queue", "tea").load(str(folder)).collect()
    frame = spark.read.format("millrace").option("queue", "tea").load(str(folder))
    assert seqs(frame) == [1, 2, 3]


def test_a_snapshot_of_a_cursor_is_read_as_it_was_from_both_homes(
    spark: SparkSession, server: Process, m: sync.Millrace, shared: tuple[sync.Millrace, Path]
) -> None:
    for queue, found in (
        (m.queue("part"), reader(spark, server, "part")),
        (
            shared[0].queue("part"),
            spark.read.format("millrace").option("path", str(shared[1])).option("queue", "part"),
        ),
    ):
        queue.publish_many([b"a", b"b"])
        cursor = queue.cursor("c")
        first = cursor.next()
        assert first is not None
        first.commit()
        queue.publish(b"c")
        second = cursor.next()
        assert second is not None
        ticket = write_snapshot_token(second._twin)
        assert seqs(found.option("endingSnapshot", ticket).load()) == [3]


def test_nothing_stays_pinned_where_a_read_is_refused(
    spark: SparkSession, shared: tuple[sync.Millrace, Path]
) -> None:
    queue = shared[0].queue("pinned")
    queue.publish(b"a")
    found = spark.read.format("millrace").option("path", str(shared[1])).option("queue", "pinned")
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(PySparkException, match="whose next seq is 2"):
            found.option(name, "[9]").load().collect()
        found = found.option(name, "latest")
    assert queue.holders().held == ()


def test_what_is_wrong_is_said_before_anything_is_read(
    spark: SparkSession, server: Process, keyed: sync.Queue
) -> None:
    for options, message in (
        ({"queue": "keyyed"}, "did you mean 'keyed'"),
        ({"view": "log"}, "is keyed, so that older revisions are gone"),
        ({"startingoffset": "1"}, "did you mean 'startingOffsets'"),
        ({"columns": "seq,body"}, "columns names 'body'"),
        ({"startingOffsets": json.dumps({"5": 1})}, "the queue's last one is 1"),
        ({"endingSnapshot": "x" * 50}, "not the text of a snapshot"),
        ({"url": "http://127.0.0.1:9", "patience": "0.2"}, "nobody answers"),
    ):
        found = reader(spark, server, "keyed")
        for name, value in options.items():
            found = found.option(name, value)
        with pytest.raises(PySparkException, match=re.escape(message)):
            found.load().collect()
