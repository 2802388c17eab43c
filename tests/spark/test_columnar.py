"""Batches as columns: the same rows as without, and a session that starts in any case."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace import Message, sync
from millrace.errors import Retry
from millrace.spark import columnar
from millrace.spark.columnar import JARS, SWITCH, make_jar, with_columns
from millrace.spark.java import Java, find_java
from tests.server.server_process import Process
from tests.spark.row_source import ROWS, RowSource


@pytest.fixture(scope="module")
def java(starts_processes: None) -> Java:
    return find_java()


@pytest.fixture(scope="module")
def jar(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_jar(java, cache=tmp_path_factory.mktemp("cache") / "millrace")


# --- The jar -----------------------------------------------------------------------------------


def test_it_is_made_once_and_names_the_source(java: Java, jar: Path) -> None:
    with zipfile.ZipFile(jar) as found:
        [services] = [name for name in found.namelist() if name.startswith("META-INF")]
        assert found.read(services) == b"millrace.spark.Columns"
    made = jar.stat().st_mtime_ns
    assert make_jar(java, cache=jar.parent) == jar
    assert jar.stat().st_mtime_ns == made
    assert list(jar.parent.iterdir()) == [jar]


def test_a_session_has_it_beside_its_own_jars(
    java: Java, jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "_folder", lambda: jar.parent)
    said: list[str] = []
    assert with_columns({}, java, said.append) == {JARS: str(jar)}
    assert with_columns({JARS: "a.jar,b.jar"}, java, said.append)[JARS] == f"a.jar,b.jar,{jar}"
    switched_off = {SWITCH: "False", JARS: "a.jar"}
    assert with_columns(switched_off, java, said.append) == switched_off
    assert said == []


def test_without_it_a_session_starts_all_the_same(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    said: list[str] = []
    assert with_columns({"a": "b"}, java, said.append) == {"a": "b"}
    [line] = said
    assert "Spark makes rows one by one" in line
    monkeypatch.setattr(columnar, "SOURCE", tmp_path / "Columns.java")
    (tmp_path / "Columns.java").write_text("package millrace.spark; class Columns extends None {}")
    with pytest.raises(Retry, match=r"does not fit this Spark: .*None"):
        make_jar(java, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nothing"))
    with pytest.raises(Retry):
        make_jar(java, cache=tmp_path / "cache")


# --- What is read by it ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def queue(server: Process) -> Iterator[sync.Queue]:
    with sync.connect(server.address, token=server.token) as m:
        made = m.queue("columnar", keyed=True, shards=2)
        made.publish_many(
            [
                Message(
                    b'{"n": %d}' % at if at % 7 else b"",
                    key=b"k%d" % at,
                    headers=(("a", b"%d" % at), ("a", b"")) if at % 3 else (),
                )
                for at in range(1_000)
            ]
        )
        made.publish_many([Message(None, key=b"k1"), Message(b"new", key=b"k2")])
        yield made


def frame(spark: SparkSession, server: Process, kind: str, **options: str) -> DataFrame:
    told = {"url": server.address, "tokenFile": server.token_file, "queue": "columnar"}
    return spark.read.format(kind).options(**told, **options).load()


def plan(of: DataFrame) -> str:
    of.collect()
    return str(of._jdf.queryExecution().executedPlan().toString())


OPTIONS: list[dict[str, str]] = [
    {},
    {"minPartitions": "5", "columns": "headers,timestamp,key"},
    {"view": "latest", "schema": "n INT", "format": "json"},
    {"keys": '["k3", "k1", "gone"]'},
    {"startingOffsets": "latest"},
]


@pytest.mark.spark
@pytest.mark.usefixtures("queue")
def test_the_rows_are_those_that_spark_makes(spark: SparkSession, server: Process) -> None:
    spark.dataSource.register(RowSource)
    for options in OPTIONS:
        ours, rows = (frame(spark, server, kind, **options) for kind in ("millrace", ROWS))
        assert ours.schema == rows.schema
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, rows.collect())), options
    whole, rows = (frame(spark, server, kind) for kind in ("millrace", ROWS))
    assert "ColumnarToRow" in plan(whole)
    assert "ColumnarToRow" not in plan(rows)
    # Spark asks for what it needs of a batch, and for no more batches than it needs.
    assert len(whole.limit(3).collect()) == 3
    assert whole.where("op = 'delete'").count() == 1
    assert whole.join(whole, "key").count() == 1_000


@pytest.mark.spark
@pytest.mark.usefixtures("queue")
def test_a_stream_has_them_too(spark: SparkSession, server: Process, tmp_path: Path) -> None:
    told = {"url": server.address, "tokenFile": server.token_file, "queue": "columnar"}
    stream = spark.readStream.format("millrace").options(**told, maxOffsetsPerTrigger="300").load()
    query = (
        stream.writeStream.format("memory")
        .queryName("columnar")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
        last = query._jsq.explainInternal(False)
    finally:
        query.stop()
    assert "ColumnarToRow" in last
    assert spark.table("columnar").select("key").distinct().count() == 1_000
