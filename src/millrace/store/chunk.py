"""Chunked bitmaps of seqs: 8,192 seqs share one value of the index.

A chunk is stored as offsets from its first seq, which fit a 32-bit roaring bitmap: in its portable
form if that is short, as 1,024 plain bytes otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np
from pyroaring import BitMap, BitMap64

from millrace import limits
from millrace.errors import Corrupt

ROWS = limits.CHUNK_ROWS
PLAIN_BYTES = ROWS // 8

_ROARING = b"\0"
_PLAIN = b"\1"

_BUCKETS = struct.Struct("<Q")
_HIGH = struct.Struct("<I")
_ONE_BUCKET = struct.Struct("<QI")

_CONTAINER = struct.Struct("<IIHHI")
_NO_RUNS = 12346
"""The cookie of a portable roaring bitmap without runs."""
_ARRAY_MAX = 4096
"""A roaring container with more values is a plain bitmap of 8,192 bytes."""


def pack(offsets: BitMap) -> bytes:
    """Encode a chunk for the index; the chunk is never empty."""
    offsets.run_optimize()
    roaring = offsets.serialize()
    if len(roaring) <= PLAIN_BYTES:
        return _ROARING + bytes(roaring)
    bits = np.zeros(ROWS, np.bool_)
    bits[np.frombuffer(offsets.to_array(), np.uint32)] = True
    return _PLAIN + np.packbits(bits, bitorder="little").tobytes()


def unpack(data: bytes) -> BitMap:
    """Decode a chunk that `pack` encoded.

    Raises:
        Corrupt: the chunk does not decode.
    """
    if data[:1] == _ROARING:
        try:
            return BitMap.deserialize(data[1:])
        except ValueError as error:
            raise Corrupt(f"a chunk of marks does not decode: {error}") from error
    if data[:1] != _PLAIN or len(data) != 1 + PLAIN_BYTES:
        raise Corrupt("a chunk of marks has an unknown form")
    # Build the bytes of a roaring container: deserialising avoids a call per value.
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=1), bitorder="little")
    count = int(np.count_nonzero(bits))
    head = _CONTAINER.pack(_NO_RUNS, 1, 0, count - 1, _CONTAINER.size)
    if count > _ARRAY_MAX:
        return BitMap.deserialize(head + data[1:] + bytes(2 * _ARRAY_MAX - PLAIN_BYTES))
    return BitMap.deserialize(head + np.flatnonzero(bits).astype("<u2").tobytes())


def split(seqs: BitMap64) -> Iterator[tuple[int, BitMap]]:
    """Yield the chunks that the seqs fall into, each with its offsets, in order."""
    for high, low in _halves(seqs):
        base = high << 32
        last = low.max()
        end = 0
        while end <= last:
            at = low.next_set_bit(end)
            begin = at - at % ROWS
            end = begin + ROWS
            yield (base + begin) // ROWS, (low & BitMap(range(begin, end))).shift(-begin)


def join(chunks: Iterable[tuple[int, BitMap]]) -> BitMap64:
    """Return the seqs of these chunks; a chunk may occur several times."""
    halves: dict[int, list[BitMap]] = {}
    for chunk, offsets in chunks:
        high, low = divmod(chunk * ROWS, 1 << 32)
        halves.setdefault(high, []).append(offsets.shift(low) if low else offsets)
    seqs = BitMap64()
    for high, parts in halves.items():
        whole = BitMap.union(*parts) if len(parts) > 1 else parts[0]
        if whole:
            seqs |= BitMap64.deserialize(_ONE_BUCKET.pack(1, high) + bytes(whole.serialize()))
    return seqs


def _halves(seqs: BitMap64) -> Iterator[tuple[int, BitMap]]:
    """Yield the upper 32 bits of the seqs, each with the bitmap of the lower ones.

    The portable form of a 64-bit bitmap is a list of 32-bit ones.
    """
    data = memoryview(bytes(seqs.serialize()))
    (count,) = _BUCKETS.unpack_from(data)
    at = _BUCKETS.size
    for _ in range(count):
        (high,) = _HIGH.unpack_from(data, at)
        low = BitMap.deserialize(bytes(data[at + _HIGH.size :]))
        yield high, low
        at += _HIGH.size + len(low.serialize())


def span(low: int, high: int) -> BitMap64:
    """Return all seqs within [low, high]; none if `low` is above `high`."""
    return BitMap64(range(low, high + 1)) if low <= high else BitMap64()
