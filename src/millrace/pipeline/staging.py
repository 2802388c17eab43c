"""Stages rows in Spark's executors, for amounts that never fit into one process.

Rule 1: rows of one lane go to one call of `stage`, if the sink requires it.

Rule 2: an error of a sink is returned as a row and raised at the driver with its class.

Rule 3: a sink with a key never gets a row whose key is null, whatever the sink itself checks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypedDict, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from millrace.errors import MillraceError, Refused, Retry, Stale, Unknown
from millrace.sinks.base import Held, Sink, Task
from millrace.sinks.boundary import Span
from millrace.sinks.lane import lane_sql
from millrace.sinks.null_key import NullKey, admitted

_STAGED = "staged binary, code string, message string, field string, rows bigint"
_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("staged", pa.binary()),
    pa.field("code", pa.string()),
    pa.field("message", pa.string()),
    pa.field("field", pa.string()),
    pa.field("rows", pa.int64()),
]
_SCHEMA = pa.schema(_FIELDS)


def stage_frame(
    frame: DataFrame,
    sink: Sink,
    held: Held,
    span: Span,
    schema: pa.Schema,
    null_key: NullKey = "refuse",
) -> tuple[Sequence[bytes], int]:
    """Stage the rows of a frame in its executors; return the staged data and the number of rows.

    Raises:
        Stale, Retry, Refused: the error of the sink in one of the tasks.
    """
    if sink.lanes:
        frame = frame.repartition(F.expr(lane_sql(sink.key, sink.lanes)))
    found = frame.mapInArrow(_stager(sink, held, span, schema, null_key), _STAGED).toArrow()
    told = cast("list[_Told]", found.to_pylist())
    for one in told:
        if one["code"] is not None:
            raise _ERRORS.get(one["code"], Refused)(one["message"], field=one["field"])
    return [one["staged"] for one in told], sum(one["rows"] for one in told)


def read_frame(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a frame in batches of Arrow, which preserve their types."""
    for row in frame.mapInArrow(_packed, "packed binary").toLocalIterator():
        yield from pa.ipc.open_stream(bytes(row["packed"]))


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        packed = pa.array([stream.getvalue().to_pybytes()], pa.binary())
        yield pa.RecordBatch.from_arrays([packed], names=["packed"])


class _Told(TypedDict):
    """The result row of a task."""

    staged: bytes
    code: str | None
    message: str
    field: str | None
    rows: int


_ERRORS: dict[str, type[MillraceError]] = {Stale.code: Stale, Retry.code: Retry}


def _stager(
    sink: Sink, held: Held, span: Span, schema: pa.Schema, null_key: NullKey
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return stage_part(sink, Task(held, span, secrets.token_hex(8)), schema, batches, null_key)

    return stage


def stage_part(
    sink: Sink,
    task: Task,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    null_key: NullKey = "refuse",
) -> Iterator[pa.RecordBatch]:
    """Stage the rows of one task, in its executor."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    counted = _Counted(admitted(chain([first], batches), sink.key, null_key), schema)
    row: tuple[bytes | None, str | None, str | None, str | None, int]
    try:
        row = (sink.stage(task, counted), None, None, None, counted.rows)
    except MillraceError as error:
        code = Retry.code if isinstance(error, Retry | Unknown) else error.code
        code = Stale.code if isinstance(error, Stale) else code
        row = (None, code, error.message, error.field, 0)
    columns = [pa.array([value], field.type) for value, field in zip(row, _SCHEMA, strict=True)]
    yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


class _Counted:
    """Batches cast to the sink's schema, counted as they pass."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch.cast(self._schema)
