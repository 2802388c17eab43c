"""The columns that a queue takes from Spark."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.errors import Invalid
from millrace.spark.contract import check_schema, cut, to_rows

BYTES, TEXT, WHOLE = BinaryType(), StringType(), LongType()


def of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def pairs(name: str, value: DataType) -> ArrayType:
    return ArrayType(of(**{name: TEXT, "value": value}))


@pytest.mark.parametrize(
    "schema",
    [
        of(value=BYTES),
        of(value=TEXT, key=TEXT),
        of(value=TEXT, key=BYTES, op=TEXT, group=TEXT),
        of(value=TEXT, headers=MapType(TEXT, TEXT)),
        of(value=TEXT, headers=MapType(TEXT, BYTES)),
        of(value=TEXT, headers=pairs("key", BYTES)),
        of(value=TEXT, headers=pairs("name", TEXT)),
        of(value=TEXT, delay=DayTimeIntervalType(0, 3), ttl=DoubleType(), priority=ByteType()),
        of(value=TEXT, delay=DecimalType(10, 3), priority=WHOLE),
        of(shard=WHOLE, seq=WHOLE, timestamp=TimestampType(), snapshot=WHOLE, value=TEXT),
    ],
    ids=lambda schema: schema.simpleString(),
)
def test_what_is_taken(schema: StructType) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "field", "said"),
    [
        (of(value=TEXT, id=WHOLE), "id", "column 'id' is none that a queue knows"),
        (of(key=TEXT), "value", "there is no column 'value'"),
        (of(value=WHOLE), "value", "column 'value' is bigint, not binary or string; cast it"),
        (of(value=TEXT).add("value", TEXT), "value", "column 'value' is there twice"),
        (of(value=TEXT, headers=ArrayType(WHOLE)), "headers", "'headers' is array<bigint>, not"),
        (of(value=TEXT, headers=MapType(WHOLE, TEXT)), "headers", "column 'headers' is map"),
        (of(value=TEXT, headers=pairs("a", TEXT)), "headers", "column 'headers' is array"),
        (of(value=TEXT, op=WHOLE), "op", "column 'op' is bigint, not string"),
        (of(value=TEXT, delay=TEXT), "delay", "column 'delay' is string, not a number of"),
        (of(value=TEXT, priority=DoubleType()), "priority", "'priority' is double, not"),
        (of(value=TEXT, dedup=TEXT), "dedup", "column 'dedup': what Spark writes"),
    ],
)
def test_what_is_refused(schema: StructType, field: str, said: str) -> None:
    with pytest.raises(Invalid, match=said) as caught:
        check_schema(schema)
    assert caught.value.field == field


def test_bytes_are_taken_as_they_are() -> None:
    value = pa.array([b"a", b"b"])
    made = to_rows(pa.record_batch({"value": value, "seq": pa.array([1, 2])}))
    assert made.schema.names == ["value"]
    [given, kept] = [column.buffers()[2] for column in (value, made.column("value"))]
    assert given is not None
    assert kept is not None
    assert given.address == kept.address


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[("a", "1"), ("b", "")], None, []], pa.map_(pa.utf8(), pa.utf8())),
        pa.array([[("a", b"1"), ("b", b"")], None, []], pa.map_(pa.utf8(), pa.binary())),
        pa.array(
            [[{"key": "a", "value": "1"}, {"key": "b", "value": ""}], None, []],
            pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.utf8())])),
        ),
    ],
)
def test_headers_of_either_shape(headers: pa.Array[pa.Scalar[pa.DataType]]) -> None:
    batch = pa.record_batch({"value": ["x", "y", "z"], "headers": headers})
    expected = [{"name": "a", "value": b"1"}, {"name": "b", "value": b""}]
    assert to_rows(batch).column("headers").to_pylist() == [expected, [], []]
    assert to_rows(batch.slice(1)).column("headers").to_pylist() == [[], []]


def test_times_are_seconds() -> None:
    delay = pa.array([timedelta(seconds=1.5), None], pa.duration("us"))
    made = to_rows(pa.record_batch({"value": ["x", "y"], "delay": delay, "ttl": [3, None]}))
    assert made.column("delay").to_pylist() == [1.5, None]
    assert made.column("ttl").to_pylist() == [3.0, None]


def test_a_delete_has_no_value() -> None:
    batch = pa.record_batch({"value": ["x", "y", None], "op": ["put", "delete", "delete"]})
    assert to_rows(batch).column("value").to_pylist() == [b"x", None, None]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": [None, "a"]}, "column 'value' is null in a row; a delete is told"),
        ({"value": ["a"], "op": ["gone"]}, "column 'op' is 'gone', not 'put' or 'delete'"),
        ({"value": [None], "op": ["put"]}, "column 'value' is null in a row whose op"),
        ({"value": pa.nulls(1, pa.utf8()), "op": pa.nulls(1, pa.utf8())}, "'value' is null in"),
        (
            {"value": ["a"], "headers": pa.array([[("h", None)]], pa.map_(pa.utf8(), pa.utf8()))},
            "column 'headers' has a header without",
        ),
    ],
)
def test_values_that_are_refused(columns: dict[str, list[str]], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        to_rows(pa.record_batch(columns))


def test_a_large_batch_is_cut() -> None:
    batch = pa.record_batch({"value": [b"x" * 100] * 1000})
    parts = list(cut(batch, rows=300, size=10_000_000))
    assert [part.num_rows for part in parts] == [300, 300, 300, 100]
    parts = list(cut(batch, rows=10_000, size=50_000))
    assert sum(part.num_rows for part in parts) == 1000
    assert len(parts) == 3
    assert [part.num_rows for part in cut(batch.slice(0, 2), rows=10, size=1)] == [1, 1]


def test_a_batch_is_cut_by_what_is_in_it_not_by_its_average() -> None:
    batch = pa.record_batch({"value": [b"x"] * 1000 + [b"y" * 10_000] * 10 + [b"z"] * 1000})
    parts = list(cut(batch, rows=10_000, size=30_000))
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([batch])
    assert all(part.nbytes <= 30_000 for part in parts)
