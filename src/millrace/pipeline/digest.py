"""Rows as short numbers, by which they are compared wherever they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import NamedTuple, cast

import msgspec
import pyarrow as pa

from millrace.sinks.base import DELETE, OP


class Line(NamedTuple):
    """A row, for comparison."""

    key: str
    """The values of its key, as JSON."""
    seq: int
    """0, where there is no such column."""
    digest: int | None
    """None: it deletes its key."""


def lines_of(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], key: Sequence[str]
) -> Iterator[Line]:
    """Rows of a view; without a key each is known by its digest."""
    for batch in batches:
        names = batch.schema.names
        rows = _plain(batch, columns)
        keys = _plain(batch, key)
        seqs = batch.column("seq").to_pylist() if "seq" in names else [0] * batch.num_rows
        ops = batch.column(OP).to_pylist() if OP in names and key else [None] * batch.num_rows
        for row, named, seq, op in zip(rows, keys, seqs, ops, strict=True):
            digest = digest_of(row)
            name = msgspec.json.encode(named).decode() if key else str(digest)
            yield Line(name, cast("int", seq), None if op == DELETE else digest)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a sink with the types of the view, as far as they can be had."""
    columns: list[object] = []
    for field in schema:
        column = batch.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)  # type: ignore[arg-type]


def digest_of(row: Sequence[object]) -> int:
    """64 bits that change with every value."""
    encoded = msgspec.json.encode(row)
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big")


def _plain(batch: pa.RecordBatch, columns: Sequence[str]) -> list[list[object]]:
    if not columns:
        return [[] for _ in range(batch.num_rows)]
    found = [batch.column(name).to_pylist() for name in columns]
    return [[_shown(value) for value in row] for row in zip(*found, strict=True)]


def _shown(value: object) -> object:
    """What JSON has, the same for all ways in which a sink may give a value back."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {str(name): _shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    return value if isinstance(value, str | int | bool | None) else str(value)
