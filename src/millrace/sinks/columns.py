"""Columns of tables of files, and the conversion of rows to them.

Rule 1: a type that a lake cannot store is refused with the column's name, before anything is
written.

Rule 2: a value is never changed: if a column is narrower, a value that does not fit is refused.

Rule 3: every column of a table that Millrace creates is nullable, so that it can be left out later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pt

from millrace.core.format.column import Array
from millrace.errors import Invalid

_WIDER: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pt.is_int8, pa.int32()),
    (pt.is_int16, pa.int32()),
    (pt.is_uint8, pa.int32()),
    (pt.is_uint16, pa.int32()),
    (pt.is_uint32, pa.int64()),
    (pt.is_uint64, pa.int64()),
    (pt.is_float16, pa.float32()),
    (pt.is_large_string, pa.string()),
    (pt.is_string_view, pa.string()),
    (pt.is_large_binary, pa.binary()),
    (pt.is_binary_view, pa.binary()),
    (pt.is_fixed_size_binary, pa.binary()),
    (pt.is_date64, pa.date32()),
)
"""Types that lakes store as another type."""

_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    pt.is_boolean,
    pt.is_int32,
    pt.is_int64,
    pt.is_float32,
    pt.is_float64,
    pt.is_string,
    pt.is_binary,
    pt.is_date32,
    pt.is_decimal128,
)


def stored(schema: pa.Schema, lake: str) -> pa.Schema:
    """Return the columns of a new table for rows of this schema.

    Raises:
        Invalid: a column cannot be stored; `field` names it.
    """
    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.setdefault(name.lower(), name)
        if other is not name or schema.names.count(name) > 1:
            raise Invalid(
                f"columns {other!r} and {name!r} are one and the same to many readers of a {lake} "
                "table; rename one",
                field=name,
            )
        if not name or any(letter in name for letter in " ,;{}()\n\t=."):
            raise Invalid(
                f"a {lake} table cannot have a column {name!r}; use letters, digits and _",
                field=name or "schema",
            )
    return pa.schema([pa.field(each.name, _stored(each.type, each.name, lake)) for each in schema])


def _stored(kind: pa.DataType, name: str, lake: str) -> pa.DataType:
    if isinstance(kind, pa.DictionaryType):
        return _stored(kind.value_type, name, lake)
    for is_this, wider in _WIDER:
        if is_this(kind):
            return wider
    if any(is_this(kind) for is_this in _PLAIN):
        return kind
    if isinstance(kind, pa.TimestampType) and kind.unit != "ns":
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return pa.list_(pa.field("element", _stored(kind.value_type, name, lake)))
    if isinstance(kind, pa.MapType):
        return pa.map_(_stored(kind.key_type, name, lake), _stored(kind.item_type, name, lake))
    if isinstance(kind, pa.StructType) and kind.num_fields:
        return pa.struct(
            [pa.field(each.name, _stored(each.type, name, lake)) for each in kind.fields]
        )
    raise Invalid(
        f"column {name!r} is of type {kind}, which a {lake} table cannot hold; cast it, for "
        "instance to microseconds or to a text",
        field=name,
    )


def added(
    table: pa.Schema, rows: pa.Schema, lake: str, *, evolve: bool
) -> list[pa.Field[pa.DataType]]:
    """Return the columns of the rows that the table lacks.

    Raises:
        Invalid: the rows do not fit, or columns may not be added.
    """
    wanted = stored(rows, lake)
    missing: list[pa.Field[pa.DataType]] = []
    for field in wanted:
        if field.name not in table.names:
            missing.append(field)
            continue
        there = table.field(field.name).type
        if not _fits(rows.field(field.name).type, field.type, there):
            raise Invalid(
                f"column {field.name!r} of the rows is {field.type}, that of the table is {there}; "
                "cast it, or use another table",
                field=field.name,
            )
    for field in table:
        if field.name not in wanted.names and not field.nullable:
            raise Invalid(
                f"the table's column {field.name!r} may not be null, and the rows do not have it",
                field=field.name,
            )
    if missing and not evolve:
        names = ", ".join(field.name for field in missing)
        raise Invalid(
            f"the table has no column {names}; add it, leave it out of the rows, or set "
            "evolve = true",
            field=missing[0].name,
        )
    return missing


def _fits(raw: pa.DataType, wanted: pa.DataType, there: pa.DataType) -> bool:
    if there in (raw, wanted) or _plainly(there) == _plainly(wanted):
        return True
    whole, real = (pt.is_int32, pt.is_int64), (pt.is_float32, pt.is_float64)
    return any(is_from(wanted) and is_to(there) for is_from, is_to in (whole, real))


def _plainly(kind: pa.DataType) -> str:
    """Describe a type without the names and nullability of its nested fields, which differ between
    lakes.
    """
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return f"list<{_plainly(kind.value_type)}>"
    if isinstance(kind, pa.MapType):
        return f"map<{_plainly(kind.key_type)}, {_plainly(kind.item_type)}>"
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'{e.name}: {_plainly(e.type)}' for e in kind.fields)}>"
    for is_this, wider in _WIDER:
        if is_this(kind):
            return str(wider)
    return str(kind)


def asked(table: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return some columns of a table; one that it does not have gets the null type."""
    found = (
        table.field(name) if name in table.names else pa.field(name, pa.null()) for name in columns
    )
    return pa.schema(list(found))


def fitted(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert rows to the columns of a table; missing columns are null.

    Raises:
        Invalid: a value does not fit.
    """
    for batch in batches:
        yield batch if batch.schema.equals(schema, check_metadata=True) else _fit(batch, schema)


def _fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Array] = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(at)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowInvalid as error:
                raise Invalid(
                    f"a value of column {field.name!r} does not fit into {field.type}: {error}",
                    field=field.name,
                ) from None
        if column.null_count and not field.nullable:
            raise Invalid(
                f"column {field.name!r} of the table may not be null, and a value is",
                field=field.name,
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
