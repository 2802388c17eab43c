"""Lanes: the same in Python for ever."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.errors import Invalid
from millrace.sinks.lane import check_key, lane_sql, lanes_of

LANES = [478, 759, 0]
"""What zlib and Spark say of the joined texts."""


def test_lanes_are_frozen() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array([1, -5, None], pa.int64()),
            "name": pa.array(["a", "ü", ""], pa.string()),
            "raw": pa.array([b"\xff\x00", b"", None], pa.binary()),
            "flag": pa.array([True, False, None], pa.bool_()),
        }
    )
    assert lanes_of(batch, ["id", "name", "raw", "flag"], 1000).tolist() == LANES


def test_a_key_of_another_type_is_refused() -> None:
    schema = pa.schema([("at", pa.timestamp("us"))])
    with pytest.raises(Invalid, match="cast it"):
        check_key(schema, ["at"])
    with pytest.raises(Invalid, match="the rows have at"):
        check_key(schema, ["id"])


def test_names_are_quoted_in_sql() -> None:
    assert lane_sql(["a`b"], 4) == (
        "pmod(crc32(cast(concat_ws(char(0), cast(`a``b` as string)) as binary)), 4)"
    )
