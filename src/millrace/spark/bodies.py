"""Parsers of bodies into typed columns: JSON, Avro or Arrow.

Rule 1: a body that does not match the schema is preserved in the column `_corrupt`; its row has
nulls in the typed columns. One bad body fails nothing.

Rule 2: a delete has no body: all of its typed columns are null, and so is `_corrupt`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Annotated, Protocol, TypeAlias, TypedDict, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.format.column import Array
from millrace.errors import Invalid
from millrace.spark.options import Format

Fields = Sequence["pa.Field[pa.DataType]"]


class Parsed:
    """The result of parsing the bodies of a batch."""

    def __init__(
        self, columns: list[Array], corrupt: Array, rows: Sequence[int] | None = None
    ) -> None:
        self.columns = columns
        """The typed columns, in the order of the schema."""
        self.corrupt = corrupt
        self._rows = None if rows is None else pa.array(rows, pa.int64())

    @property
    def is_spread(self) -> bool:
        """True if a message may be several rows."""
        return self._rows is not None

    def spread(self, column: Array) -> Array:
        """Repeat the values of a column of messages for each of their rows."""
        return column if self._rows is None else column.take(self._rows)


class BodyParser(Protocol):
    """Parses bodies of one format."""

    def parse(self, bodies: Array) -> Parsed:
        """Return the typed columns of these bodies."""
        ...


def make_parser(format: Format, schema: str, fields: Fields) -> BodyParser:
    """Make a parser for bodies of these fields; `schema` is the option, which Avro needs whole.

    Raises:
        Invalid: a type is unsupported, or a dependency of the format is not installed.
    """
    if format == "json":
        return JsonParser(fields)
    if format == "arrow":
        return ArrowParser(fields)
    return AvroParser(schema, fields)


def of_records(
    records: list[Mapping[str, object] | None], bodies: Array, bad: set[int], fields: Fields
) -> Parsed:
    """Convert records to columns; None is a delete, or a record that is known to be bad."""
    columns: list[Array] = []
    for field in fields:
        values = [None if record is None else record.get(field.name) for record in records]
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            # Rare: a value has the right type, and is too large for its column.
            unfit = {at for at, value in enumerate(values) if not _fits(value, field.type)}
            if not unfit:
                raise
            left = [None if at in unfit else record for at, record in enumerate(records)]
            return of_records(left, bodies, bad | unfit, fields)
    return Parsed(columns, kept(bodies, bad))


def _fits(value: object, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def kept(bodies: Array, bad: set[int]) -> Array:
    """Return the bodies at these places, and null at all others."""
    if not bad:
        return pa.nulls(len(bodies), pa.binary())
    mask = pa.array([at in bad for at in range(len(bodies))])
    found: Array = pc.if_else(mask, bodies, pa.scalar(None, pa.binary()))
    return found


def no_way(field: str, kind: pa.DataType, format: Format) -> Invalid:
    """Return the error for a type that bodies of a format cannot have."""
    return Invalid(
        f"the field {field!r} is of type {kind}, which format={format} does not give; read it as "
        "string and cast it in Spark",
        field="schema",
    )


# --- JSON objects as columns ---------------------------------------------------------------------
#
# Fields that are not in the schema are ignored; a missing one is null. Numbers must fit their
# types; text is not converted to numbers, nor numbers to text. Binary is base64, times are in ISO
# 8601.

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


# --- Arrow bodies as columns: each is an IPC stream, of one row or many --------------------------
#
# Every row of a body is a row of its own, with the columns of its message. Columns are matched by
# name, and cast if that is lossless; a missing one is null.

Chunks: TypeAlias = "pa.ChunkedArray[pa.Scalar[pa.DataType]]"
_WITH_VALUES = (
    pa.ListType,
    pa.LargeListType,
    pa.FixedSizeListType,
    pa.DictionaryType,
    pa.RunEndEncodedType,
)


class ArrowParser:
    """Parses IPC streams."""

    def __init__(self, fields: Fields) -> None:
        self._schema = pa.schema([field.with_nullable(True) for field in fields])

    def parse(self, bodies: Array) -> Parsed:
        """Return the typed columns of the rows of these bodies, with the body of each row."""
        tables: list[pa.Table] = []
        rows: list[int] = []
        bad: set[int] = set()
        nothing = pa.Table.from_pylist([{}], self._schema)
        for at, body in enumerate(cast("pa.BinaryArray", bodies)):
            table = nothing
            if body.is_valid:
                found = self._table(body.as_buffer())
                if found is None:
                    bad.add(at)
                else:
                    table = found
            tables.append(table)
            rows += [at] * table.num_rows
        joined = pa.concat_tables(tables).combine_chunks()
        columns = [_whole(joined.column(name)) for name in self._schema.names]
        parsed = Parsed(columns, kept(bodies, bad), rows)
        parsed.corrupt = parsed.spread(parsed.corrupt)
        return parsed

    def _table(self, body: pa.Buffer) -> pa.Table | None:
        try:
            with pa.ipc.open_stream(body) as reader:
                table = reader.read_all()
            # Offsets are validated first, since a cast would follow invalid ones out of bounds.
            table.validate(full=True)
            columns = [
                _cast(table.column(field.name), field.type)
                if field.name in table.column_names
                else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
                for field in self._schema
            ]
            found = pa.Table.from_arrays(columns, schema=self._schema)
            found.validate(full=True)
            return found
        except (pa.ArrowException, KeyError, ValueError, OSError, SystemError):
            return None


def _cast(column: Chunks, kind: pa.DataType) -> Chunks:
    """Cast a column; raise ValueError if Arrow would not do it correctly."""
    if column.type != kind and _has_list_view(column.type):
        # Arrow's cast reads one offset past the end of the buffer.
        raise ValueError(f"{column.type} is not cast")
    return column.cast(kind)


def _has_list_view(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.ListViewType | pa.LargeListViewType):
        return True
    if isinstance(kind, pa.MapType):
        return _has_list_view(kind.key_type) or _has_list_view(kind.item_type)
    if isinstance(kind, pa.StructType | pa.UnionType):
        return any(_has_list_view(kind.field(at).type) for at in range(kind.num_fields))
    if isinstance(kind, pa.BaseExtensionType):
        return _has_list_view(kind.storage_type)
    return isinstance(kind, _WITH_VALUES) and _has_list_view(kind.value_type)


def _whole(column: Chunks) -> Array:
    """Return the column as one array; Arrow may have several chunks, or zero."""
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


# -------------------------------------------------------------------------------------------------
# Avro records as columns: bodies as a writer encodes them with a schema, without a file's header.
#
# The option `schema` is the writer's schema, as JSON; the columns are those of its record.

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
