"""The reference implementation of the store: plain dictionaries and bitmaps, obviously right.

It serves the simulator and the tests, and specifies the semantics of a store. It is not fast, and
nothing survives the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate, islice
from typing import cast

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.cells import Kind, TakeoverCell
from millrace.core.changes import Batch, Entry
from millrace.core.format.block import SCHEMA, Block, DamagedBlock
from millrace.core.format.codec import encode_cell
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import Death, Epoch, GroupId, Index, Row, ShardId, group_of
from millrace.core.needs import (
    ExpiredRows,
    PinnedRows,
    RowFacts,
    StageFacts,
)
from millrace.core.ordering.group_numbers import number_of
from millrace.core.state.fold import (
    Reader,
    RowMark,
    ShardMeta,
    fold,
    intervals_before,
)
from millrace.core.state.histories import trim
from millrace.core.state.view import number, number_key
from millrace.errors import Fatal
from millrace.store.dead_rows import DEFERRED, DELETE, ENDED
from millrace.wal.record import LogPosition


class MemoryStore:
    """Committed batches, in memory; see `Store`."""

    def __init__(self) -> None:
        self._shards: dict[ShardId, MemoryShard] = {}
        self._applied: dict[GroupId, Index] = {}

    def fold(self, entry: Entry, position: LogPosition | None) -> None:
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
        """Set the applied entry after a resync of all shards of the group."""
        self._applied[group] = index

    def shards(self) -> list[ShardId]:
        return sorted(self._shards)

    def meta(self, shard: ShardId) -> ShardMeta | None:
        state = self._shards.get(shard)
        return state.meta if state is not None else None

    def cells(
        self, shard: ShardId, kind: Kind | None = None, prefix: bytes = b""
    ) -> Iterable[tuple[Kind, bytes, bytes]]:
        cells = self._shards[shard].cells
        return [
            (cell_kind, key, cells[cell_kind, key])
            for cell_kind, key in sorted(cells)
            if kind is None or (cell_kind is kind and key.startswith(prefix))
        ]

    def cell(self, shard: ShardId, kind: Kind, key: bytes) -> bytes | None:
        return self._shards[shard].cells.get((kind, key))

    def points(self, shard: ShardId, names: Sequence[tuple[Kind, bytes]]) -> list[bytes | None]:
        return [self.cell(shard, kind, key) for kind, key in names]

    def cells_from(
        self, shard: ShardId, kind: Kind, low: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        cells = [(key, value) for _, key, value in self.cells(shard, kind) if key >= low]
        return cells[:limit]

    def find(self, shard: ShardId, keys: Sequence[bytes]) -> list[int]:
        state = self._shards[shard]
        return [state.newest(key) for key in keys]

    def hidden(self, shard: ShardId, low: int, high: int) -> BitMap64:
        state = self._shards[shard]
        seqs = range(low, min(high, state.meta.last_seq) + 1)
        return BitMap64([seq for seq in seqs if not state.is_ready(seq)])

    def ended(self, shard: ShardId, low: int, high: int) -> BitMap64:
        state = self._shards[shard]
        rows = {seq: state.facts(seq) for seq in range(low, min(high, state.meta.last_seq) + 1)}
        return BitMap64([seq for seq, row in rows.items() if not row.live or row.kept])

    def lost(self, shard: ShardId) -> BitMap64:
        """Return the rows that are still reachable, and were unreadable when they were folded."""
        return self._shards[shard].lost

    def dead(self, shard: ShardId, low: int, high: int) -> BitMap64:
        state = self._shards[shard]
        seqs = range(low, min(high, state.meta.last_seq) + 1)
        return BitMap64([seq for seq in seqs if state.is_dead(seq)])

    def row(self, shard: ShardId, seq: int) -> RowFacts:
        return self._shards[shard].facts(seq)

    def stage(self, shard: ShardId, name: str, *, grouped: bool) -> StageFacts:
        rows = self._shards[shard].stages.get(name, [])
        deletes = [at for at, row in enumerate(rows) if row.body is None]
        groups = [number_of(group_of(row.key, row.headers)) for row in rows] if grouped else []
        return StageFacts([row.key for row in rows], deletes, groups)

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        state = self._shards[shard]
        for seq in sorted(state.rows):
            if state.rows[seq].time_ms >= time_ms:
                return seq
        return state.meta.last_seq + 1

    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> ExpiredRows:
        state = self._shards[shard]
        seqs, upto = BitMap64(), after
        for seq in sorted(state.rows):
            if seq <= after or not state.is_visible(seq, Reader()):
                continue
            time_ms = state.rows[seq].time_ms
            if time_ms >= before_ms or len(seqs) == limit:
                return ExpiredRows(seqs, upto, time_ms)
            seqs.add(seq)
            upto = seq
        return ExpiredRows(seqs, state.meta.last_seq, None)

    def held(self, shard: ShardId, pin: int) -> list[PinnedRows]:
        return self._shards[shard].held(pin)

    def rows(self, shard: ShardId, seqs: BitMap64, size: int = sys.maxsize) -> list[Row]:
        stored = self._shards[shard].rows
        rows = [stored[seq] for seq in seqs if seq in stored]
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
        state = self._shards[shard]
        seen = [
            state.rows[seq]
            for seq in sorted(state.rows)
            if after < seq <= upto and state.is_visible(seq, reader)
        ]
        rows = iter(seen)
        while page := list(islice(rows, SCAN_ROWS)):
            yield arrow_rows(shard, page)

    # --- Resync ----------------------------------------------------------------------------------

    def export(self, shard: ShardId) -> MemoryExport | None:
        state = self._shards.get(shard)
        return MemoryExport(shard, state) if state is not None else None

    def intake(self, shard: ShardId, meta: ShardMeta, *, gone: int, shared: int) -> MemoryIntake:
        return MemoryIntake(self._shards, shard, meta)

    def forget(self, shard: ShardId) -> None:
        self._shards.pop(shard, None)


# --- One shard ---------------------------------------------------------------------------------

SCAN_ROWS = 1_000
"""Number of rows of a batch that a scan yields."""


class MemoryShard:
    """One shard; it is also its own ledger."""

    def __init__(self) -> None:
        self.meta = ShardMeta()
        self.rows: dict[int, Row] = {}
        self.keys: dict[bytes, int] = {}
        self.cells: dict[tuple[Kind, bytes], bytes] = {}
        self.stages: dict[str, list[Row]] = {}
        self.marks: dict[tuple[int, RowMark], BitMap64] = {}
        self.superseded = BitMap64()
        """Seqs of rows that a newer row of their key replaced while they were live."""
        self.deferred = BitMap64()
        """Seqs of rows that were deferred when they were published."""
        self.lost = BitMap64()
        """Seqs of rows that were unreadable when they were folded."""
        self.doomed = BitMap64()
        self.reclaimed = 0

    def fold(self, batch: Batch, history: bytes) -> None:
        if batch.index != self.meta.index + 1:
            raise Fatal(f"batch {batch.index} cannot follow batch {self.meta.index}")
        self._put_rows(batch)
        replaced = unpack_seqs(batch.changes.died.get(int(Death.SUPERSEDED), b""))
        self.superseded |= BitMap64([seq for seq in replaced if not self.is_kept(seq)])
        self.deferred |= unpack_seqs(batch.changes.aside)
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
        for first, block in zip(changes.firsts, batch.blocks, strict=False):
            if isinstance(block, DamagedBlock):
                self.lost |= BitMap64(range(first, first + block.count))
        blocks = iter(batch.blocks)
        shown = {first: _rows(next(blocks), batch) for first in changes.firsts}
        for name, count in changes.staged:
            for block in islice(blocks, count):
                self.stages.setdefault(name, []).extend(_rows(block, batch))
        for name, first, count in changes.published:
            shown[first] = self._unstage(name, count)
        # Sort by seq: a key names its newest row.
        for first, rows in sorted(shown.items()):
            self._show(rows, first, batch)
        for name in changes.unstaged:
            self._unstage(name, len(self.stages.get(name, [])))

    def _unstage(self, name: str, count: int) -> list[Row]:
        """Remove and return the stage's oldest rows."""
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
        table = {key: self.cells[Kind.TAKEOVER, key] for key in [*keys, key]}
        cursors = [value for (kind, _), value in self.cells.items() if kind is Kind.CURSOR]
        for name, value in trim(table, cursors).items():
            if value is None:
                del self.cells[Kind.TAKEOVER, name]
            else:
                self.cells[Kind.TAKEOVER, name] = value

    def _reclaim(self) -> None:
        """Delete the rows that died before the first pin: no reader can see them any more."""
        floor = self.meta.intervals[0].floor
        self.doomed |= BitMap64(range(self.reclaimed, floor + 1))
        self.reclaimed = max(self.reclaimed, floor + 1)
        for seq in self.doomed:
            row = self.rows.pop(seq, None)
            self.lost.discard(seq)
            if row is not None and row.key is not None and self.keys.get(row.key) == seq:
                del self.keys[row.key]
        self.doomed.clear()

    # --- The ledger --------------------------------------------------------------------------

    def mark(self, pin: int, mark: RowMark, seqs: BitMap64) -> None:
        self.marks[pin, mark] = self.marked(pin, mark) | seqs
        if pin == 0 and mark is RowMark.DEAD:
            self.doomed |= seqs

    def kept(self, upto: int) -> BitMap64:
        marked = [seqs for (_, mark), seqs in self.marks.items() if mark is RowMark.KEPT]
        return BitMap64(
            [seq for seqs in marked for seq in seqs if seq <= upto and self.is_kept(seq)]
        )

    def dead(self, low: int, high: int) -> int:
        marked = [seqs for (_, mark), seqs in self.marks.items() if mark is RowMark.DEAD]
        return BitMap64().union(*marked).range_cardinality(low, high + 1)

    def merge(self, pin: int, into: int) -> None:
        for mark in RowMark:
            self.mark(into, mark, self.marks.pop((pin, mark), BitMap64()))

    def marked(self, pin: int, mark: RowMark) -> BitMap64:
        return self.marks.get((pin, mark), BitMap64())

    # --- Reads -------------------------------------------------------------------------------

    def is_dead(self, seq: int) -> bool:
        """Return True if the row is dead, even if a pin still shows it."""
        return not self.is_visible(seq, Reader(retain=True))

    def is_kept(self, seq: int) -> bool:
        return not self.is_dead(seq) and not self.is_visible(seq, Reader())

    def is_ready(self, seq: int) -> bool:
        """Return True if a worker may get the row in seq order."""
        is_live = self.is_visible(seq, Reader()) and self.rows[seq].body is not None
        return is_live and seq not in self.deferred

    def is_visible(self, seq: int, reader: Reader) -> bool:
        if seq not in self.rows:
            return False
        for interval in intervals_before(self.meta, reader):
            if seq <= interval.floor or seq in self.marked(interval.pin, RowMark.DEAD):
                return False
            if not reader.retain and seq in self.marked(interval.pin, RowMark.KEPT):
                return False
        return True

    def held(self, pin: int) -> list[PinnedRows]:
        """Return the dead rows that the pin holds."""
        seqs = [
            seq
            for seq in sorted(self.rows)
            if self.is_dead(seq) and self.is_visible(seq, Reader(pin, retain=True))
        ]
        return [PinnedRows(seq, seq, 1) for seq in seqs]

    def newest(self, key: bytes) -> int:
        seq = self.keys.get(key, 0)
        return 0 if seq == 0 or self.is_dead(seq) else seq

    def facts(self, seq: int) -> RowFacts:
        row = self.rows.get(seq)
        if row is None:
            return RowFacts(live=False)
        live = not self.is_dead(seq)
        newer = self.newest(row.key) if row.key is not None and seq in self.superseded else 0
        return RowFacts(
            live=live,
            delete=row.body is None,
            kept=self.is_kept(seq),
            superseded_by=newer if newer > seq else 0,
            aside=seq in self.deferred,
        )


