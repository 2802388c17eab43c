"""Values in all the forms in which sinks give them back."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest

from millrace.pipeline.digest import Line, lines_of, plain_of
from millrace.pipeline.verifying import compare

MOMENT = datetime(2026, 11, 16, 9, 30, 0, 123456, UTC)
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.mark.parametrize(
    ("kind", "value", "others"),
    [
        (pa.binary(), b"\xff\x00", [b64encode(b"\xff\x00").decode()]),
        (pa.string(), "ü", ["ü".encode()]),
        (pa.int64(), 12, [b"12", "12"]),
        (pa.float64(), 0.1, [b"0.1", "0.1"]),
        (pa.bool_(), True, [b"true", "true"]),
        (pa.decimal128(10, 2), Decimal("1.10"), ["1.10", b"1.1", Decimal("1.1")]),
        (
            pa.timestamp("us", tz="UTC"),
            MOMENT,
            [MOMENT.isoformat(), b"2026-11-16T09:30:00.123456Z"],
        ),
        (pa.timestamp("us"), MOMENT.replace(tzinfo=None), [MOMENT.isoformat()]),
        (pa.date32(), date(2026, 11, 16), ["2026-11-16", b"2026-11-16"]),
        (pa.list_(pa.int64()), [1, 2], [b"[1,2]"]),
        (
            pa.list_(PAIR),
            [{"key": "a", "value": b"b"}],
            [[{"key": "a", "value": "Yg=="}], [{"name": "a", "value": b"b"}]],
        ),
        (
            pa.map_(pa.string(), pa.int64()),
            [("b", 2), ("a", 1)],
            [{"a": 1, "b": 2}, b'{"b":2,"a":1}'],
        ),
    ],
    ids=str,
)
def test_every_form_is_brought_to_one(
    kind: pa.DataType, value: object, others: list[object]
) -> None:
    plain = plain_of(kind)
    assert {msgspec.json.encode(plain(other)) for other in [value, *others]} == {
        msgspec.json.encode(plain(value))
    }
    assert plain(None) is None


def lines(*rows: tuple[str, str | None, int]) -> list[Line]:
    schema = pa.schema([("id", pa.string()), ("word", pa.string())])
    batch = pa.RecordBatch.from_pylist(
        [
            {"id": id, "word": word, "seq": seq, "op": "put" if word is not None else "delete"}
            for id, word, seq in rows
        ]
    )
    return list(lines_of([batch], schema, ["id", "word"], ["id"]))


def test_the_newest_row_of_a_key_counts() -> None:
    expected = lines(("a", "2", 2), ("a", "1", 1), ("b", "1", 3), ("b", None, 4), ("c", "1", 5))
    found = compare(expected, lines(("a", "2", 0), ("c", "1", 0)), is_keyed=True)
    assert (found.expected, found.found, found.wrong) == (2, 2, 0)
    held = lines(("a", "1", 0), ("b", "1", 0), ("c", "1", 0), ("c", "1", 0))
    found = compare(expected, held, is_keyed=True)
    assert dict(found.differences) == {
        '["a"]': "different",
        '["b"]': "too many",
        '["c"]': "too many",
    }
    assert dict(compare(expected, [], is_keyed=True).differences) == {
        '["a"]': "missing",
        '["c"]': "missing",
    }


def test_rows_without_a_key_are_counted() -> None:
    one, two = Line("1", 0, 1), Line("2", 0, 2)
    found = compare([one, one, two], [two, one], is_keyed=False)
    assert (found.expected, found.found, found.differences) == (3, 2, (("1", "missing"),))
    assert compare([one, two], [two, one], is_keyed=False).wrong == 0
