"""Arrow bodies as columns: each is an IPC stream, of one row or many.

Every row of a body is a row of its own, with the columns of its message. Columns are matched by
name, and cast if that is lossless; a missing one is null.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import pyarrow as pa

from millrace.core.format.column import Array
from millrace.spark.bodies.parse import Fields, Parsed, kept

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
