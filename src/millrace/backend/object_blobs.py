"""Blobs in an object store: one object each, in blocks with checksums.

A block is up to 256 KiB of the blob and the CRC-32C of its number and bytes behind it, so that the
place of every block follows from its number; see docs/formats/backend.md.
"""

from __future__ import annotations

import asyncio
import struct

from crc32c import crc32c

from millrace import limits
from millrace.backend.backoff import Backoff, Sleep
from millrace.backend.objects import BackendUnavailable, ObjectStore, check_name
from millrace.errors import Corrupt, Exists, NotFound

_CRC = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_BLOCK = limits.BLOB_BLOCK_BYTES
_STORED = _BLOCK + _CRC.size


class ObjectBlobs:
    """Keeps each blob in the object `blob/NAME`."""

    def __init__(self, objects: ObjectStore, sleep: Sleep = asyncio.sleep) -> None:
        self._objects = objects
        self._sleep = sleep

    async def put(self, name: str, data: bytes) -> None:
        stored, backoff = encode_blob(data), Backoff(self._sleep)
        while True:
            try:
                if await self._objects.create(_name(name), stored) is not None:
                    return
                found = await self._objects.read(_name(name))
            except BackendUnavailable:
                await backoff.wait()
                continue
            if found is not None and found[0] == stored:
                return
            if found is not None:
                raise Exists(f"the blob {name!r} exists with other contents", field="name")
            await backoff.wait()

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        first = start // _BLOCK
        if length is None:
            found = await self._objects.read(_name(name))
            stored = None if found is None else found[0][first * _STORED :]
        else:
            last = max(start + length - 1, start) // _BLOCK
            stored = await self._objects.read_range(
                _name(name), first * _STORED, (last - first + 1) * _STORED
            )
        if stored is None:
            raise NotFound(f"there is no blob {name!r}", field="name")
        data = decode_blocks(name, stored, first)
        begin = start - first * _BLOCK
        return data[begin:] if length is None else data[begin : begin + length]

    async def names(self, prefix: str) -> list[str]:
        entries = await self._objects.entries(f"blob/{prefix}")
        return [entry.name.removeprefix("blob/") for entry in entries]

    async def delete(self, name: str) -> None:
        await self._objects.delete(_name(name))


def encode_blob(data: bytes) -> bytes:
    """Encode a blob in blocks; an empty one has one empty block."""
    parts: list[bytes] = []
    for number, at in enumerate(range(0, len(data) or 1, _BLOCK)):
        block = data[at : at + _BLOCK]
        parts += (block, _CRC.pack(crc32c(block, crc32c(_NUMBER.pack(number)))))
    return b"".join(parts)


def decode_blocks(name: str, stored: bytes, first: int) -> bytes:
    """Decode and verify blocks from the block `first` on.

    Raises:
        Corrupt: a block is damaged, or in another place.
    """
    parts: list[bytes] = []
    for number, at in enumerate(range(0, len(stored), _STORED), first):
        block = stored[at : at + _STORED]
        data, crc = block[: -_CRC.size], block[-_CRC.size :]
        if len(block) < _CRC.size or crc != _CRC.pack(crc32c(data, crc32c(_NUMBER.pack(number)))):
            raise Corrupt(f"block {number} of the blob {name!r} is damaged", field="name")
        parts.append(data)
    return b"".join(parts)


def _name(name: str) -> str:
    return check_name(f"blob/{name}")
