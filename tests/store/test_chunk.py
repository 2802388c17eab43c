"""Chunks: the same seqs come out that went in, in the shorter of two forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from millrace.errors import Corrupt
from millrace.store import chunk

BASES = [0, 8_000, 5_000_000, (1 << 32) - 5_000, (1 << 33) + 77, 1 << 45]

ranges = st.tuples(st.sampled_from(BASES), st.integers(0, 20_000), st.integers(1, 7)).map(
    lambda part: range(part[0], part[0] + part[1], part[2])
)


@given(st.lists(ranges, max_size=4))
def test_seqs_survive(parts: list[range]) -> None:
    seqs = BitMap64().union(*(BitMap64(part) for part in parts)) if parts else BitMap64()
    found = list(chunk.split(seqs))
    assert [number for number, _ in found] == sorted({seq // chunk.ROWS for seq in seqs})
    packed = [(number, chunk.pack(offsets)) for number, offsets in found]
    assert all(len(data) <= 1 + chunk.PLAIN_BYTES for _, data in packed)
    assert chunk.join((number, chunk.unpack(data)) for number, data in packed) == seqs


@pytest.mark.parametrize("step", [1, 2, 3, 5, 17, 1_000])
def test_the_shorter_form_is_taken(step: int) -> None:
    offsets = BitMap(range(0, chunk.ROWS, step))
    data = chunk.pack(offsets)
    assert data[0] == (1 if step in (2, 3, 5) else 0)
    assert chunk.unpack(data) == offsets


@pytest.mark.parametrize("data", [b"", b"\2abc", b"\1" + bytes(10), b"\0\1\2\3"])
def test_damage_is_noticed(data: bytes) -> None:
    with pytest.raises(Corrupt):
        chunk.unpack(data)


def test_spans_have_both_ends() -> None:
    assert chunk.span(3, 5) == BitMap64([3, 4, 5])
    assert chunk.span(5, 3) == BitMap64()
