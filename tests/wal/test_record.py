"""Record format: round trips, and no other bytes decode as a record."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millrace.wal.record import (
    DATA,
    END,
    RECORD_HEADER_BYTES,
    SEGMENT_USED_BYTES,
    LogMark,
    LogPosition,
    SegmentHeader,
    decode_record,
    decode_segment_header,
    encode_record,
    encode_segment_header,
    has_valid_checksum,
    record_span,
)

SEGMENT = SegmentHeader(
    log_id=bytes(range(16)),
    generation=7,
    nonce=0x1122334455667788,
    prev_crc=0xAABBCCDD,
    first_serial=42,
    size=1 << 26,
)

numbers = st.integers(0, 2**64 - 1)
sums = st.integers(0, 2**32 - 1)


def test_a_record_has_the_documented_bytes() -> None:
    head, crc = encode_record(
        DATA, SEGMENT, serial=43, prev_crc=0xAABBCCDD, buffers=[b"ab", b"c"], length=3
    )
    rest = struct.pack("<IBBBBQQQQ", 0xAABBCCDD, 1, 0, 0, 0, 7, SEGMENT.nonce, 43, 3) + bytes(16)
    assert crc == crc32c(rest + b"abc")
    assert head == b"MRR1" + struct.pack("<I", crc) + rest
    assert len(head) == RECORD_HEADER_BYTES


def test_a_segment_header_has_the_documented_bytes() -> None:
    data = encode_segment_header(SEGMENT)
    body = (
        b"MRSEG1\0\0"
        + SEGMENT.log_id
        + struct.pack("<QQIQQ", 7, SEGMENT.nonce, 0xAABBCCDD, 42, 1 << 26)
    )
    assert data == (body + struct.pack("<I", crc32c(body))).ljust(4096, b"\0")
    assert SEGMENT_USED_BYTES == 64, "it must lie in one 512-byte sector, so that it is never torn"


@given(numbers, numbers, sums, st.lists(st.binary(max_size=50), max_size=5))
def test_a_record_comes_back(
    serial: int, generation: int, prev_crc: int, buffers: list[bytes]
) -> None:
    segment = SEGMENT._replace(generation=generation)
    payload = b"".join(buffers)
    head, crc = encode_record(
        DATA, segment, serial=serial, prev_crc=prev_crc, buffers=buffers, length=len(payload)
    )
    header = decode_record(head)
    assert header is not None
    assert header == (crc, prev_crc, DATA, generation, segment.nonce, serial, len(payload))
    assert has_valid_checksum(header, memoryview(head), payload)


def test_no_flipped_bit_of_a_record_passes() -> None:
    payload = b"the payload"
    head, _ = encode_record(
        END, SEGMENT, serial=1, prev_crc=0, buffers=[payload], length=len(payload)
    )
    record = bytearray(head + payload)
    for place in range(len(record) * 8):
        record[place // 8] ^= 1 << place % 8
        header = decode_record(record)
        assert header is None or not has_valid_checksum(
            header, memoryview(record), bytes(record[RECORD_HEADER_BYTES:])
        )
        record[place // 8] ^= 1 << place % 8


@given(st.binary(min_size=16, max_size=16), numbers, numbers, sums, numbers, numbers)
def test_a_segment_header_comes_back(
    log_id: bytes, generation: int, nonce: int, prev_crc: int, serial: int, size: int
) -> None:
    header = SegmentHeader(log_id, generation, nonce, prev_crc, serial, size)
    assert decode_segment_header(encode_segment_header(header)) == header


def test_no_flipped_bit_of_a_segment_header_passes() -> None:
    data = bytearray(encode_segment_header(SEGMENT))
    for place in range(SEGMENT_USED_BYTES * 8):
        data[place // 8] ^= 1 << place % 8
        assert decode_segment_header(bytes(data)) is None
        data[place // 8] ^= 1 << place % 8


@given(st.binary(max_size=200))
def test_any_bytes_can_be_decoded(data: bytes) -> None:
    """Whatever lies on the disk, decoding gives a header or None and raises nothing."""
    decode_segment_header(data)
    decode_record(data)


@pytest.mark.parametrize(
    ("length", "sectors"), [(0, 1), (4096 - 64, 1), (4096 - 63, 2), (4096, 2), (8192 - 64, 2)]
)
def test_a_record_takes_whole_sectors(length: int, sectors: int) -> None:
    assert record_span(length) == sectors * 4096


def test_a_part_of_a_position() -> None:
    position = LogPosition(generation=3, offset=4160, length=100)
    assert position.part(start=10, length=20) == LogPosition(generation=3, offset=4170, length=20)


def test_marks_compare_by_age() -> None:
    assert LogMark(1, 8192, 9, 2) < LogMark(2, 4096, 0, 2) < LogMark(2, 8192, 0, 3)
