"""Columns: values of any length side by side, as Arrow has them."""

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
"""Values of up to so many bytes in all are cut from one copy."""


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
        """Which values are null, or None when none is."""
        if not len(self.validity):
            return None
        bits = np.unpackbits(np.frombuffer(self.validity, np.uint8), count=count, bitorder="little")
        return np.equal(bits, 0)

    def largest(self) -> int:
        """Bytes of the largest value."""
        bounds = self.bounds()
        return int(np.diff(bounds).max()) if len(bounds) > 1 else 0

    def value(self, at: int) -> bytes | None:
        """One value; the way of a single message, which must cost little."""
        if self.validity and not self.validity[at >> 3] >> (at & 7) & 1:
            return None
        begin, end = PAIR.unpack_from(self.offsets, 4 * at)
        return bytes(self.data[begin:end])

    def values(self, low: int, high: int) -> list[bytes]:
        """The values [low, high) as bytes; a null is empty."""
        if high - low == 1:
            begin, end = PAIR.unpack_from(self.offsets, 4 * low)
            return [bytes(self.data[begin:end])]
        bounds = self.bounds()[low : high + 1]
        data = memoryview(self.data)
        if low < high and bounds[-1] - bounds[0] <= _COPY_BYTES:
            # Cut from one copy: half as long for short values as a view for each.
            whole = bytes(data[bounds[0] : bounds[-1]])
            return [whole[a:b] for a, b in pairwise((bounds - bounds[0]).tolist())]
        return [bytes(data[a:b]) for a, b in pairwise(bounds.tolist())]


def validated(array: Array, name: str) -> Array:
    """Return an Arrow array all of whose offsets, lengths and texts were checked.

    Raises:
        Invalid: it contradicts itself; it may not be read, cast or sliced.
    """
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        raise Invalid(f"column {name!r} is damaged: {error}", field=name) from error
    return array


def shown_type(kind: pa.DataType) -> str:
    """An Arrow type as a message shows it; types may be nested without end."""
    text = str(kind)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def offsets_of(lengths: Iterable[int], count: int) -> bytes:
    """Where values of these lengths begin, and where the last one ends."""
    if count == 1:
        [length] = lengths
        if length < 2**31:
            return PAIR.pack(0, length)
        lengths = [length]
    return np.fromiter(accumulate(lengths, initial=0), np.int32, count + 1).tobytes()
