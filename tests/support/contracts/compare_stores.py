"""Every question that a store answers, asked of two of them: the answers must be the same."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import cast

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.cells import WINDOW_KINDS, Kind, PinCell
from millrace.core.format.block import SCHEMA
from millrace.core.format.codec import decode_cell
from millrace.core.model import GroupId, Row, ShardId
from millrace.core.state.fold import Reader
from millrace.core.state.view import number
from millrace.store.base import Store

GROUP = GroupId(1)
"""The commit group of all entries."""

OUTLIVED_STEPS = 64
"""Number of steps in which all rows older than some time are requested."""


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Arrow batches of the common schema as rows; null and empty headers are the same."""
    found: list[Row] = []
    for batch in batches:
        assert batch.schema.equals(SCHEMA), f"{batch.schema} is not the common schema"
        assert batch.num_rows, "an empty batch tells nothing"
        batch.validate(full=True)
        for line in batch.to_pylist():
            headers = tuple((pair["name"], pair["value"]) for pair in line["headers"] or ())
            time_ms = round(cast(datetime, line["time"]).timestamp() * 1000)
            found.append(Row(line["seq"], time_ms, line["value"], line["key"], headers))
    return found


def readers_of(store: Store, shard: ShardId) -> list[Reader]:
    """Return all readers of a shard: the present one, and one for each pin."""
    readers = [Reader(), Reader(retain=True)]
    for kind, key, value in store.cells(shard):
        if kind is Kind.PIN:
            assert isinstance(decode_cell(kind, value), PinCell)
            readers += [Reader(number(key)), Reader(number(key), retain=True)]
    return readers


def stages_of(store: Store, shard: ShardId) -> list[str]:
    return [key.decode() for kind, key, _ in store.cells(shard) if kind is Kind.STAGE]


def compare(store: Store, model: Store, keys: Sequence[bytes] = ()) -> None:
    """Ask both every question; the answers must be the same."""
    assert store.applied(GROUP) == model.applied(GROUP)
    assert store.shards() == model.shards()
    for shard in model.shards():
        meta = model.meta(shard)
        assert meta is not None
        assert store.meta(shard) == meta
        cells = list(model.cells(shard))
        assert list(store.cells(shard)) == cells
        for kind in Kind:
            same = [cell for cell in cells if cell[0] is kind]
            assert list(store.cells(shard, kind)) == same
            for _, key, value in same[:: len(same) // 4 + 1]:
                begins = [cell for cell in same if cell[1].startswith(key[:-1])]
                assert list(store.cells(shard, kind, key[:-1])) == begins
                assert store.cell(shard, kind, key) == value
                assert store.cell(shard, kind, key + b"none") is None
            asked = [(kind, b"none", None), *reversed(same), *same[:1]]
            found_values = store.points(shard, [(kind, key) for _, key, _ in asked])
            assert found_values == [value for _, _, value in asked]
            some = [key for _, key, _ in same[:: len(same) // 3 + 1]]
            # A window goes on just after the last key that it knows.
            starts = (b"", *some, *(key + b"\0" for key in some))
            for start in starts if kind in WINDOW_KINDS else ():
                for limit in (1, 3, len(same) + 1):
                    found = [(key, value) for _, key, value in same if key >= start][:limit]
                    assert store.cells_from(shard, kind, start, limit) == found
        assert store.find(shard, keys) == model.find(shard, keys)
        last = meta.last_seq
        for low, high in ((1, last), (last // 2, last), (1, last // 3)):
            if 1 <= low <= high:
                assert store.hidden(shard, low, high) == model.hidden(shard, low, high)
                assert store.ended(shard, low, high) == model.ended(shard, low, high)
        for name in [*stages_of(model, shard), "there is none"]:
            mine, theirs = (one.stage(shard, name, grouped=True) for one in (store, model))
            assert mine == theirs
        live = _compare_scans(store, model, shard, last)
        assert meta.live == len(live), f"I12: {meta.live} rows are counted, {len(live)} are there"
        _compare_rows(store, model, shard, live, last)


def _compare_scans(store: Store, model: Store, shard: ShardId, last: int) -> list[Row]:
    live: list[Row] = []
    for reader in readers_of(model, shard):
        expected = rows_of(model.scan(shard, 0, last, reader))
        assert rows_of(store.scan(shard, 0, last, reader)) == expected, reader
        low, high = last // 3, last - last // 4
        part = [row for row in expected if low < row.seq <= high]
        assert rows_of(store.scan(shard, low, high, reader)) == part, reader
        if reader == Reader(retain=True):
            live = expected
    return live


def _compare_outlived(
    store: Store, shard: ShardId, live: list[Row], before_ms: int, last: int
) -> None:
    """All that are older are found, in as many steps as it takes, and nothing else."""
    expected = BitMap64([row.seq for row in live if row.time_ms < before_ms])
    seqs_of_live = [row.seq for row in live]
    # Of many rows not one at a time: each step costs the store a page of places.
    for limit in (max(1, last // OUTLIVED_STEPS), max(7, last // 10), last):
        seqs, after = BitMap64(), 0
        while after < last:
            found = store.outlived(shard, after, before_ms, limit)
            assert found.upto <= last
            assert len(found.seqs) <= limit
            assert not found.seqs or after < found.seqs.min() <= found.seqs.max() <= found.upto
            seqs |= found.seqs
            left = bisect_right(seqs_of_live, found.upto)
            if left < len(live):
                assert found.next_ms is not None
                assert found.next_ms <= live[left].time_ms
            if found.next_ms is None or found.next_ms >= before_ms:
                break
            assert found.upto > after, "it would be asked for ever"
            after = found.upto
        assert seqs == expected, f"{list(seqs)} before {before_ms}"


def _compare_rows(store: Store, model: Store, shard: ShardId, live: list[Row], last: int) -> None:
    seqs = BitMap64([row.seq for row in live])
    if not store.hot(shard, seqs):
        store.warm(shard, seqs)()
    assert store.hot(shard, seqs)
    assert store.rows(shard, seqs) == live
    assert store.rows(shard, BitMap64([row.seq for row in live[1::3]])) == live[1::3]
    assert store.rows(shard, BitMap64([last + 1])) == []
    total = sum(row.size() for row in live)
    for size in (0, total // 3, total - 1, total):
        assert store.rows(shard, seqs, size) == model.rows(shard, seqs, size), size
    ended = model.ended(shard, 1, last)
    seen = [row for row in live if row.seq not in ended]
    times = sorted({row.time_ms for row in live})
    for time_ms in [time + more for time in times[:: len(times) // 4 + 1] for more in (0, 1)]:
        first = store.seq_at(shard, time_ms)
        after = [row for row in live if row.time_ms >= time_ms]
        # Of rows that are dead a store may have forgotten the times: they do not count.
        assert [row for row in live if row.seq >= first] == after, f"{first} at {time_ms}"
        _compare_outlived(store, shard, seen, time_ms, last)
    for seq in range(max(1, last - 20), last + 2):
        one, other = store.row(shard, seq), model.row(shard, seq)
        assert (one.live, one.kept) == (other.live, other.kept), seq
        if other.live:
            assert one == other
        elif one.superseded_by and other.superseded_by:
            # Who replaced a row is known as long as its bytes are there, which is the store's own.
            assert one.superseded_by == other.superseded_by
