"""Lanes: the same in Python for ever."""

from __future__ import annotations

import random
from zlib import crc32

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


def test_nulls_are_left_out() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "a": pa.array([None, "x", None, None, "x"], pa.string()),
            "b": pa.array([None, None, 1, None, 1], pa.int64()),
            "c": pa.array([None, None, None, "", "y"], pa.string()),
        }
    )
    joined = [b"", b"x", b"1", b"", b"x\x001\x00y"]
    assert lanes_of(batch, ["a", "b", "c"], 1000).tolist() == [
        crc32(each) % 1000 for each in joined
    ]


@pytest.mark.parametrize("longest", [0, 1, 96, 97, 400])
def test_every_length_has_its_checksum(longest: int) -> None:
    chance = random.Random(longest)
    texts = [chance.randbytes(chance.randint(0, longest)) for _ in range(500)]
    batch = pa.RecordBatch.from_pydict({"raw": pa.array([b"out", *texts], pa.binary())}).slice(1)
    assert lanes_of(batch, ["raw"], 2**31).tolist() == [crc32(text) % 2**31 for text in texts]
    assert lanes_of(batch.slice(500), ["raw"], 16).tolist() == []


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
