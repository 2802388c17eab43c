"""Bodies as typed columns; bad ones are kept aside."""

from __future__ import annotations

import json
from datetime import datetime, time
from decimal import Decimal
from io import BytesIO
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.format.column import Array
from millrace.errors import Invalid
from millrace.spark.bodies import AvroParser, Parsed, avro_ddl, make_parser

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


def test_json_numbers_fit_their_types() -> None:
    bodies = [b'{"x": 1e300}', b'{"x": 1.5}', b'{"x": -1e39}', b'{"x": 3}']
    fields = [pa.field("x", pa.float32())]
    parsed = make_parser("json", "", fields).parse(pa.array(bodies, pa.binary()))
    assert found(parsed) == [[None, 1.5, None, 3.0], [bodies[0], None, bodies[2], None]]


def test_json_has_no_maps() -> None:
    field = pa.field("m", pa.map_(pa.string(), pa.int32()))
    with pytest.raises(Invalid, match="'m' is of type map"):
        make_parser("json", "", [field])


def body(table: pa.Table) -> bytes:
    """A table as an IPC stream."""
    sink = BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_arrow_bodies_whose_offsets_lead_elsewhere_are_kept_aside() -> None:
    good = body(pa.table({"name": ["abc", "def"]}))
    offsets = np.array([0, 3, 6], np.int32).tobytes()
    assert good.count(offsets) == 1
    bad = good.replace(offsets, np.array([0, 2**30, 6], np.int32).tobytes())
    parsed = make_parser("arrow", "", FIELDS[1:2]).parse(pa.array([bad, good], pa.binary()))
    assert found(parsed) == [[None, "abc", "def"], [bad, None, None]]


def test_sec_01_arrow_bodies_of_list_views_are_kept_aside() -> None:
    """Arrow casts them to lists by an offset behind theirs, which the sender chooses."""
    # Buffers of four numbers for three lists: the last one is read by the cast alone.
    offsets, sizes = (np.array(one, np.int32).tobytes() for one in ([0, 3, 1], [1, 0, 1]))
    numbers = pa.array([1, 2, 3], pa.int64())
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(sizes)]
    lists = pa.Array.from_buffers(pa.list_view(pa.int64()), 3, buffers, children=[numbers])
    written = body(pa.table({"n": lists}))
    length, four = (np.array([one], np.int64).tobytes() for one in (12, 16))
    padded, chosen = offsets + bytes(4), offsets + np.array([2], np.int32).tobytes()
    assert (written.count(length), written.count(padded)) == (2, 1)
    views = written.replace(length, four).replace(padded, chosen)
    good = body(pa.table({"n": pa.array([[7]], pa.list_(pa.int64()))}))
    parser = make_parser("arrow", "", [pa.field("n", pa.list_(pa.int64()))])
    parsed = parser.parse(pa.array([views, good], pa.binary()))
    for column in parsed.columns:
        column.validate(full=True)
    assert found(parsed) == [[None, [7]], [views, None]]


def test_arrow_bodies_are_rows_each() -> None:
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


DECIMAL: dict[str, object] = {"type": "bytes", "precision": 6, "scale": 2}

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


def test_avro_values_of_other_logical_types_are_what_they_are_stored_as() -> None:
    fastavro = pytest.importorskip("fastavro")
    fields = [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "ids", "type": {"type": "array", "items": {"type": "int", "logicalType": "x"}}},
        {"name": "time", "type": ["null", {"type": "int", "logicalType": "time-millis"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "price", "type": {**DECIMAL, "logicalType": "decimal"}},
    ]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    assert avro_ddl(schema) == (
        "`id` string, `ids` array<int>, `time` int, `local` timestamp_ntz, `price` decimal(6,2)"
    )
    sink = BytesIO()
    record = {
        "id": UUID(int=7),
        "ids": [1],
        "time": time(0, 0, 1),
        "local": datetime(2030, 1, 31, 12),
        "price": Decimal("12.50"),
    }
    fastavro.schemaless_writer(sink, fastavro.parse_schema(json.loads(schema)), record)
    typed = [
        pa.field("id", pa.string()),
        pa.field("ids", pa.list_(pa.int32())),
        pa.field("time", pa.int32()),
        pa.field("local", pa.timestamp("us")),
        pa.field("price", pa.decimal128(6, 2)),
    ]
    parsed = AvroParser(schema, typed).parse(pa.array([sink.getvalue()], pa.binary()))
    assert found(parsed) == [
        [str(record["id"])],
        [[1]],
        [1000],
        [record["local"]],
        [record["price"]],
        [None],
    ]


@pytest.mark.parametrize("wrong", ["id int", '{"type": "int"}', '{"type": "record"', "[1]"])
def test_avro_needs_the_schema_of_a_record(wrong: str) -> None:
    with pytest.raises(Invalid, match="Avro"):
        avro_ddl(wrong)
