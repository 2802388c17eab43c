"""Loglet records: their bytes, and what is refused."""

from __future__ import annotations

import pytest

from millrace.backend.loglet_record import LogletRecord, checksum_of, decode_record
from millrace.errors import Corrupt

ID = bytes(range(16))
RECORD = LogletRecord(ID, 7, 3, 0x01020304, b"payload")

GOLDEN = (
    "4d524c5231000000000102030405060708090a0b0c0d0e0f0700000000000000030000000000000004030201"
    "07000000336a3a0f7061796c6f6164"
)


def test_the_bytes_of_a_record_are_frozen() -> None:
    assert RECORD.encode().hex() == GOLDEN
    assert decode_record(bytes.fromhex(GOLDEN), ID, 3) == RECORD


def test_a_record_names_the_checksum_of_the_one_before() -> None:
    first = LogletRecord(ID, 7, 1, 0, b"a").encode()
    second = LogletRecord(ID, 7, 2, checksum_of(first), b"b").encode()
    assert decode_record(second, ID, 2).previous == checksum_of(first)


def test_a_damaged_record_is_refused() -> None:
    data = RECORD.encode()
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                decode_record(bytes(flipped), ID, 3)
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            decode_record(data[:size], ID, 3)
    with pytest.raises(Corrupt):
        decode_record(data + b"x", ID, 3)


def test_a_record_of_another_place_is_refused() -> None:
    with pytest.raises(Corrupt, match=r"record 4 of loglet .* is record 3"):
        decode_record(RECORD.encode(), ID, 4)
    with pytest.raises(Corrupt, match="of loglet"):
        decode_record(RECORD.encode(), bytes(16), 3)
