"""Spark reads what sinks wrote into lakes, and lanes are the same in its SQL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from millrace.sinks.base import DELETE
from millrace.sinks.lane import lane_sql, lanes_of
from millrace.sinks.parquet import manifest
from millrace.testing.check_sink import (
    SinkChange,
    SinkRun,
    puts,
    span,
)
from tests.sinks.lakes.rig import LakeRig, make_lake

pytestmark = pytest.mark.spark


def _carried(kind: str, mode: str, path: Path) -> None:
    run = SinkRun(LakeRig(make_lake(kind, mode, path)))
    run.carry(span(0, 5), puts("a", "b", "c"))
    run.carry(span(5, 7), [SinkChange("a", "new", seq=6), SinkChange("b", None, DELETE, 7)])
    run.stage_all(span(7, 8), puts("never"))


def test_spark_reads_the_files_of_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    _carried("delta", "upsert", tmp_path)
    rows = spark.read.parquet(*DeltaTable(tmp_path).file_uris())
    assert rows.columns == ["seq", "key", "value"]
    assert {tuple(row) for row in rows.collect()} == {(6, "a", "new"), (3, "c", "c1")}


def test_spark_reads_the_files_of_a_manifest(spark: SparkSession, tmp_path: Path) -> None:
    _carried("parquet", "append", tmp_path)
    rows = spark.read.parquet(*manifest(tmp_path))
    assert sorted((row["seq"], row["op"]) for row in rows.collect()) == [
        (1, "put"),
        (2, "put"),
        (3, "put"),
        (6, "put"),
        (7, "delete"),
    ]


def test_lanes_are_the_same_in_sql(spark: SparkSession) -> None:
    lines: list[dict[str, object]] = [
        {"id": 1, "name": "a", "raw": b"abc", "flag": True},
        {"id": -5, "name": "ü" * 60, "raw": b"", "flag": False},
        {"id": None, "name": "", "raw": None, "flag": None},
        {"id": None, "name": None, "raw": None, "flag": None},
        {"id": 2**62, "name": "x", "raw": b"y", "flag": None},
    ]
    kinds: dict[str, pa.DataType] = {
        "id": pa.int64(),
        "name": pa.string(),
        "raw": pa.binary(),
        "flag": pa.bool_(),
    }
    table = pa.Table.from_pylist(lines, pa.schema(list(kinds.items())))
    for key in (["id"], ["name"], ["raw"], ["flag"], list(kinds)):
        found = spark.createDataFrame(table).selectExpr(f"{lane_sql(key, 1000)} as lane")
        expected = lanes_of(table.to_batches()[0], key, 1000).tolist()
        assert [row["lane"] for row in found.collect()] == expected, key
