"""Lanes: hash buckets of keys, computed identically by Spark and by Python.

Rule 1: both must agree for ever, since tables are laid out by lanes. So keys are integers,
booleans, texts or bytes, which both convert to text in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import Invalid

_BETWEEN = b"\x00"


def check_key(schema: pa.Schema, key: Sequence[str]) -> None:
    """Check that rows have the columns of a key, of supported types.

    Raises:
        Invalid: a column is missing or has another type.
    """
    for name in key:
        if name not in schema.names:
            raise Invalid(
                f"key names the column {name!r}; the rows have {', '.join(schema.names)}",
                field="key",
            )
        kind = schema.field(name).type
        if not (_is_number(kind) or _is_text(kind)):
            raise Invalid(
                f"column {name!r} is of type {kind}; a key is a whole number, a boolean, a text or "
                "bytes: cast it",
                field="key",
            )


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def _is_text(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def lanes_of(batch: pa.RecordBatch, key: Sequence[str], lanes: int) -> npt.NDArray[np.int64]:
    """Return the lane of each row, from 0."""
    joined, *others = (_texts(batch.column(name)) for name in key)
    for column in others:
        # If one of them is null, the other is taken without a separator.
        between = pa.scalar(_BETWEEN, pa.binary())
        both = pc.binary_join_element_wise(joined, column, between)  # type: ignore[call-overload]
        joined = pc.coalesce(both, joined, column)
    texts = cast("pa.BinaryArray", joined.fill_null(b""))
    return (_checksums(texts) % lanes).astype(np.int64)


def lane_sql(key: Sequence[str], lanes: int) -> str:
    """Return the Spark SQL expression that computes the same lane."""
    parts = ", ".join(f"cast(`{name.replace('`', '``')}` as string)" for name in key)
    return f"pmod(crc32(cast(concat_ws(char(0), {parts}) as binary)), {lanes})"


def _texts(column: pa.Array[pa.Scalar[pa.DataType]]) -> pa.BinaryArray:
    if _is_number(column.type):
        column = pc.cast(column, pa.string())
    return cast("pa.BinaryArray", pc.cast(column, pa.binary()))


def _table() -> npt.NDArray[np.uint32]:
    """Compute the table of CRC-32 for each byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table


_TABLE = _table()

_LONG_BYTES = 96
"""From this length on, zlib's CRC-32 of each text is faster."""


def _checksums(texts: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of each text, vectorized over all texts: byte by byte, the longest
    first.
    """
    count = len(texts)
    _, ends, body = texts.buffers()
    if not count or ends is None or body is None or not body.size:
        return np.zeros(count, np.uint32)
    offsets = np.frombuffer(memoryview(ends), np.int32, count + 1, texts.offset * 4)
    lengths = np.diff(offsets)
    if lengths.max() > _LONG_BYTES:
        return np.fromiter(map(crc32, cast("list[bytes]", texts.to_pylist())), np.uint32, count)
    data = np.frombuffer(memoryview(body), np.uint8)
    order = np.argsort(-lengths, kind="stable")
    starts = offsets[:-1][order]
    longer = (count - np.cumsum(np.bincount(lengths)))[:-1]
    sums = np.full(count, 0xFFFFFFFF, np.uint32)
    for at, rows in enumerate(longer.tolist()):
        old = sums[:rows]
        sums[:rows] = _TABLE[(old ^ data[starts[:rows] + at]) & 0xFF] ^ (old >> 8)
    found = np.empty(count, np.uint32)
    found[order] = sums ^ np.uint32(0xFFFFFFFF)
    return found
