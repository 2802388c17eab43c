"""Columns of lakes: what is held, what fits, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from millrace.core.format.block import SCHEMA
from millrace.errors import Invalid
from millrace.sinks.columns import added, asked, fitted, stored


def test_the_rows_of_a_queue_can_be_held() -> None:
    kinds = {field.name: str(field.type) for field in stored(SCHEMA, "Delta")}
    assert kinds == {
        "shard": "int64",
        "seq": "int64",
        "key": "binary",
        "headers": "list<element: struct<name: string, value: binary>>",
        "time": "timestamp[us, tz=UTC]",
        "value": "binary",
    }
    line = {
        "shard": 1,
        "seq": 2,
        "key": b"k",
        "headers": [{"name": "a", "value": b"b"}],
        "time": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
        "value": None,
    }
    batch = pa.RecordBatch.from_pylist([line], SCHEMA)
    assert next(fitted([batch], stored(SCHEMA, "Delta"))).to_pylist() == [line]


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (pa.int8(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.binary(4), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("ms", "Europe/Vienna"), pa.timestamp("us", "UTC")),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32())),
    ],
)
def test_types_have_their_place(kind: pa.DataType, held: pa.DataType) -> None:
    assert stored(pa.schema([("a", kind)]), "Delta").field("a").type == held


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("ns"),
        pa.duration("s"),
        pa.time32("s"),
        pa.null(),
        pa.struct([]),
        pa.list_(pa.duration("s")),
        pa.decimal256(50, 2),
    ],
    ids=str,
)
def test_what_cannot_be_held_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(Invalid, match="column 'odd'") as caught:
        stored(pa.schema([("odd", kind)]), "Delta")
    assert caught.value.field == "odd"


@pytest.mark.parametrize("names", [["a b"], [""], ["a.b"], ["id", "ID"], ["a", "a"]], ids=str)
def test_odd_names_are_refused(names: list[str]) -> None:
    with pytest.raises(Invalid, match="column"):
        stored(pa.schema([(name, pa.int64()) for name in names]), "Delta")


def test_a_table_of_others_may_be_narrower_or_wider() -> None:
    there: list[pa.DataType] = [pa.int16(), pa.int64(), pa.float64()]
    here: list[pa.DataType] = [pa.int16(), pa.int32(), pa.float32()]
    names = ["small", "wide", "real"]
    table = pa.schema(list(zip(names, there, strict=True)))
    rows = pa.schema(list(zip(names, here, strict=True)))
    assert added(table, rows, "Delta", evolve=False) == []
    batch = pa.RecordBatch.from_pylist([{"small": 1, "wide": 2, "real": 0.5}], rows)
    assert next(fitted([batch], table)).schema == table


def test_a_value_is_never_changed() -> None:
    batch = pa.RecordBatch.from_pydict({"seq": pa.array([2**63], pa.uint64())})
    with pytest.raises(Invalid, match="does not fit") as caught:
        next(fitted([batch], pa.schema([("seq", pa.int64())])))
    assert caught.value.field == "seq"


def test_a_column_that_must_be_there_is_missed() -> None:
    table = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    with pytest.raises(Invalid, match="may not be null"):
        added(table, pa.schema([("a", pa.int64())]), "Delta", evolve=True)
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": pa.array([None], pa.int64())})
    with pytest.raises(Invalid, match="may not be null"):
        next(fitted([batch], table))


def test_what_is_asked_for_and_not_there_is_null() -> None:
    wanted = asked(pa.schema([("a", pa.int64())]), ["a", "b"])
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    assert next(fitted([batch], wanted)).to_pylist() == [{"a": 1, "b": None}]
