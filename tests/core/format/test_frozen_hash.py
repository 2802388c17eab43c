"""The hash that places keys: these numbers never change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.format.frozen_hash import (
    hash_many,
    hash_one,
    hash_slices,
    place,
)

GOLDEN = {
    b"": 0xBE6E49F3B4DCADCA,
    b"a": 0x0DAC8DF0E25D1048,
    b"b": 0xB2F9A66341546637,
    b"ab": 0x41E0277F40BADE56,
    b"a\0": 0x339049ED9130EE88,
    b"order-1": 0x82A70BE88F17744B,
    b"12345678": 0xF8868BE9A9B9BB4C,
    b"123456789": 0x9CFB55C3FD3B2327,
    bytes(400): 0x46D99B67AFD6F642,
    bytes(range(256)): 0x3C2B32DBD889D292,
}


@pytest.mark.parametrize("key", GOLDEN, ids=lambda key: f"{key[:12]!r}-{len(key)}")
def test_the_numbers_are_frozen(key: bytes) -> None:
    assert hash_one(key) == GOLDEN[key]


def test_the_format_names_these_numbers() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats" / "hash.md").read_text()
    for number in GOLDEN.values():
        assert f"`{number:016x}`" in page


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_many_are_hashed_as_one(keys: list[bytes]) -> None:
    assert hash_many(keys).tolist() == [hash_one(key) for key in keys]


@given(st.binary(max_size=64), st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64))))
def test_slices_are_hashed_as_one(data: bytes, bounds: list[tuple[int, int]]) -> None:
    cut = [(min(low, high, len(data)), min(max(low, high), len(data))) for low, high in bounds]
    starts = np.array([low for low, _ in cut], np.int64)
    lengths = np.array([high - low for low, high in cut], np.int64)
    assert hash_slices(data, starts, lengths).tolist() == [
        hash_one(data[low:high]) for low, high in cut
    ]


def test_keys_are_spread_evenly() -> None:
    places = [place(hash_one(b"key-%d" % number), 8) for number in range(8_000)]
    counts = [places.count(shard) for shard in range(8)]
    assert min(counts) > 900
    assert max(counts) < 1_100