def _rows(block: Block, batch: Batch) -> list[Row]:
    if isinstance(block, DamagedBlock):
        # They count as live until they are ended, but cannot be read.
        return [Row(0, batch.time_ms, b"", None, ())] * block.count
    return block.rows(0, block.count, 0, batch.time_ms)


def arrow_rows(shard: int, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return the rows as an Arrow batch of the common schema."""
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


# --- Both sides of a resync ----------------------------------------------------------------------


class MemoryExport:
    """A shard in memory, to be sent; see `ShardExport`."""

    def __init__(self, shard: ShardId, source: MemoryShard) -> None:
        self._shard = shard
        self._rows = dict(source.rows)
        self._cells = dict(source.cells)
        self._stages = {name: list(rows) for name, rows in source.stages.items()}
        self._marks = {key: seqs.copy() for key, seqs in source.marks.items()}
        self._deferred = source.deferred.copy()
        self.meta = source.meta
        self.needed = BitMap64(source.rows)

    def cells(self) -> Sequence[tuple[Kind, bytes, bytes]]:
        return [(kind, key, self._cells[kind, key]) for kind, key in sorted(self._cells)]

    def marks(self) -> Iterable[tuple[int, int, BitMap64]]:
        for (pin, mark), seqs in sorted(self._marks.items()):
            if pin or mark is RowMark.KEPT:
                yield pin, int(mark), seqs & self.needed
        yield 0, DELETE, BitMap64([seq for seq, row in self._rows.items() if row.body is None])
        yield 0, DEFERRED, self._deferred & self.needed
        # It is not known which dead rows were replaced by newer ones: list them all.
        for (_, mark), seqs in sorted(self._marks.items()):
            if mark is RowMark.DEAD:
                yield 0, ENDED, seqs & self.needed

    def staged(self) -> Iterable[tuple[str, pa.RecordBatch]]:
        for name, rows in sorted(self._stages.items()):
            yield name, arrow_rows(self._shard, rows)

    def rows(self, seqs: BitMap64) -> Iterator[pa.RecordBatch]:
        wanted = iter([self._rows[seq] for seq in seqs])
        while page := list(islice(wanted, SCAN_ROWS)):
            yield arrow_rows(self._shard, page)


class MemoryIntake:
    """An incomplete copy of a shard; see `ShardIntake`."""

    def __init__(
        self,
        shards: dict[ShardId, MemoryShard],
        shard: ShardId,
        meta: ShardMeta,
    ) -> None:
        self._shards = shards
        self._shard = shard
        self._old = shards.get(shard, MemoryShard())
        self._copy = MemoryShard()
        self._copy.meta = meta
        self._copy.reclaimed = meta.intervals[0].floor + 1

    def have(self, needed: BitMap64) -> BitMap64:
        kept = {seq: row for seq, row in self._old.rows.items() if seq in needed}
        self._copy.rows.update(kept)
        return BitMap64(kept)

    def put_cells(self, cells: Sequence[tuple[Kind, bytes, bytes]]) -> None:
        self._copy.cells.update({(kind, key): value for kind, key, value in cells})

    def put_marks(self, pin: int, mark: int, seqs: BitMap64) -> None:
        if mark in (RowMark.DEAD, RowMark.KEPT):
            self._copy.marks[pin, RowMark(mark)] = seqs.copy()
        elif mark == DEFERRED:
            self._copy.deferred = seqs.copy()

    def put_staged(self, name: str, batch: pa.RecordBatch) -> None:
        self._copy.stages.setdefault(name, []).extend(rows_of(batch))

    def put_rows(self, batch: pa.RecordBatch) -> None:
        self._copy.rows.update({row.seq: row for row in rows_of(batch)})

    def end(self) -> None:
        copy = self._copy
        copy.rows = dict(sorted(copy.rows.items()))
        if copy.meta.keyed:
            for seq, row in copy.rows.items():
                if row.key is not None:
                    copy.keys[row.key] = seq
        self._shards[self._shard] = copy

    def abandon(self) -> None:
        pass


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of an Arrow batch of the common schema."""
    return [
        Row(
            line["seq"],
            round(cast(datetime, line["time"]).timestamp() * 1000),
            line["value"],
            line["key"],
            tuple((pair["name"], pair["value"]) for pair in line["headers"] or ()),
        )
        for line in batch.to_pylist()
    ]
