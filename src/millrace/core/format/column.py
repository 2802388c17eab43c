"""Columns of variable-length values in Arrow's layout."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from millrace.errors import Invalid

Buffer = bytes | bytearray | memoryview
Array: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"

PAIR = struct.Struct("<ii")
"""Two offsets: where a value begins and ends."""

_SHOWN_CHARS = 80
_COPY_BYTES = 64 * 1024
"""Up to this total size, values are cut from one copy."""

_SHORT_BYTES = 64
"""Values of at most this average size are cut from one copy, too, however many they are."""


class Column:
    """Variable-size values: offsets (int32), their bytes, and a validity bitmap if any is null."""

    __slots__ = ("data", "offsets", "validity")

    def __init__(self, offsets: Buffer, data: Buffer, validity: Buffer = b"") -> None:
        self.offsets = offsets
        self.data = data
        self.validity = validity

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Column:
        return cls(offsets_of(map(len, values), len(values)), b"".join(values))

    @classmethod
    def of_optional(cls, values: Sequence[bytes | None]) -> Column:
        if None not in values:
            return cls.of(values)  # type: ignore[arg-type]
        filled = [value or b"" for value in values]
        present = np.fromiter((value is not None for value in values), np.bool_, len(values))
        column = cls.of(filled)
        column.validity = np.packbits(present, bitorder="little").tobytes()
        return column

    def array(self, kind: pa.DataType, count: int) -> Array:
        validity = pa.py_buffer(self.validity) if len(self.validity) else None
        return pa.Array.from_buffers(
            kind, count, [validity, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        )

    def bounds(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.frombuffer(self.offsets, np.int32)

    def absent(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        """Return a mask of the null values, or None if there are none."""
        if not len(self.validity):
            return None
        bits = np.unpackbits(np.frombuffer(self.validity, np.uint8), count=count, bitorder="little")
        return np.equal(bits, 0)

    def largest(self) -> int:
        """Return the bytes of the largest value."""
        bounds = self.bounds()
        return int(np.diff(bounds).max()) if len(bounds) > 1 else 0

    def value(self, at: int) -> bytes | None:
        """Return one value; the fast path of single messages."""
        if self.validity and not self.validity[at >> 3] >> (at & 7) & 1:
            return None
        begin, end = PAIR.unpack_from(self.offsets, 4 * at)
        return bytes(self.data[begin:end])

    def values(self, low: int, high: int) -> list[bytes]:
        """Return the values [low, high) as bytes; a null is empty."""
        if high - low == 1:
            begin, end = PAIR.unpack_from(self.offsets, 4 * low)
            return [bytes(self.data[begin:end])]
        bounds = self.bounds()[low : high + 1]
        data = memoryview(self.data)
        size = int(bounds[-1] - bounds[0])
        if low < high and size <= max(_COPY_BYTES, _SHORT_BYTES * (high - low)):
            # Cut from one copy: twice as fast for short values as a view for each.
            whole = bytes(data[bounds[0] : bounds[-1]])
            return [whole[a:b] for a, b in pairwise((bounds - bounds[0]).tolist())]
        return [bytes(data[a:b]) for a, b in pairwise(bounds.tolist())]

    def texts(self, low: int, high: int) -> list[str]:
        """Return the values [low, high) of a column of valid UTF-8, decoded."""
        bounds = self.bounds()[low : high + 1]
        whole = bytes(memoryview(self.data)[bounds[0] : bounds[-1]])
        if not whole.isascii():
            return [value.decode() for value in self.values(low, high)]
        # One decode for all: in ASCII, offsets in bytes are offsets in characters.
        text = whole.decode()
        return [text[a:b] for a, b in pairwise((bounds - bounds[0]).tolist())]


def validated(array: Array, name: str) -> Array:
    """Return an Arrow array after validation of all its offsets, lengths and texts.

    Raises:
        Invalid: it contradicts itself; it may not be read, cast or sliced.
    """
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        raise Invalid(f"column {name!r} is damaged: {error}", field=name) from error
    return array


def shown_type(kind: pa.DataType) -> str:
    """Return an Arrow type as text for an error; types may be nested without end."""
    text = str(kind)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def offsets_of(lengths: Iterable[int], count: int) -> bytes:
    """Return the offsets of values with these lengths, the end of the last one included."""
    if count == 1:
        [length] = lengths
        if length < 2**31:
            return PAIR.pack(0, length)
        lengths = [length]
    return np.fromiter(accumulate(lengths, initial=0), np.int32, count + 1).tobytes()
