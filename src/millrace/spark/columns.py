"""Columns of a read, and their conversion without copies.

Rule 1: rows reach Spark as Arrow data over the received bytes; only small batches are concatenated.
Columns with the same value in every row are made once, and sliced.

Rule 2: Spark requires exactly the types that it asked for; they are made from the schema that it
passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core.format.column import Array
from millrace.errors import Invalid
from millrace.sinks.base import DELETE, PUT

TYPES = {
    "shard": "int not null",
    "seq": "bigint not null",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp not null",
    "op": "string not null",
    "snapshot": "bigint not null",
}
"""Every column of a row, in order, with its type in Spark."""

CORRUPT = "_corrupt"
"""Column with the body of a message that does not match the schema; null in all other rows."""

SHARD_COLUMNS = ("seq", "key", "headers", "time", "value")
"""The columns that a queue sends."""

_NEEDS = {"timestamp": "time", "op": "value"}
"""The source column by result column, if their names differ."""


def chosen(columns: tuple[str, ...] | None, *, is_parsed: bool) -> tuple[str, ...]:
    """Return the columns of a read; bodies are omitted if they are parsed.

    Raises:
        Invalid: a named column does not exist, or is named twice.
    """
    if columns is None:
        return tuple(name for name in TYPES if not (is_parsed and name == "value"))
    for at, name in enumerate(columns):
        if name not in TYPES:
            raise Invalid(f"columns names {name!r}; there are {', '.join(TYPES)}", field="columns")
        if name in columns[:at]:
            raise Invalid(f"columns names {name!r} twice", field="columns")
    return columns


def ddl(columns: tuple[str, ...]) -> str:
    """Format the columns as a DDL string of Spark."""
    return ", ".join(f"{name} {TYPES[name]}" for name in columns)


def needed(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the queue's columns from which these are made, without seq."""
    made = {_NEEDS.get(name, name) for name in columns}
    return tuple(name for name in SHARD_COLUMNS[1:] if name in made)


class Shaper:
    """Converts rows of one span to the schema that Spark asked for."""

    def __init__(self, schema: pa.Schema, shard: int, snapshot: int) -> None:
        self._schema = schema
        self._constants = {"shard": shard, "snapshot": snapshot}
        self._made: dict[str, Array] = {}
        self._makers: dict[str, Callable[[pa.RecordBatch], Array]] = {
            "seq": lambda batch: batch.column("seq").view(pa.int64()),
            "timestamp": self._timestamp,
            "op": self._op,
            "headers": self._headers,
        }

    def column(self, name: str, batch: pa.RecordBatch) -> Array:
        """Return one column of these rows, in the requested type."""
        if name in self._constants:
            return self._same(name, batch.num_rows)
        maker = self._makers.get(name)
        return maker(batch) if maker is not None else batch.column(name)

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with all columns of the schema."""
        columns = [self.column(name, batch) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _same(self, name: str, rows: int) -> Array:
        made = self._made.get(name)
        if made is None or len(made) < rows:
            kind = self._schema.field(name).type
            made = cast(
                "Array",
                pa.repeat(pa.scalar(self._constants[name], kind), max(rows, _LENGTH)),
            )
            self._made[name] = made
        return made.slice(0, rows)

    def _op(self, batch: pa.RecordBatch) -> Array:
        value, rows = batch.column("value"), batch.num_rows
        if value.null_count:
            return cast("Array", pc.if_else(value.is_null(), DELETE, PUT))
        made = self._made.get("op")
        if made is None or len(made) < rows:
            made = cast("Array", pa.repeat(pa.scalar(PUT), max(rows, _LENGTH)))
            self._made["op"] = made
        return made.slice(0, rows)

    def _timestamp(self, batch: pa.RecordBatch) -> Array:
        times = np.asarray(batch.column("time").view(pa.int64()))
        kind = self._schema.field("timestamp").type
        return cast("Array", pa.array(times * 1000).view(kind))

    def _headers(self, batch: pa.RecordBatch) -> Array:
        """Reuse the bytes under the field names of Spark's headers."""
        found = batch.column("headers")
        kind = cast("pa.ListType[pa.StructType]", self._schema.field("headers").type)
        if found.null_count == len(found):
            return cast("Array", pa.nulls(len(found), kind))
        if found.offset:
            found = pa.concat_arrays([found])
        lists = cast("pa.ListArray[pa.StructScalar]", found)
        pairs = cast("pa.StructArray", lists.values)
        item = kind.value_type
        struct = pa.StructArray.from_arrays(
            [pairs.field(0), pairs.field(1)], fields=[item.field(0), item.field(1)]
        )
        return cast(
            "Array",
            pa.Array.from_buffers(
                kind, len(lists), lists.buffers()[:2], lists.null_count, children=[struct]
            ),
        )


_LENGTH = limits.SPARK_BATCH_ROWS


def sized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine or split batches to the size that suits Spark, which has a fixed cost for each."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if small and (
            rows + batch.num_rows > limits.SPARK_BATCH_ROWS
            or size + batch.nbytes > limits.SPARK_BATCH_BYTES
        ):
            yield _joined(small)
            small, rows, size = [], 0, 0
        if batch.num_rows > limits.SPARK_BATCH_ROWS:
            for at in range(0, batch.num_rows, limits.SPARK_BATCH_ROWS):
                yield batch.slice(at, limits.SPARK_BATCH_ROWS)
            continue
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if small:
        yield _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
