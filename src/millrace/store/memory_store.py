"""The naive twin of the disk store: plain dictionaries and bitmaps, obviously right.

It serves the simulator, the tests and whoever wants to know what a store means. Nothing in it is
fast, and nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.block import SCHEMA, Block
from millrace.core.changes import Batch, Entry
from millrace.core.codec import encode_cell
from millrace.core.commands import RowFacts, StageFacts
from millrace.core.fold import Mark, Reader, ShardMeta, fold, intervals_before
from millrace.core.model import GroupId, Index, Kind, Row, ShardId, TakeoverCell
from millrace.core.view import number, number_key
from millrace.errors import Fatal
from millrace.log.record import Position

SCAN_ROWS = 1_000
"""Rows of one batch that `scan` yields."""


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
            shard.fold(batch, entry.history)
            if batch.changes.dropped:
                del self._shards[batch.shard]
        self._applied[entry.group] = entry.index

    def applied(self, group: GroupId) -> Index:
        return self._applied.get(group, Index(0))

    def shards(self) -> list[ShardId]:
        return sorted(self._shards)

    def meta(self, shard: ShardId) -> ShardMeta | None:
        found = self._shards.get(shard)
        return found.meta if found is not None else None

    def cells(self, shard: ShardId) -> Iterable[tuple[Kind, bytes, bytes]]:
        found = self._shards[shard].cells
        return [(kind, key, found[kind, key]) for kind, key in sorted(found)]

    def find(self, shard: ShardId, keys: Sequence[bytes]) -> list[int]:
        found = self._shards[shard]
        return [found.newest(key) for key in keys]

    def hidden(self, shard: ShardId, low: int, high: int) -> BitMap64:
        found = self._shards[shard]
        seqs = range(low, min(high, found.meta.last_seq) + 1)
        return BitMap64([seq for seq in seqs if not found.is_ready(seq)])

    def row(self, shard: ShardId, seq: int) -> RowFacts:
        return self._shards[shard].facts(seq)

    def stage(self, shard: ShardId, name: str) -> StageFacts:
        rows = self._shards[shard].stages.get(name, [])
        deletes = [at for at, row in enumerate(rows) if row.body is None]
        return StageFacts([row.key for row in rows], deletes)

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        found = self._shards[shard]
        for seq in sorted(found.rows):
            if found.rows[seq].time_ms >= time_ms:
                return seq
        return found.meta.last_seq + 1

    def rows(self, shard: ShardId, seqs: BitMap64) -> list[Row]:
        found = self._shards[shard].rows
        return [found[seq] for seq in seqs if seq in found]

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


class MemoryShard:
    """One shard; it is also its own ledger."""

    def __init__(self) -> None:
        self.meta = ShardMeta()
        self.rows: dict[int, Row] = {}
        self.keys: dict[bytes, int] = {}
        self.cells: dict[tuple[Kind, bytes], bytes] = {}
        self.stages: dict[str, list[Row]] = {}
        self.marks: dict[tuple[int, Mark], BitMap64] = {}
        self.doomed = BitMap64()
        self.reclaimed = 0

    def fold(self, batch: Batch, history: bytes) -> None:
        if batch.index != self.meta.index + 1:
            raise Fatal(f"batch {batch.index} cannot follow batch {self.meta.index}")
        self._put_rows(batch)
        self.meta, takeover = fold(self.meta, batch, history, self)
        if takeover is not None:
            self._put_takeover(takeover)
        for kind, key, value in batch.changes.cells:
            if value is None:
                self.cells.pop((Kind(kind), key), None)
            else:
                self.cells[Kind(kind), key] = value
        self._reclaim()

    def _put_rows(self, batch: Batch) -> None:
        changes = batch.changes
        blocks = iter(batch.blocks)
        shown = {first: _rows(next(blocks), batch) for first in changes.firsts}
        for name, count in changes.staged:
            for block in islice(blocks, count):
                self.stages.setdefault(name, []).extend(_rows(block, batch))
        for name, first, count in changes.published:
            shown[first] = self._unstage(name, count)
        # In the order of their seqs: a key names the newest row that has it.
        for first, rows in sorted(shown.items()):
            self._show(rows, first, batch)
        for name in changes.unstaged:
            self._unstage(name, len(self.stages.get(name, [])))

    def _unstage(self, name: str, count: int) -> list[Row]:
        """Take the stage's oldest rows out of it."""
        rows = self.stages.pop(name, [])
        if rows[count:]:
            self.stages[name] = rows[count:]
        return rows[:count]

    def _show(self, rows: list[Row], first: int, batch: Batch) -> None:
        # A staged row gets the time of its publication: times never fall from seq to seq.
        is_keyed = self.meta.keyed or batch.changes.made == 3
        for seq, row in enumerate(rows, first):
            self.rows[seq] = Row(seq, batch.time_ms, row.body, row.key, row.headers)
            if is_keyed and row.key is not None:
                self.keys[row.key] = seq

    def _put_takeover(self, cell: TakeoverCell) -> None:
        keys = sorted(key for kind, key in self.cells if kind is Kind.TAKEOVER)
        key = number_key(number(keys[-1]) + 1 if keys else 1)
        self.cells[Kind.TAKEOVER, key] = encode_cell(cell)
        if len(keys) >= limits.HISTORIES_MAX:
            del self.cells[Kind.TAKEOVER, keys[0]]

    def _reclaim(self) -> None:
        """Drop the rows that died before the first pin: nobody can ask for them any more."""
        floor = self.meta.intervals[0].floor
        self.doomed |= BitMap64(range(self.reclaimed, floor + 1))
        self.reclaimed = max(self.reclaimed, floor + 1)
        for seq in self.doomed:
            row = self.rows.pop(seq, None)
            if row is not None and row.key is not None and self.keys.get(row.key) == seq:
                del self.keys[row.key]
        self.doomed.clear()

    # --- The ledger --------------------------------------------------------------------------

    def mark(self, pin: int, mark: Mark, seqs: BitMap64) -> None:
        self.marks[pin, mark] = self.marked(pin, mark) | seqs
        if pin == 0 and mark is Mark.DEAD:
            self.doomed |= seqs

    def kept(self, upto: int) -> BitMap64:
        marked = [seqs for (_, mark), seqs in self.marks.items() if mark is Mark.KEPT]
        return BitMap64(
            [seq for seqs in marked for seq in seqs if seq <= upto and self.is_kept(seq)]
        )

    def merge(self, pin: int, into: int) -> None:
        for mark in Mark:
            self.mark(into, mark, self.marks.pop((pin, mark), BitMap64()))

    def marked(self, pin: int, mark: Mark) -> BitMap64:
        return self.marks.get((pin, mark), BitMap64())

    # --- Questions ---------------------------------------------------------------------------

    def is_dead(self, seq: int) -> bool:
        """Whether it died, though a pin may still show it."""
        return not self.is_visible(seq, Reader(retain=True))

    def is_kept(self, seq: int) -> bool:
        return not self.is_dead(seq) and not self.is_visible(seq, Reader())

    def is_ready(self, seq: int) -> bool:
        """Whether a worker may get it."""
        return self.is_visible(seq, Reader()) and self.rows[seq].body is not None

    def is_visible(self, seq: int, reader: Reader) -> bool:
        if seq not in self.rows:
            return False
        for interval in intervals_before(self.meta, reader):
            if seq <= interval.floor or seq in self.marked(interval.pin, Mark.DEAD):
                return False
            if not reader.retain and seq in self.marked(interval.pin, Mark.KEPT):
                return False
        return True

    def newest(self, key: bytes) -> int:
        seq = self.keys.get(key, 0)
        return 0 if seq == 0 or self.is_dead(seq) else seq

    def facts(self, seq: int) -> RowFacts:
        row = self.rows.get(seq)
        if row is None:
            return RowFacts(live=False)
        live = not self.is_dead(seq)
        newer = self.newest(row.key) if row.key is not None and self.meta.keyed else 0
        return RowFacts(
            live=live,
            delete=row.body is None,
            kept=self.is_kept(seq),
            superseded_by=newer if newer > seq and not live else 0,
        )


def _rows(block: Block, batch: Batch) -> list[Row]:
    return block.rows(0, block.count, 0, batch.time_ms)


def arrow_rows(shard: int, rows: Sequence[Row]) -> pa.RecordBatch:
    """The rows as an Arrow batch of the common schema."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "shard": shard,
                "seq": row.seq,
                "key": row.key,
                "headers": [{"name": name, "value": value} for name, value in row.headers],
                "time": row.time_ms,
                "value": row.body,
            }
            for row in rows
        ],
        schema=SCHEMA,
    )
