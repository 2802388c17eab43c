"""Stamps detect changed or moved values, table checksums detect lost or old ones."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import errors, limits
from millrace.store.lmdb_reader import STAMP_BYTES, TableChecksum, ValueChecksum

cells = st.dictionaries(st.binary(min_size=1, max_size=12), st.binary(max_size=30), max_size=20)


def plain_crc32c(data: bytes) -> int:
    """CRC-32C by its definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_checksum_is_the_standard_one() -> None:
    assert plain_crc32c(b"123456789") == 0xE3069283


@given(table=st.integers(0, 255), cells=cells)
def test_a_stamp_is_the_checksum_of_table_key_and_value(
    table: int, cells: dict[bytes, bytes]
) -> None:
    keys, values = list(cells), list(cells.values())
    stamp = ValueChecksum(table)
    stored = stamp.stamped(keys, values)
    for key, value, found in zip(keys, values, stored, strict=True):
        crc = plain_crc32c(struct.pack("<BH", table, len(key)) + key + value)
        assert found == value + struct.pack("<I", crc)
    assert stamp.damaged(keys, stored) == []


def test_every_flipped_bit_is_found() -> None:
    stamp = ValueChecksum(3)
    [stored] = stamp.stamped([b"key"], [b"value"])
    for bit in range(8 * len(stored)):
        changed = bytearray(stored)
        changed[bit // 8] ^= 1 << bit % 8
        assert stamp.damaged([b"key"], [bytes(changed)]) == [b"key"]


def test_what_belongs_elsewhere_is_found() -> None:
    [stored] = ValueChecksum(3).stamped([b"key"], [b"value"])
    assert ValueChecksum(4).damaged([b"key"], [stored]) == [b"key"]
    assert ValueChecksum(3).damaged([b"kez"], [stored]) == [b"kez"]
    # The same bytes in a row, with the border between key and value elsewhere.
    assert ValueChecksum(3).damaged([b"keyv"], [stored[1:]]) == [b"keyv"]
    assert ValueChecksum(3).damaged([b"ke"], [b"y" + stored]) == [b"ke"]


def test_only_the_damaged_are_named() -> None:
    stamp = ValueChecksum(0)
    keys = [b"a", b"b", b"c", b"d"]
    stored = stamp.stamped(keys, [b"1", b"2", b"3", b"4"])
    assert stamp.damaged(keys, [stored[0], stored[2], stored[2], b""]) == [b"b", b"d"]
    long = b"k" * (limits.CELL_KEY_BYTES_MAX + 1)
    assert stamp.damaged([*keys, long], [*stored, b"12345"]) == [long]
    assert stamp.damaged([], []) == []


@given(cells=cells, seed=st.integers())
def test_a_sum_does_not_depend_on_the_way(cells: dict[bytes, bytes], seed: int) -> None:
    stored = ValueChecksum(1).stamped(list(cells), list(cells.values()))
    shuffled = stored[:]
    random.Random(seed).shuffle(shuffled)
    whole = TableChecksum().plus(stored)
    one_by_one = TableChecksum()
    for value in shuffled:
        one_by_one = one_by_one.plus([value])
    assert one_by_one == whole
    assert whole.count == len(stored)
    assert whole.plus(stored[:3]).minus(stored[:3]) == whole
    assert whole.minus(shuffled) == TableChecksum()
    assert TableChecksum.unpacked(whole.packed()) == whole


def test_a_sum_tells_values_apart() -> None:
    stamp = ValueChecksum(1)
    seen = {
        TableChecksum().plus(stamp.stamped([b"a", b"b"], [b"%d" % first, b"%d" % second]))
        for first in range(50)
        for second in range(50)
    }
    assert len(seen) == 2_500


def test_a_wrong_sum_stays_wrong_without_failing() -> None:
    [stored] = ValueChecksum(1).stamped([b"a"], [b"1"])
    wrong = TableChecksum().minus([stored])
    assert TableChecksum.unpacked(wrong.packed()) == wrong
    assert wrong.plus([stored]) == TableChecksum()


def test_what_has_no_stamp_cannot_be_summed() -> None:
    with pytest.raises(errors.Corrupt):
        TableChecksum().plus([b"x" * STAMP_BYTES, b"x" * (STAMP_BYTES - 1)])
    with pytest.raises(errors.Corrupt):
        TableChecksum.unpacked(b"short")
