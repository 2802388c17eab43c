"""Checksums of the cells: a stamp for each stored value, and a sum for each table.

Rule 1: a value is stored with a stamp behind it, the CRC-32C of its table, its key and itself. LMDB
has no checksums of its own: the stamp detects a value that was changed, or is under another key.
Rule 2: a stamp does not detect that a value was lost, or replaced by an older one of the same key.
So each table has a sum over the stamps of all its values, which does not depend on their order and
is updated incrementally.
Rule 3: checksums are computed for many cells per call: a call per cell would cost more than LMDB's
own work.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Self

import numpy as np
from crc32c import crc32c

from millrace import errors, limits

STAMP_BYTES = 4
"""A CRC-32C, little-endian."""

_RESIDUE = 0x48674BC7
"""The CRC-32C of any bytes followed by their own CRC-32C."""

_pack_stamp = struct.Struct("<I").pack
_SUM = struct.Struct("<QQ")
_SUM_MODULUS = 1 << 64


class ValueChecksum:
    """Computes and verifies the stamps of one table."""

    def __init__(self, table: int) -> None:
        # The stamp covers the key's length; otherwise a byte could move from key to value.
        self._seeds = [
            crc32c(struct.pack("<BH", table, length))
            for length in range(limits.CELL_KEY_BYTES_MAX + 1)
        ]

    def stamped(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """Return the values with their stamps appended."""
        return list(map(add, values, map(_pack_stamp, self._sums(keys, values))))

    def damaged(self, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[bytes]:
        """Return the keys whose stored values do not match their stamps."""
        if max(map(len, keys), default=0) > limits.CELL_KEY_BYTES_MAX:
            return [key for key in keys if len(key) > limits.CELL_KEY_BYTES_MAX]
        sums = self._sums(keys, stored)
        if sums.count(_RESIDUE) == len(sums) and min(map(len, stored), default=4) >= STAMP_BYTES:
            return []
        return [
            key
            for key, value, checksum in zip(keys, stored, sums, strict=True)
            if checksum != _RESIDUE or len(value) < STAMP_BYTES
        ]

    def _sums(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[int]:
        seeds = map(self._seeds.__getitem__, map(len, keys))
        return list(map(crc32c, map(add, keys, values), seeds))


@dataclass(frozen=True, slots=True)
class TableChecksum:
    """The number of values of a table, and the sum of their mixed stamps modulo 2**64."""

    count: int = 0
    hash: int = 0

    def plus(self, stored: Sequence[bytes]) -> Self:
        """Return the checksum with these values added."""
        return self._moved(len(stored), _mixed(stored))

    def minus(self, stored: Sequence[bytes]) -> Self:
        """Return the checksum with these values removed.

        It never fails if the checksum is wrong already: the difference stays, for `check` to find.
        """
        return self._moved(-len(stored), -_mixed(stored))

    def _moved(self, count: int, mixed: int) -> Self:
        return type(self)((self.count + count) % _SUM_MODULUS, (self.hash + mixed) % _SUM_MODULUS)

    def packed(self) -> bytes:
        return _SUM.pack(self.count, self.hash)

    @classmethod
    def unpacked(cls, value: bytes) -> Self:
        if len(value) != _SUM.size:
            raise errors.Corrupt(f"a sum of the cells has {len(value)} bytes, not {_SUM.size}")
        return cls(*_SUM.unpack(value))


def _mixed(stored: Sequence[bytes]) -> int:
    """Sum the stamps, each spread over 64 bits first (the finaliser of SplitMix64).

    CRCs are linear; without this, changes that belong together could cancel each other out.
    """
    stamps = b"".join([value[-STAMP_BYTES:] for value in stored])
    if len(stamps) != STAMP_BYTES * len(stored):
        raise errors.Corrupt("a value of the cells is too short to have a stamp")
    bits = np.frombuffer(stamps, dtype="<u4").astype(np.uint64)
    bits += np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return int(bits.sum(dtype=np.uint64))
