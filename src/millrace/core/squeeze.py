"""Compressed bodies of blocks: the buffers of a block as one compressed piece.

Rule 1: a block is compressed only where that makes it shorter.
Rule 2: how large it is unpacked stands in its header, and is judged before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from millrace import limits
from millrace.errors import Corrupt

Codec = Literal["", "zstd", "lz4"]

SQUEEZED_BYTES_MIN = 64 * 1024
"""Smaller blocks are written as they are: they cost a commit, and not its bytes."""

LENGTH = struct.Struct("<Q")
"""Bytes of the compressed piece, which follows."""

NUMBERS: dict[Codec, int] = {"zstd": 1, "lz4": 2}
_ARROW: dict[int, Literal["zstd", "lz4_raw"]] = {1: "zstd", 2: "lz4_raw"}
_CODECS: dict[int, Codec] = {number: codec for codec, number in NUMBERS.items()}


def squeeze(buffers: Sequence[bytes | bytearray | memoryview], size: int, codec: Codec) -> bytes:
    """The buffers, padded as a block has them, compressed; empty if that is not shorter."""
    whole = b"".join(buffers)
    packed: bytes = pa.compress(whole, codec=_ARROW[NUMBERS[codec]], asbytes=True)
    return packed if len(packed) + LENGTH.size < size else b""


def expand(data: memoryview, at: int, size: int, number: int) -> tuple[memoryview, int, Codec]:
    """The `size` bytes whose compressed piece stands at `at`, where it ends, and how it was made.

    Raises:
        Corrupt: it is larger than any block, longer than what holds it, or does not unpack.
    """
    codec = _CODECS.get(number)
    if codec is None or size > limits.SEGMENT_BYTES_MAX or at + LENGTH.size > len(data):
        raise Corrupt(f"a compressed block of {size} bytes by codec {number} cannot be")
    (length,) = LENGTH.unpack_from(data, at)
    begin = at + LENGTH.size
    if begin + length > len(data):
        raise Corrupt("a compressed block is shorter than it says")
    try:
        whole = pa.decompress(data[begin : begin + length], size, codec=_ARROW[number])
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"a compressed block does not unpack: {error}") from error
    if whole.size != size:
        raise Corrupt(f"a compressed block has {whole.size} bytes, not {size}")
    return memoryview(whole), begin + ((length + 7) & ~7), codec
