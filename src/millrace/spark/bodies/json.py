"""JSON objects as columns.

Fields that are not in the schema are ignored; a missing one is null. Numbers must fit their types;
text is not converted to numbers, nor numbers to text. Binary is base64, times are in ISO 8601.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, TypedDict, cast

import msgspec
import pyarrow as pa

from millrace.core.format.column import Array
from millrace.spark.bodies.parse import Fields, Parsed, no_way, of_records

_WIDTHS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}

_FLOAT_MAX = 3.4028234663852886e38
"""The largest number of four bytes; larger ones would become infinite."""


class JsonParser:
    """Parses objects, each in one pass that checks its types."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._decoder = msgspec.json.Decoder(_record("body", fields))

    def parse(self, bodies: Array) -> Parsed:
        """Return the typed columns of these bodies."""
        records: list[Mapping[str, object] | None] = []
        bad: set[int] = set()
        decode = self._decoder.decode
        for at, body in enumerate(cast("pa.BinaryArray", bodies).to_pylist()):
            try:
                found = None if body is None else cast("Mapping[str, object]", decode(body))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                found = None
                bad.add(at)
            records.append(found)
        return of_records(records, bodies, bad, self._fields)


def _record(name: str, fields: Fields) -> object:
    """Return the type by which msgspec validates an object; fields may be missing, or null."""
    hints = {field.name: _optional(_hint(field.name, field.type)) for field in fields}
    return TypedDict(name, hints, total=False)  # type: ignore[operator]


def _optional(hint: object) -> object:
    return hint | None  # type: ignore[operator]


def _hint(name: str, kind: pa.DataType) -> object:
    if kind in _WIDTHS:
        most = 2 ** _WIDTHS[kind]
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if pa.types.is_boolean(kind):
        return bool
    if kind == pa.float32():
        return Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)]
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_string(kind):
        return str
    if pa.types.is_binary(kind):
        return bytes
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_timestamp(kind):
        return datetime
    if pa.types.is_date(kind):
        return date
    if pa.types.is_list(kind):
        return list[_optional(_hint(name, kind.value_type))]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        return _record(name, [kind.field(at) for at in range(kind.num_fields)])
    raise no_way(name, kind, "json")
