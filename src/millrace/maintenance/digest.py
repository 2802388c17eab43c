"""What a store holds, in a few bytes: two stores that hold the same have the same digests.

Rows are hashed column by column, so that it does not matter in which batches they lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import pyarrow as pa

from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import Kind, ShardId
from millrace.store.unreadable import Unreadable


class Held(Protocol):
    """As much of a store as is compared."""

    def shards(self) -> list[ShardId]: ...

    def meta(self, shard: ShardId) -> ShardMeta | None: ...

    def cells(self, shard: ShardId) -> Iterable[tuple[Kind, bytes, bytes]]: ...

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]: ...


class ShardDigest(msgspec.Struct, frozen=True):
    """What one shard comes to."""

    index: int
    rows: int
    meta: str
    cells: str
    row_sum: str


def digest(store: Held) -> dict[int, ShardDigest]:
    """The digest of every shard."""
    return {shard: _shard(store, shard) for shard in store.shards()}


def _shard(store: Held, shard: ShardId) -> ShardDigest:
    meta = store.meta(shard)
    assert meta is not None, "a shard that is listed is there"
    cells = hashlib.blake2b(digest_size=16)
    for kind, key, value in store.cells(shard):
        cells.update(b"%d %d %d " % (kind, len(key), len(value)) + key + value)
    rows = _Rows()
    after: int | None = 0
    while after is not None:
        after = _add_rows(store, shard, after, meta.last_seq, rows)
    summed = hashlib.blake2b(msgspec.msgpack.encode(meta), digest_size=16)
    return ShardDigest(
        meta.index, rows.count, summed.hexdigest(), cells.hexdigest(), rows.hexdigest()
    )


def _add_rows(store: Held, shard: ShardId, after: int, upto: int, rows: _Rows) -> int | None:
    """Add the rows within (after, upto]; returns where to go on behind unreadable ones."""
    try:
        for batch in store.scan(shard, after, upto, Reader(retain=True)):
            rows.add(batch)
    except Unreadable as error:
        # The queue is quarantined; the others, and what it has besides, are compared.
        rows.miss(error.first, error.last)
        return error.last
    return None


def differences(one: dict[int, ShardDigest], other: dict[int, ShardDigest]) -> list[str]:
    """Say what two stores do not have in common, shard by shard."""
    found: list[str] = []
    for shard in sorted({*one, *other}):
        mine, theirs = one.get(shard), other.get(shard)
        if mine is None or theirs is None:
            found.append(f"shard {shard} is only in the {'source' if mine is None else 'backup'}")
            continue
        parts = {
            "entries": (mine.index, theirs.index),
            "counters": (mine.meta, theirs.meta),
            "cells": (mine.cells, theirs.cells),
            "rows": ((mine.rows, mine.row_sum), (theirs.rows, theirs.row_sum)),
        }
        other_parts = [what for what, (left, right) in parts.items() if left != right]
        if other_parts:
            found.append(f"shard {shard} has other {', '.join(other_parts)}")
    return found


class _Rows:
    """The columns of rows, each with a hash of its own."""

    def __init__(self) -> None:
        self.count = 0
        self._hashes = {
            name: hashlib.blake2b(digest_size=16)
            for name in (
                "seq",
                "time",
                *(
                    f"{column} {part}"
                    for column in ("key", "value", "name", "header")
                    for part in ("null", "length", "data")
                ),
                "headers",
            )
        }

    def add(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        self._put("seq", batch.column("seq").to_numpy().tobytes())
        times = batch.column("time").cast(pa.int64()).to_numpy()
        self._put("time", times.tobytes())
        self._add_binary("key", batch.column("key"))
        self._add_binary("value", batch.column("value"))
        headers = cast("pa.ListArray[Any]", batch.column("headers"))
        counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        self._put("headers", counts.astype(np.int64).tobytes())
        names, values = cast("pa.StructArray", headers.flatten()).flatten()
        self._add_binary("name", names.cast(pa.binary()))
        self._add_binary("header", values)

    def miss(self, first: int, last: int) -> None:
        """These cannot be read."""
        self._put("seq", b"unreadable %d %d" % (first, last))

    def _add_binary(self, column: str, array: pa.Array[Any]) -> None:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        self._put(f"{column} null", nulls.tobytes())
        if array.null_count:
            array = array.fill_null(b"")
        if not len(array):
            return
        _, offsets, data = array.buffers()
        assert offsets is not None, "an array of bytes has offsets"
        ends = np.frombuffer(memoryview(offsets), np.int32)[
            array.offset : array.offset + len(array) + 1
        ]
        self._put(f"{column} length", np.diff(ends).astype(np.int64).tobytes())
        if data is not None:
            self._put(f"{column} data", memoryview(data)[int(ends[0]) : int(ends[-1])])

    def _put(self, name: str, data: bytes | memoryview) -> None:
        self._hashes[name].update(data)

    def hexdigest(self) -> str:
        together = hashlib.blake2b(digest_size=16)
        for one in self._hashes.values():
            together.update(one.digest())
        return together.hexdigest()
