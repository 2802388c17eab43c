"""Bodies as typed columns; bad ones are kept aside."""

from __future__ import annotations

import json
from io import BytesIO

import pyarrow as pa
import pytest

from millrace.core.column import Array
from millrace.errors import Invalid
from millrace.spark.bodies.avro import AvroParser, avro_ddl
from millrace.spark.bodies.parse import Parsed, make_parser

FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("id", pa.int32()),
    pa.field("name", pa.string()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("place", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
    pa.field("price", pa.decimal128(6, 2)),
]


def found(parsed: Parsed) -> list[list[object]]:
    return [values(column) for column in [*parsed.columns, parsed.corrupt]]


def values(column: Array) -> list[object]:
    return [value.as_py() for value in column]


def test_json_is_typed_and_bad_bodies_are_kept() -> None:
    bodies = [
        b'{"id": 1, "name": "a", "at": "2030-01-31T12:00:00Z", "tags": ["x", null], '
        b'"place": {"x": 1, "z": 0}, "price": "12.50", "more": [1, {}]}',
        b'{"id": "1"}',
        None,
        b'{"id": 2147483648}',
        b"[]",
        b"{",
        b'{"price": "123456.78"}',
        b"{}",
        b'{"name": "\xff"}',
    ]
    parser = make_parser("json", "", FIELDS)
    ids, names, ats, tags, places, prices, corrupt = found(
        parser.parse(pa.array(bodies, pa.binary()))
    )
    assert ids == [1] + [None] * 8
    assert names == ["a"] + [None] * 8
    assert str(ats[0]) == "2030-01-31 12:00:00+00:00"
    assert tags[0] == ["x", None]
    assert places[0] == {"x": 1.0, "y": None}
    assert str(prices[0]) == "12.50"
    assert corrupt == [body if at in (1, 3, 4, 5, 6, 8) else None for at, body in enumerate(bodies)]


def test_json_has_no_maps() -> None:
    field = pa.field("m", pa.map_(pa.string(), pa.int32()))
    with pytest.raises(Invalid, match="'m' is of type map"):
        make_parser("json", "", [field])


def test_arrow_bodies_are_rows_each() -> None:
    def body(table: pa.Table) -> bytes:
        sink = BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    bodies = [
        body(pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})),
        b"no arrow",
        None,
        body(pa.table({"id": pa.array([3], pa.int64())})),
        body(pa.table({"id": pa.array([2**40], pa.int64())})),
        body(pa.table({"id": pa.array([], pa.int64())})),
    ]
    parsed = make_parser("arrow", "", FIELDS[:2]).parse(pa.array(bodies, pa.binary()))
    assert found(parsed) == [
        [1, 2, None, None, 3, None],
        ["a", "b", None, None, None, None],
        [None, None, b"no arrow", None, None, bodies[4]],
    ]
    assert values(parsed.spread(pa.array(list("abcdef")))) == list("aabcde")


AVRO = """{"type": "record", "name": "r", "fields": [
    {"name": "id", "type": "int"},
    {"name": "name", "type": ["null", "string"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}}
]}"""


def test_avro_is_typed_and_bad_bodies_are_kept() -> None:
    fastavro = pytest.importorskip("fastavro")
    assert avro_ddl(AVRO) == "`id` int, `name` string, `at` timestamp, `tags` array<string>"
    schema = fastavro.parse_schema(json.loads(AVRO))
    sink = BytesIO()
    record = {"id": 7, "name": None, "at": 0, "tags": ["x"]}
    fastavro.schemaless_writer(sink, schema, record)
    good = sink.getvalue()
    bodies = [good, good + b"x", None, b"", good[:-1]]
    parsed = AvroParser(AVRO, FIELDS[:4]).parse(pa.array(bodies, pa.binary()))
    ids, names, ats, tags, corrupt = found(parsed)
    assert (ids, names[0], tags[0]) == ([7, None, None, None, None], None, ["x"])
    assert str(ats[0]) == "1970-01-01 00:00:00+00:00"
    assert corrupt == [None, good + b"x", None, b"", good[:-1]]


@pytest.mark.parametrize("wrong", ["id int", '{"type": "int"}', '{"type": "record"', "[1]"])
def test_avro_needs_the_schema_of_a_record(wrong: str) -> None:
    with pytest.raises(Invalid, match="Avro"):
        avro_ddl(wrong)
