"""Mapping between the types of Arrow and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from millrace.errors import Invalid

_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_uint8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_uint32, "bigint"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_uint64, "numeric(20)"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_large_binary, "bytea"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "interval"),
    (pa.types.is_null, "text"),
)

_NESTED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)

_BACK: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    25: pa.string(),
    700: pa.float32(),
    701: pa.float64(),
    1043: pa.string(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}
"""Types by their OID in PostgreSQL."""


def is_nested(kind: pa.DataType) -> bool:
    """Return True if values of the type are stored as JSON."""
    return any(test(kind) for test in _NESTED)


def column_type(name: str, kind: pa.DataType) -> str:
    """Return the type of a new column for these values.

    Raises:
        Invalid: PostgreSQL has no such type.
    """
    if isinstance(kind, pa.TimestampType):
        return "timestamptz" if kind.tz else "timestamp"
    if isinstance(kind, pa.Decimal128Type | pa.Decimal256Type):
        return f"numeric({kind.precision}, {kind.scale})"
    if is_nested(kind):
        return "jsonb"
    for test, found in _PLAIN:
        if test(kind):
            return found
    raise Invalid(
        f"column {name!r} is of type {kind}, which PostgreSQL has no place for; cast it",
        field=name,
    )


def to_json(value: object) -> str | None:
    """Encode a nested value as it is stored; bytes are written in base64."""
    return None if value is None else msgspec.json.encode(value).decode()


def read_type(oid: int) -> pa.DataType | None:
    """Return the type of values that are read back; None: it is inferred."""
    return _BACK.get(oid)
