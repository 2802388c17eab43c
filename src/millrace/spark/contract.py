"""Validation and conversion of rows that Spark writes into a queue.

Rule 1: a column that is unknown, or of a wrong type, is refused before any row is read.

Rule 2: a row deletes its key only if the column `op` says so. A missing value is an error: a failed
computation must not delete.

Rule 3: the bytes of a batch are used without a copy if their type permits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

from millrace.client.message import rows_that_fit
from millrace.client.reserved import plain_column
from millrace.core import validate
from millrace.core.format.block import SCHEMA
from millrace.core.format.column import Array
from millrace.errors import Invalid
from millrace.sinks.base import DELETE, OP, PUT

IGNORED = ("shard", "seq", "timestamp", "snapshot")
"""Columns of the source with the origin of a row; they are ignored, since it gets a new
position.
"""

_HEADERS = SCHEMA.field("headers").type


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def _is_word(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_time(kind: DataType) -> bool:
    numbers = (IntegralType, FloatType, DoubleType, DecimalType, DayTimeIntervalType)
    return isinstance(kind, numbers)


def _is_whole(kind: DataType) -> bool:
    return isinstance(kind, IntegralType)


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _is_text(kind.valueType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    pair = kind.elementType.fields
    return (
        len(pair) == 2
        and pair[0].name in ("key", "name")
        and pair[1].name == "value"
        and isinstance(pair[0].dataType, StringType)
        and _is_text(pair[1].dataType)
    )


_KNOWN: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "value": (_is_text, "binary or string"),
    "key": (_is_text, "binary or string"),
    "headers": (
        _is_headers,
        "array<struct<key string, value binary>> or map<string, binary>, the values of either "
        "also string",
    ),
    OP: (_is_word, "string"),
    "group": (_is_text, "binary or string"),
    "delay": (_is_time, "a number of seconds or a day-time interval"),
    "ttl": (_is_time, "a number of seconds or a day-time interval"),
    "priority": (_is_whole, "a whole number"),
}


def check_schema(schema: StructType) -> None:
    """Check that rows of this schema can be written.

    Raises:
        Invalid: a column is wrong; the error names it.
    """
    names = [field.name for field in schema.fields]
    for at, field in enumerate(schema.fields):
        if field.name in names[:at]:
            raise Invalid(
                f"column {field.name!r} is there twice; drop or rename one", field=field.name
            )
        if field.name in IGNORED:
            continue
        if field.name == "dedup":
            raise Invalid(
                "column 'dedup': what Spark writes is known by its range and written once, so that "
                "rows have no de-duplication ids; drop it",
                field="dedup",
            )
        known = _KNOWN.get(field.name)
        if known is None:
            raise Invalid(
                f"column {field.name!r} is none that a queue knows ({', '.join(_KNOWN)}); drop or "
                "rename it, or put it into the value, say with to_json(struct(*))",
                field=field.name,
            )
        fits, wanted = known
        if not fits(field.dataType):
            raise Invalid(
                f"column {field.name!r} is {field.dataType.simpleString()}, not {wanted}; cast it",
                field=field.name,
            )
    if "value" not in names:
        raise Invalid(
            "there is no column 'value', which is the body of each message; name it, say with "
            "to_json(struct(*)).alias('value')",
            field="value",
        )


def to_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a batch of Spark, whose schema was checked, to the columns of a queue.

    Raises:
        Invalid: a value is wrong; the error names its column.
    """
    names = set(batch.schema.names)
    made: dict[str, Array] = {"value": _values(batch)}
    for name in ("key", "group"):
        if name in names:
            made[name] = _binary(batch.column(name))
    if "headers" in names:
        made["headers"] = _headers(batch.column("headers"))
    for name in ("delay", "ttl"):
        if name in names:
            made[name] = _seconds(batch.column(name))
    if "priority" in names:
        made["priority"] = batch.column("priority")
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


def _binary(column: Array) -> Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _values(batch: pa.RecordBatch) -> Array:
    values = _binary(batch.column("value"))
    if OP not in batch.schema.names:
        if values.null_count:
            raise Invalid(
                "column 'value' is null in a row; a delete is told by the column 'op'",
                field="value",
            )
        return values
    ops = batch.column(OP)
    strange = pc.filter(ops, pc.invert(pc.is_in(ops, pa.array([PUT, DELETE, None], ops.type))))
    if len(strange):
        raise Invalid(
            f"column 'op' is {validate.shown(strange[0].as_py())}, not {PUT!r} or {DELETE!r}",
            field=OP,
        )
    deletes = pc.is_in(ops, pa.array([DELETE], ops.type))
    if pc.any(pc.and_(pc.is_null(values), pc.invert(deletes))).as_py():
        raise Invalid(
            "column 'value' is null in a row whose op is not 'delete'; a body may be empty, but "
            "must be there",
            field="value",
        )
    if not pc.any(deletes).as_py():
        return values
    return cast("Array", pc.if_else(deletes, pa.scalar(None, pa.binary()), values))


def _headers(column: Array) -> Array:
    if pa.types.is_map(column.type):
        mapped = cast("pa.MapType[pa.DataType, pa.DataType]", column.type)
        pair = pa.struct([("key", mapped.key_type), ("value", mapped.item_type)])
        column = column.cast(pa.list_(pair))
    lists = cast("pa.ListArray[pa.StructScalar]", column)
    ends = np.cumsum(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    pairs = cast(pa.StructArray, lists.flatten())
    kind = cast("pa.ListType[pa.StructType]", _HEADERS).value_type
    items = pa.StructArray.from_arrays(
        [_of_pair(pairs, 0).cast(pa.utf8()), _binary(_of_pair(pairs, 1))],
        fields=[kind.field(0), kind.field(1)],
    )
    made = pa.ListArray.from_arrays(offsets, items, type=_HEADERS)
    # Rows are often copies of a queue's; headers that the server wrote are removed.
    return plain_column(cast("Array", made))


def _of_pair(pairs: pa.StructArray, at: int) -> Array:
    found = pairs.flatten()[at]
    if found.null_count:
        raise Invalid(
            "column 'headers' has a header without a name, or without a value; a value may be "
            "empty, but must be there",
            field="headers",
        )
    return found


def _seconds(column: Array) -> Array:
    if pa.types.is_duration(column.type):
        micros = column.cast(pa.duration("us")).cast(pa.int64())
        return cast("Array", pc.divide(micros.cast(pa.float64()), 1e6))
    return column.cast(pa.float64())


def cut(batch: pa.RecordBatch, *, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts of at most `rows` rows and `size` bytes; a larger row gets a part of
    its own.
    """
    at = 0
    while at < batch.num_rows:
        part = batch.slice(at, rows)
        part = part.slice(0, max(rows_that_fit(part, size), 1))
        yield part
        at += part.num_rows
