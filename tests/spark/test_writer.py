"""A DataFrame that is written into a queue."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from millrace import sync
from millrace.errors import Invalid, NotFound
from millrace.spark.session import adopt
from millrace.spark.writer import BatchWriter
from tests.spark.row_source import ROWS, RowSource

pytestmark = pytest.mark.spark

Shared = tuple[sync.Millrace, Path]


def into(frame: DataFrame, shared: Shared, queue: str) -> DataFrameWriter:
    return (
        frame.write.format("millrace")
        .mode("append")
        .option("path", str(shared[1]))
        .option("queue", queue)
    )


def test_all_rows_are_there_in_order_with_keys_and_headers(
    spark: SparkSession, shared: Shared
) -> None:
    queue = shared[0].queue("whole")
    frame = spark.range(0, 5000, 1, 2).selectExpr(
        "cast(id as string) as value",
        "cast(id % 10 as string) as key",
        "map('n', cast(id as string)) as headers",
    )
    into(frame, shared, "whole").save()
    rows = queue.peek(5000)
    assert [int(row.body or b"") for row in rows] == list(range(5000))
    assert rows[17].key == b"7"
    assert rows[17].headers == (("n", b"17"),)
    assert queue.stages() == {}


def test_headers_as_pairs_and_deletes(spark: SparkSession, shared: Shared) -> None:
    queue = shared[0].queue("pairs", keyed=True)
    frame = spark.sql(
        "select * from values "
        "('a', X'01', 'put', array(named_struct('key', 'h', 'value', X'02'))), "
        "('b', X'03', null, null), "
        "('a', null, 'delete', null) as t(key, value, op, headers)"
    ).coalesce(1)
    into(frame, shared, "pairs").save()
    with queue.snapshot() as snapshot:
        found = snapshot.arrow().read_all().select(["key", "value", "headers"]).to_pylist()
    assert found == [
        {"key": b"b", "value": b"\x03", "headers": []},
        {"key": b"a", "value": None, "headers": []},
    ]


def test_a_numbered_write_is_done_once(spark: SparkSession, shared: Shared) -> None:
    queue = shared[0].queue("once")
    frame = spark.range(10).selectExpr("cast(id as string) as value")
    for _ in range(2):
        into(frame, shared, "once").option("producer", "load").option("number", "7").save()
    assert len(queue.peek(100)) == 10
    assert queue.producer("load") == 7
    assert queue.stages() == {}


def test_groups_and_delays(spark: SparkSession, shared: Shared) -> None:
    queue = shared[0].queue("turns", order="group")
    frame = spark.range(0, 4, 1, 1).selectExpr(
        "cast(id as string) as value",
        "if(id % 2 = 0, 'even', 'odd') as `group`",
        "if(id = 3, interval '1' hour, null) as delay",
    )
    into(frame, shared, "turns").save()
    assert [lease.body for lease in queue.lease(10)] == [b"0", b"1", b"2"]
    assert queue.explain(4).state == "delayed"


def test_a_wrong_column_is_refused_before_anything_is_staged(
    spark: SparkSession, shared: Shared
) -> None:
    queue = shared[0].queue("wrong")
    frame = spark.range(1).selectExpr("id", "'a' as value")
    with pytest.raises(PySparkException, match="column 'id' is none that a queue knows"):
        into(frame, shared, "wrong").save()
    assert queue.peek() == []
    assert queue.stages() == {}


def test_a_wrong_value_is_refused_and_nothing_is_seen(spark: SparkSession, shared: Shared) -> None:
    queue = shared[0].queue("wrong")
    frame = spark.range(0, 20_000, 1, 1).selectExpr("if(id < 19000, 'a', null) as value")
    with pytest.raises(PySparkException, match="column 'value' is null"):
        into(frame, shared, "wrong").save()
    assert queue.peek() == []
    assert queue.stages() == {}


def test_an_unknown_queue_and_overwriting_are_refused(spark: SparkSession, shared: Shared) -> None:
    frame = spark.range(1).selectExpr("'a' as value")
    with pytest.raises(PySparkException, match="there is no queue 'nowhere'"):
        into(frame, shared, "nowhere").save()
    with pytest.raises(PySparkException, match="a queue is only added to"):
        into(frame, shared, "nowhere").mode("overwrite").save()
    with pytest.raises(PySparkException, match="would show a secret in plans"):
        into(frame, shared, "nowhere").option("token", "secret").save()


SCHEMA = StructType([StructField("value", StringType())])


def test_rows_that_have_gone_before_they_were_published_fail_the_write(shared: Shared) -> None:
    queue = shared[0].queue("gone")
    writer = BatchWriter({"path": str(shared[1]), "queue": "gone"}, SCHEMA, overwrite=False)
    staged = writer.write(iter([pa.record_batch({"value": ["a", "b"]})]))
    for name in staged.stages:
        queue.drop_stage(name)
    with pytest.raises(NotFound, match="nothing was published; write again"):
        writer.commit([staged])
    assert queue.peek() == []


def test_options_of_a_write_are_known(shared: Shared) -> None:
    shared[0].queue("known")
    for options, said in (
        ({"produce": "p"}, "did you mean 'producer'"),
        ({"producer": "p"}, "producer and number go together"),
        ({"number": "3"}, "producer and number go together"),
        ({"producer": "p", "number": "-1"}, "number is '-1', not a number from 1"),
    ):
        with pytest.raises(Invalid, match=said):
            BatchWriter(
                {"path": str(shared[1]), "queue": "known", **options}, SCHEMA, overwrite=False
            )


def test_a_thread_that_has_adopted_the_session_writes(spark: SparkSession, shared: Shared) -> None:
    queue = shared[0].queue("threads")
    spark.dataSource.register(RowSource)
    write = into(spark.range(3).selectExpr("'a' as value"), shared, "threads")
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            thread.submit(write.format(ROWS).save).result()
        thread.submit(adopt, spark).result()
        thread.submit(write.format(ROWS).save).result()
    assert len(queue.peek(10)) == 3
    with ThreadPoolExecutor(1) as thread:
        # With the class of Java it need not.
        thread.submit(write.format("millrace").save).result()
    assert len(queue.peek(10)) == 6


def test_batches_of_a_stream_are_written_from_foreach_batch(
    spark: SparkSession, shared: Shared, tmp_path: Path
) -> None:
    shared[0].queue("from").publish_many([b"a", b"b"])
    queue = shared[0].queue("each")

    def carry(frame: DataFrame, batch: int) -> None:
        numbered = into(frame.select("value"), shared, "each").option("producer", "each")
        numbered.option("number", str(batch + 1)).save()

    query = (
        spark.readStream.format("millrace")
        .option("path", str(shared[1]))
        .option("queue", "from")
        .load()
        .writeStream.foreachBatch(carry)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [row.body for row in queue.peek(10)] == [b"a", b"b"]
