"""Compressed blocks: the same rows in fewer bytes; contradictory sizes are refused."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from millrace.core.format import block
from millrace.core.format.block import FLAG_SQUEEZED, HEADER, LENGTH, Block
from millrace.core.model import NewMessage
from millrace.errors import Corrupt

ROWS = [
    NewMessage(None if at % 7 == 0 else b"value %d " % at * 40, b"k%d" % at, (("h", b"x"),))
    for at in range(400)
]


def squeezed(codec: block.Codec) -> bytes:
    block = Block.of_messages(ROWS).squeezed(codec)
    assert block.codec == codec
    data = b"".join(block.encode())
    assert block.is_squeezed
    return data


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_block_comes_back(codec: block.Codec) -> None:
    plain = Block.of_messages(ROWS)
    data = squeezed(codec)
    assert len(data) % 8 == 0
    assert len(data) < plain.size() // 3
    found, used = Block.decode(memoryview(data + b"behind"))
    assert used == len(data)
    assert found.rows(0, found.count, 1, 5) == plain.rows(0, plain.count, 1, 5)
    assert found.arrow(1, 1, 5).equals(plain.arrow(1, 1, 5))
    assert (found.codec, found.is_squeezed) == (codec, True)
    assert b"".join(found.encode()) == data, "written again, it is the same"


def test_what_is_small_or_dense_stays_as_it_is() -> None:
    small = Block.of_bodies([b"x" * 100])
    assert small.squeezed("zstd") is small
    noise = Block.of_bodies([random.Random(1).randbytes(200_000)])
    block = noise.squeezed("lz4")
    assert block.codec == "lz4"
    written = b"".join(block.encode())
    assert not block.is_squeezed
    assert written == b"".join(noise.encode())


def damaged(at: int, content: bytes) -> memoryview:
    data = bytearray(squeezed("zstd"))
    data[at : at + len(content)] = content
    return memoryview(bytes(data))


def test_a_size_is_judged_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object, **__: object) -> None:
        raise AssertionError("it was unpacked")

    monkeypatch.setattr(pa, "decompress", allocate)
    lengths = struct.pack("<10I", *[2**31] * 10)
    with pytest.raises(Corrupt, match="cannot be"):
        Block.decode(damaged(8, lengths))


@pytest.mark.parametrize(
    ("at", "content"),
    [
        (6, struct.pack("<H", 9)),
        (HEADER.size, LENGTH.pack(2**40)),
        (HEADER.size + LENGTH.size, b"\0" * 16),
        (12, struct.pack("<I", 8)),
    ],
    ids=["codec", "length", "content", "size"],
)
def test_what_contradicts_itself_is_corrupt(at: int, content: bytes) -> None:
    with pytest.raises(Corrupt):
        Block.decode(damaged(at, content))


def test_a_block_that_is_cut_is_corrupt() -> None:
    data = memoryview(squeezed("zstd"))
    for size in (HEADER.size, HEADER.size + 4, len(data) // 2, len(data) - 8):
        with pytest.raises(Corrupt):
            Block.decode(data[:size])


def test_the_header_says_so() -> None:
    _, flags, codec, *_ = HEADER.unpack_from(squeezed("lz4"))
    assert flags & FLAG_SQUEEZED
    assert codec == 2
