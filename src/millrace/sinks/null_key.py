"""The policy for null keys, applied in front of a sink that replaces rows by key.

A null key identifies no row: a table that matched keys would replace all such rows by one of them,
and lose the others. So no sink with a key takes one. The sink's declaration in a pipeline
(`NullKey`) decides: the run is refused, or the rows go to a dead-letter queue.

Rule 1: a key of several columns is null as soon as one of them is.

Rule 2: a delete needs a key as much as a put does.

Rule 3: an empty text is a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import Invalid

_SEQ = "seq"

NullKey = Literal["refuse", "dead_letter"]
"""The policy for rows whose key is null."""


def null_keys(batch: pa.RecordBatch, key: Sequence[str]) -> pa.BooleanArray | None:
    """Return a mask of the rows of a batch that have a null in their key, or None if no row has."""
    columns = [batch.column(name) for name in key]
    # A null count is kept with each column: batches without nulls cost nothing.
    masks = [column.is_null() for column in columns if column.null_count]
    if not masks:
        return None
    return reduce(pc.or_, masks)


def count_null_keys(batch: pa.RecordBatch, key: Sequence[str]) -> int:
    """Return the number of rows of a batch that have a null in their key."""
    mask = null_keys(batch, key)
    return 0 if mask is None else mask.true_count


def check_null_keys(
    batches: Iterable[pa.RecordBatch], key: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Pass batches on unchanged, after checking their keys.

    Raises:
        Invalid: the key of a row is null; nothing of its batch was passed on.
    """
    for batch in batches:
        mask = null_keys(batch, key)
        if mask is not None:
            raise _refused(batch, key, mask)
        yield batch


def with_key(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Pass batches on without the rows whose key is null."""
    for batch in batches:
        mask = null_keys(batch, key)
        yield batch if mask is None else batch.filter(pc.invert(mask))


def admitted(
    batches: Iterable[pa.RecordBatch], key: Sequence[str], null_key: NullKey
) -> Iterable[pa.RecordBatch]:
    """Return the rows that a sink gets by the declared policy for null keys; dead letters go to
    their queue through another sink.

    Raises:
        Invalid: during iteration, if null keys are refused and a row has one.
    """
    return check_null_keys(batches, key) if null_key == "refuse" else with_key(batches, key)


def _refused(batch: pa.RecordBatch, key: Sequence[str], mask: pa.BooleanArray) -> Invalid:
    at = pc.index(mask, pa.scalar(value=True)).as_py()
    name = next(name for name in key if not batch.column(name)[at].is_valid)
    seq = batch.column(_SEQ)[at].as_py() if _SEQ in batch.schema.names else None
    row = "a row" if seq is None else f"the row of seq {seq}"
    return Invalid(
        f"column {name!r} of the key is null in {row}, which names no row to replace or delete; "
        "leave such rows out in a step, name other columns, or declare for the sink of a pipeline "
        'null_key = "dead_letter" and a queue as its dead_letter',
        field="key",
    )
