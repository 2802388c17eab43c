"""Blobs: every damaged block is noticed, by whole reads and by reads of a range."""

from __future__ import annotations

import asyncio

import pytest

from millrace import limits
from millrace.backend.object_blobs import ObjectBlobs, decode_blocks, encode_blob
from millrace.errors import Corrupt
from tests.support.memory_objects import MemoryBackend, MemoryObjects

BLOCK = limits.BLOB_BLOCK_BYTES


def test_the_bytes_of_a_blob_are_frozen() -> None:
    assert encode_blob(b"").hex() == "8ab2288c"
    assert encode_blob(b"blob").hex() == "626c6f62ccf0328f"
    assert decode_blocks("b", encode_blob(b"blob"), 0) == b"blob"


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK + 3, BLOCK + 4, 2 * BLOCK + 5])
def test_a_damaged_block_is_refused(at: int) -> None:
    async def main() -> None:
        backend = MemoryBackend()
        blobs = ObjectBlobs(MemoryObjects(backend))
        await blobs.put("b", bytes(2 * BLOCK + 100))
        stored = bytearray(backend.objects["blob/b"])
        stored[at] ^= 1
        backend.objects["blob/b"] = bytes(stored)
        damaged = at // (BLOCK + 4)
        with pytest.raises(Corrupt, match=f"block {damaged} "):
            await blobs.get("b")
        with pytest.raises(Corrupt):
            await blobs.get("b", damaged * BLOCK, 1)
        # The other blocks are read all the same.
        sound = 1 if damaged == 0 else 0
        assert await blobs.get("b", sound * BLOCK, 10) == bytes(10)

    asyncio.run(main())


def test_blocks_in_another_place_are_refused() -> None:
    stored = encode_blob(bytes(2 * BLOCK))
    half = len(stored) // 2
    with pytest.raises(Corrupt):
        decode_blocks("b", stored[half:] + stored[:half], 0)
