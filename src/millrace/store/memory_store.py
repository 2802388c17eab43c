"""The naive twin of the disk store: plain dictionaries and bitmaps, obviously right.

It serves the simulator, the tests and whoever wants to know what a store means. Nothing in it is
fast, and nothing survives the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.changes import Entry
from millrace.core.commands import Held, Outlived, RowFacts, StageFacts
from millrace.core.fold import Reader, ShardMeta
from millrace.core.group_cells import group_of
from millrace.core.group_list import number_of
from millrace.core.model import Epoch, GroupId, Index, Kind, Row, ShardId
from millrace.store.memory_resync import MemoryExport, MemoryIntake
from millrace.store.memory_shard import SCAN_ROWS, MemoryShard, arrow_rows
from millrace.wal.record import Position


class MemoryStore:
    """Committed batches, in memory; see `Store`."""

    def __init__(self) -> None:
        self._shards: dict[ShardId, MemoryShard] = {}
        self._applied: dict[GroupId, Index] = {}

    def fold(self, entry: Entry, position: Position | None) -> None:
        if entry.index <= self.applied(entry.group):
            return
        for batch in entry.batches:
            shard = self._shards.setdefault(batch.shard, MemoryShard())
            if batch.index <= shard.meta.index:
                continue
            shard.fold(batch, entry.history)
            if batch.changes.dropped:
                del self._shards[batch.shard]
        self._applied[entry.group] = entry.index

    def applied(self, group: GroupId) -> Index:
        return self._applied.get(group, Index(0))

    def set_applied(self, group: GroupId, index: Index, epoch: Epoch) -> None:
        """All shards of the group were brought to this entry by a resync."""
        self._applied[group] = index

    def shards(self) -> list[ShardId]:
        return sorted(self._shards)

    def meta(self, shard: ShardId) -> ShardMeta | None:
        found = self._shards.get(shard)
        return found.meta if found is not None else None

    def cells(
        self, shard: ShardId, kind: Kind | None = None, prefix: bytes = b""
    ) -> Iterable[tuple[Kind, bytes, bytes]]:
        found = self._shards[shard].cells
        return [
            (one, key, found[one, key])
            for one, key in sorted(found)
            if kind is None or (one is kind and key.startswith(prefix))
        ]

    def cell(self, shard: ShardId, kind: Kind, key: bytes) -> bytes | None:
        return self._shards[shard].cells.get((kind, key))

    def points(self, shard: ShardId, names: Sequence[tuple[Kind, bytes]]) -> list[bytes | None]:
        return [self.cell(shard, kind, key) for kind, key in names]

    def cells_from(
        self, shard: ShardId, kind: Kind, low: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        found = [(key, value) for _, key, value in self.cells(shard, kind) if key >= low]
        return found[:limit]

    def find(self, shard: ShardId, keys: Sequence[bytes]) -> list[int]:
        found = self._shards[shard]
        return [found.newest(key) for key in keys]

    def hidden(self, shard: ShardId, low: int, high: int) -> BitMap64:
        found = self._shards[shard]
        seqs = range(low, min(high, found.meta.last_seq) + 1)
        return BitMap64([seq for seq in seqs if not found.is_ready(seq)])

    def ended(self, shard: ShardId, low: int, high: int) -> BitMap64:
        found = self._shards[shard]
        rows = {seq: found.facts(seq) for seq in range(low, min(high, found.meta.last_seq) + 1)}
        return BitMap64([seq for seq, row in rows.items() if not row.live or row.kept])

    def lost(self, shard: ShardId) -> BitMap64:
        """The rows that somebody may ask for, and that were unreadable when they were folded."""
        return self._shards[shard].lost

    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64:
        found = self._shards[shard]
        seqs = range(low, min(high, found.meta.last_seq) + 1)
        return BitMap64([seq for seq in seqs if found.is_dead(seq)])

    def row(self, shard: ShardId, seq: int) -> RowFacts:
        return self._shards[shard].facts(seq)

    def stage(self, shard: ShardId, name: str, *, grouped: bool) -> StageFacts:
        rows = self._shards[shard].stages.get(name, [])
        deletes = [at for at, row in enumerate(rows) if row.body is None]
        groups = [number_of(group_of(row.key, row.headers)) for row in rows] if grouped else []
        return StageFacts([row.key for row in rows], deletes, groups)

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        found = self._shards[shard]
        for seq in sorted(found.rows):
            if found.rows[seq].time_ms >= time_ms:
                return seq
        return found.meta.last_seq + 1

    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> Outlived:
        found = self._shards[shard]
        seqs, upto = BitMap64(), after
        for seq in sorted(found.rows):
            if seq <= after or not found.is_visible(seq, Reader()):
                continue
            time_ms = found.rows[seq].time_ms
            if time_ms >= before_ms or len(seqs) == limit:
                return Outlived(seqs, upto, time_ms)
            seqs.add(seq)
            upto = seq
        return Outlived(seqs, found.meta.last_seq, None)

    def held(self, shard: ShardId, pin: int) -> list[Held]:
        return self._shards[shard].held(pin)

    def rows(self, shard: ShardId, seqs: BitMap64, size: int = sys.maxsize) -> list[Row]:
        found = self._shards[shard].rows
        rows = [found[seq] for seq in seqs if seq in found]
        sizes = accumulate(row.size() for row in rows)
        fit = sum(1 for total in sizes if total <= size)
        return rows[: max(fit, 1)]

    def hot(self, shard: ShardId, seqs: BitMap64) -> bool:
        return True

    def warm(self, shard: ShardId, seqs: BitMap64) -> Callable[[], None]:
        return lambda: None

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        found = self._shards[shard]
        seen = [
            found.rows[seq]
            for seq in sorted(found.rows)
            if after < seq <= upto and found.is_visible(seq, reader)
        ]
        rows = iter(seen)
        while some := list(islice(rows, SCAN_ROWS)):
            yield arrow_rows(shard, some)

    # --- Resync ----------------------------------------------------------------------------------

    def export(self, shard: ShardId) -> MemoryExport | None:
        found = self._shards.get(shard)
        return MemoryExport(shard, found) if found is not None else None

    def intake(self, shard: ShardId, meta: ShardMeta, *, gone: int, shared: int) -> MemoryIntake:
        return MemoryIntake(self._shards, shard, meta)

    def forget(self, shard: ShardId) -> None:
        self._shards.pop(shard, None)
