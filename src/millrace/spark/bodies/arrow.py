"""Arrow bodies as columns: each is an IPC stream, of one row or many.

Every row of a body is a row of its own, with the columns of its message. Columns are found by their
names, and cast where nothing is lost by it; one that is missing is null.
"""

from __future__ import annotations

from typing import cast

import pyarrow as pa

from millrace.core.column import Array
from millrace.spark.bodies.parse import Fields, Parsed, kept


class ArrowParser:
    """Parses IPC streams."""

    def __init__(self, fields: Fields) -> None:
        self._schema = pa.schema([field.with_nullable(True) for field in fields])

    def parse(self, bodies: Array) -> Parsed:
        """The typed columns of the rows of these bodies, and which body each is of."""
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
            # What offsets point to is looked at first: a cast would follow them anywhere.
            table.validate(full=True)
            columns = [
                table.column(field.name).cast(field.type)
                if field.name in table.column_names
                else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
                for field in self._schema
            ]
            return pa.Table.from_arrays(columns, schema=self._schema)
        except (pa.ArrowException, KeyError, ValueError, OSError):
            return None


def _whole(column: pa.ChunkedArray[pa.Scalar[pa.DataType]]) -> Array:
    """One array; Arrow may leave several, or none."""
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
