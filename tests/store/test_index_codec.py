"""Keys sort as what they stand for, and values come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.state.fold import Interval, ShardMeta
from millrace.errors import Corrupt
from millrace.store.index_codec import (
    FileFacts,
    StoredShard,
    block_key,
    decode_file,
    decode_shard,
    encode_file,
    encode_shard,
    extent_key,
    extent_low,
    extents_range,
    joined,
    part_count,
    parts,
    shard_of,
    stage_key,
    stage_of,
    stage_range,
    stages_range,
)
from millrace.store.row_location import (
    RowLocation,
    decode_location,
    encode_location,
    republished,
)

numbers = st.integers(0, (1 << 62) - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(st.binary(min_size=1, max_size=20), st.integers(0, 9_000))
def test_values_are_cut_and_joined(key: bytes, size: int) -> None:
    value = bytes(at % 251 for at in range(size))
    cells = parts(key, value)
    assert all(len(cell) <= limits.CELL_BYTES_MAX for _, cell in cells)
    assert part_count(cells[0][1]) == len(cells) == max(1, -(-size // 1_998))
    assert joined(reversed(cells)) == {key: value}


def test_a_missing_part_is_damage() -> None:
    cells = parts(b"k", bytes(5_000))
    for at in range(len(cells)):
        with pytest.raises(Corrupt):
            joined(cells[:at] + cells[at + 1 :])


@given(numbers, numbers, numbers, numbers)
def test_block_keys_sort_by_shard_and_seq(shard: int, first: int, other: int, seq: int) -> None:
    one, two = block_key(shard, first), block_key(other, seq)
    assert (one < two) == ((shard, first) < (other, seq))
    assert shard_of(one) == shard
    assert stage_of(one) is None


@given(numbers, names, numbers)
def test_stages_have_keys_of_their_own(shard: int, name: str, ordinal: int) -> None:
    key = stage_key(shard, name, ordinal)
    low, high = stage_range(shard, name)
    assert low <= key < high
    low, high = stages_range(shard)
    assert low <= key < high
    assert stage_of(key) == (shard, name, ordinal)
    assert shard_of(key) == shard


@given(numbers, numbers, numbers, st.booleans())
def test_extents_lead_from_a_home_to_its_keys(
    home: int,
    shard: int,
    first: int,
    sealed: bool,  # noqa: FBT001
) -> None:
    low = block_key(shard, first)
    key = extent_key(home, low, sealed=sealed)
    begin, end = extents_range(home, sealed=sealed)
    assert begin <= key < end
    assert extent_low(key) == low


def test_shards_and_files_come_back() -> None:
    meta = ShardMeta(5, 6, 7, b"h" * 16, keyed=True, intervals=(Interval(0, 3), Interval(4)))
    stored = StoredShard(meta, 1, 2, (0, 4), {0: (1, 2)}, 3, 1 << 62)
    assert decode_shard(encode_shard(stored)) == stored
    facts = FileFacts(1, 2, 3, dropping=True, spans={5: (6, 7)})
    assert decode_file(encode_file(facts)) == facts
    with pytest.raises(Corrupt):
        decode_shard(b"\x91\x01")
    with pytest.raises(Corrupt):
        decode_file(b"")


def test_places_come_back() -> None:
    in_log = RowLocation(1, 2, 3, 4, 4, 5, 5, 6)
    in_file = RowLocation(1, 2, 3, 4, 9, 5, 8, 6, sealed=True, number=7, crc=0xFFFFFFFF)
    for place, size in ((in_log, 38), (in_file, 62)):
        data = encode_location(place)
        assert len(data) == size
        assert decode_location(data) == place
        with pytest.raises(Corrupt):
            decode_location(data[:-1])
    with pytest.raises(Corrupt):
        decode_location(b"\3" + bytes(37))
    assert republished(in_file, 50).last_ms == republished(in_file, 50).time_ms == 50
