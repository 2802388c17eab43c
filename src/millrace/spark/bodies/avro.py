"""Avro records as columns: bodies as a writer encodes them with a schema, without a file's header.

The option `schema` is the writer's schema, as JSON; the columns are those of its record.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import cast

import msgspec
import pyarrow as pa

from millrace.core.format.column import Array
from millrace.errors import Invalid
from millrace.spark.bodies.parse import Fields, Parsed, of_records

_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
"""Types of Avro, and of Spark."""

_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
"""Supported logical types, besides decimals. Values of all others have their storage type."""


class AvroParser:
    """Parses records by the schema that they were written with."""

    def __init__(self, schema: str, fields: Fields) -> None:
        """Parse the schema, for bodies with these fields.

        Raises:
            Invalid: the schema is invalid, or fastavro is not installed.
        """
        try:
            from fastavro import parse_schema, schemaless_reader
        except ModuleNotFoundError as error:
            raise Invalid(
                "format=avro needs fastavro, here and on the executors; install millrace[avro]",
                field="format",
            ) from error
        self._fields = fields
        self._schema = parse_schema(cast("dict[str, object]", _understood(_decoded(schema))))
        self._read = schemaless_reader

    def parse(self, bodies: Array) -> Parsed:
        """Return the typed columns of these bodies."""
        records: list[Mapping[str, object] | None] = []
        bad: set[int] = set()
        for at, body in enumerate(cast("pa.BinaryArray", bodies).to_pylist()):
            records.append(None if body is None else self._record(body))
            if body is not None and records[-1] is None:
                bad.add(at)
        return of_records(records, bodies, bad, self._fields)

    def _record(self, body: bytes) -> Mapping[str, object] | None:
        stream = BytesIO(body)
        try:
            found = self._read(stream, self._schema)
        # The exceptions of the decoder for invalid bytes are not documented.
        except Exception:  # noqa: BLE001
            return None
        # Remaining bytes mean that the body was written with another schema.
        return cast("Mapping[str, object]", found) if stream.tell() == len(body) else None


def avro_ddl(schema: str) -> str:
    """Return the columns of a record as a DDL string of Spark.

    Raises:
        Invalid: it is not a record, or a field has an unsupported type.
    """
    record = _decoded(schema)
    if record.get("type") != "record":
        raise Invalid("schema is no record of Avro", field="schema")
    return ", ".join(
        f"`{field['name']}` {_type(field['name'], field['type'])}"
        for field in cast("list[dict[str, object]]", record.get("fields", []))
    )


def _decoded(schema: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(schema, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise Invalid(
            f"schema is no schema of Avro in JSON, which format=avro needs: {error}",
            field="schema",
        ) from None


def _understood(kind: object) -> object:
    """Return the schema without unsupported logical types."""
    if isinstance(kind, list):
        return [_understood(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    known = (*_LOGICAL, "decimal")
    return {
        name: _understood(value)
        for name, value in kind.items()
        if name != "logicalType" or value in known
    }


def _type(name: object, kind: object) -> str:
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if len(others) == 1:
            return _type(name, others[0])
    elif isinstance(kind, dict):
        logical, inner = kind.get("logicalType"), kind.get("type")
        if logical == "decimal":
            return f"decimal({kind['precision']},{kind.get('scale', 0)})"
        if logical in _LOGICAL:
            return _LOGICAL[str(logical)]
        if inner == "array":
            return f"array<{_type(name, kind['items'])}>"
        if inner == "record":
            parts = (f"`{one['name']}`:{_type(one['name'], one['type'])}" for one in kind["fields"])
            return f"struct<{','.join(parts)}>"
        return _type(name, inner)
    elif isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind]
    raise Invalid(
        f"the field {name!r} is of the Avro type {kind!r}, which no column has", field="schema"
    )
