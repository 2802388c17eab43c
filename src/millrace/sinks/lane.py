"""Which lane a row belongs to, in Spark and out of it alike.

Rule 1: Spark and Python must agree for ever: tables are laid out by lanes. So keys are whole
numbers, booleans, texts or bytes, which both write in the same way.
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
    """See that rows have the columns of a key, of types that make one.

    Raises:
        Invalid: they have not.
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
    """The lane of each row, from 0."""
    columns = [_texts(batch.column(name)) for name in key]
    rows = zip(*columns, strict=True)
    joined = (_BETWEEN.join(part for part in row if part is not None) for row in rows)
    return np.fromiter((crc32(text) % lanes for text in joined), np.int64, batch.num_rows)


def lane_sql(key: Sequence[str], lanes: int) -> str:
    """The same in Spark's SQL."""
    parts = ", ".join(f"cast(`{name.replace('`', '``')}` as string)" for name in key)
    return f"pmod(crc32(cast(concat_ws(char(0), {parts}) as binary)), {lanes})"


def _texts(column: pa.Array[pa.Scalar[pa.DataType]]) -> list[bytes | None]:
    if _is_number(column.type):
        column = pc.cast(column, pa.string())
    return cast("pa.BinaryArray", pc.cast(column, pa.binary())).to_pylist()
