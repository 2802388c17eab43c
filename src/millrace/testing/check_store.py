"""The contract of a store: every store must give the same answers as the naive one.

    for check in CHECKS:
        check(make)

`make` gives a new, empty subject. `compare` asks two stores every question there is, and is also
what the property tests use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import cast

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.block import SCHEMA
from millrace.core.codec import decode_cell
from millrace.core.fold import Reader
from millrace.core.model import Kind, PinCell, Row, ShardId
from millrace.core.view import number
from millrace.store.base import Store

Make = Callable[[], "object"]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Arrow batches of the common schema as rows; null and empty headers are the same."""
    found: list[Row] = []
    for batch in batches:
        assert batch.schema.equals(SCHEMA), f"{batch.schema} is not the common schema"
        batch.validate(full=True)
        for line in batch.to_pylist():
            headers = tuple((pair["name"], pair["value"]) for pair in line["headers"] or ())
            time_ms = round(cast(datetime, line["time"]).timestamp() * 1000)
            found.append(Row(line["seq"], time_ms, line["value"], line["key"], headers))
    return found


def readers_of(store: Store, shard: ShardId) -> list[Reader]:
    """Everyone who may look at a shard: as of now, and through each pin."""
    readers = [Reader(), Reader(retain=True)]
    for kind, key, value in store.cells(shard):
        if kind is Kind.PIN:
            cell = decode_cell(kind, value)
            assert isinstance(cell, PinCell)
            readers += [Reader(number(key)), Reader(number(key), retain=True)]
    return readers


def compare(
    store: Store, model: Store, keys: Iterable[bytes] = (), stages: Iterable[str] = ()
) -> None:
    """Ask both every question; the answers must be the same."""
    assert store.shards() == model.shards()
    for shard in model.shards():
        meta = model.meta(shard)
        assert meta is not None
        assert store.meta(shard) == meta
        assert list(store.cells(shard)) == list(model.cells(shard))
        wanted = sorted(keys)
        assert store.find(shard, wanted) == model.find(shard, wanted)
        last = meta.last_seq
        for low, high in ((1, last), (last // 2, last), (1, last // 3)):
            if 1 <= low <= high:
                assert store.hidden(shard, low, high) == model.hidden(shard, low, high)
        for name in stages:
            assert store.stage(shard, name) == model.stage(shard, name)
        _compare_rows(store, model, shard, last)


def _compare_rows(store: Store, model: Store, shard: ShardId, last: int) -> None:
    live: list[Row] = []
    for reader in readers_of(model, shard):
        expected = rows_of(model.scan(shard, 0, last, reader))
        assert rows_of(store.scan(shard, 0, last, reader)) == expected, reader
        low, high = last // 3, last - last // 4
        part = [row for row in expected if low < row.seq <= high]
        assert rows_of(store.scan(shard, low, high, reader)) == part, reader
        if reader == Reader(retain=True):
            live = expected
    seqs = BitMap64([row.seq for row in live])
    if not store.hot(shard, seqs):
        store.warm(shard, seqs)()
    assert store.rows(shard, seqs) == live
    some = BitMap64([row.seq for row in live[1::3]])
    assert store.rows(shard, some) == live[1::3]
    times = sorted({row.time_ms for row in live})
    for time_ms in [time + more for time in times[:: len(times) // 4 + 1] for more in (0, 1)]:
        first = store.seq_at(shard, time_ms)
        assert [row for row in live if row.seq >= first] == [
            row for row in live if row.time_ms >= time_ms
        ], f"{first} is not the first seq of {time_ms}"
    for seq in range(max(1, last - 30), last + 2):
        one, other = store.row(shard, seq), model.row(shard, seq)
        assert (one.live, one.kept) == (other.live, other.kept), seq
        if other.live:
            assert one == other
        elif one.superseded_by and other.superseded_by:
            assert one.superseded_by == other.superseded_by
