"""What a program hands over to be published, and rows as it gets them back."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace import limits
from millrace.core import check
from millrace.core.block import Block
from millrace.core.check import HeadersLike
from millrace.core.model import Headers, Row
from millrace.core.model import Message as CheckedMessage

Body = bytes | bytearray | memoryview
"""A body; it is stored, and read, as bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message for `publish_many`. Without a body it deletes its key."""

    body: Body | None
    key: bytes | str | None = None
    """Text is stored as UTF-8."""
    headers: HeadersLike = ()
    """A mapping, or pairs where order or duplicates matter; values are bytes or text."""


Rows = Sequence[bytes | Message | CheckedMessage] | pa.RecordBatch | pa.Table
"""What may be published at once: bodies, messages, or Arrow columns."""


def make_block(rows: Rows) -> Block:
    """The rows side by side, checked.

    Raises:
        Invalid, TooLarge: a row or all of them together; the error names the field and the limit.
    """
    if isinstance(rows, pa.Table):
        batches = rows.combine_chunks().to_batches()
        return check.rows(batches[0] if len(batches) == 1 else [])
    if not isinstance(rows, list | tuple):
        return check.rows(rows)
    kinds = set(map(type, rows))
    if kinds == {bytes}:
        # The way of many bodies, which must cost little for each.
        return check.bodies(rows)
    if Message in kinds and len(rows) <= limits.PUBLISH_MESSAGES_MAX:
        rows = [
            check.message(row.body, row.key, row.headers) if isinstance(row, Message) else row
            for row in rows
        ]
    return check.rows(rows)


def fitting(batch: pa.RecordBatch, size: int) -> int:
    """How many of the first rows have up to `size` bytes together; no body is looked at."""
    if batch.nbytes <= size:
        return batch.num_rows
    return bisect_right(range(batch.num_rows), size, key=lambda at: batch.slice(0, at + 1).nbytes)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The rows of an Arrow batch of the common schema."""
    headers: list[Headers] = [()] * batch.num_rows
    column = batch.column("headers")
    if column.null_count < len(column):
        headers = [
            tuple((pair["name"], pair["value"]) for pair in pairs) if pairs else ()
            for pairs in column.to_pylist()
        ]
    return [
        Row(seq, time_ms, body, key, pairs)
        for seq, time_ms, body, key, pairs in zip(
            batch.column("seq").to_numpy().tolist(),
            batch.column("time").cast(pa.int64()).to_numpy().tolist(),
            batch.column("value").to_pylist(),
            batch.column("key").to_pylist(),
            headers,
            strict=True,
        )
    ]
