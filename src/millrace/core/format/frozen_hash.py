"""The stable hash that maps keys to shards, rings and buckets; frozen for ever.

Keys placed by it are looked up by it in every later version and on every machine. So it is
specified (`docs/formats/hash.md`), held by golden values, and never changed; Python's own `hash`
differs from process to process.

It spreads keys well, but is not cryptographic: anybody can choose keys that collide.

Rule 1: `hash_many` gives the numbers of `hash_one`, at a cost per batch rather than per key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_SEED = 0x6D696C6C72616365
"""The word `millrace`, read from left to right."""

_WORD = 8


def hash_one(key: bytes) -> int:
    """Return the key's hash, from 0 to 2^64 - 1."""
    state = _mix(_SEED ^ len(key))
    for at in range(0, len(key), _WORD):
        state = _mix(state ^ int.from_bytes(key[at : at + _WORD], "little"))
    return state


def hash_many(keys: Sequence[bytes]) -> Hashes:
    """Return the hash of each key, in their order."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    ends = np.cumsum(lengths)
    return hash_slices(b"".join(keys), ends - lengths, lengths)


def hash_slices(
    data: bytes | bytearray | memoryview,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> Hashes:
    """Return the hashes of adjacent keys: as `hash_one(data[start : start + length])`."""
    padded = np.zeros(len(data) + _WORD, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) + 1,), np.dtype("<u8"), padded, strides=(1,))
    state = _mix_many(np.uint64(_SEED) ^ lengths.astype(np.uint64))
    open_ = np.arange(len(lengths))
    at = 0
    while True:
        open_ = open_[lengths[open_] > at]
        if not len(open_):
            return state
        word = words[starts[open_] + at].astype(np.uint64)
        absent = np.clip(_WORD - (lengths[open_] - at), 0, _WORD - 1).astype(np.uint64)
        word &= np.uint64(_MASK) >> (absent * np.uint64(8))
        state[open_] = _mix_many(state[open_] ^ word)
        at += _WORD


def place(number: int, count: int) -> int:
    """Return the place, from 0, of a hash among `count` places."""
    return number % count


def _mix(state: int) -> int:
    state = (state + _STEP) & _MASK
    state = ((state ^ (state >> 30)) * _FIRST) & _MASK
    state = ((state ^ (state >> 27)) * _SECOND) & _MASK
    return state ^ (state >> 31)


def _mix_many(state: Hashes) -> Hashes:
    state = state + np.uint64(_STEP)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))
