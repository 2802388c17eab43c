"""One shard of the naive store: plain dictionaries and bitmaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.block import SCHEMA, Block, DamagedBlock
from millrace.core.changes import Batch
from millrace.core.codec import encode_cell
from millrace.core.commands import Held, RowFacts
from millrace.core.fold import Mark, Reader, ShardMeta, fold, intervals_before
from millrace.core.model import Death, Kind, Row, TakeoverCell
from millrace.core.seqs import unpack_seqs
from millrace.core.takeover import trim
from millrace.core.view import number, number_key
from millrace.errors import Fatal

SCAN_ROWS = 1_000
"""Rows of one batch that a scan yields."""


class MemoryShard:
    """One shard; it is also its own ledger."""

    def __init__(self) -> None:
        self.meta = ShardMeta()
        self.rows: dict[int, Row] = {}
        self.keys: dict[bytes, int] = {}
        self.cells: dict[tuple[Kind, bytes], bytes] = {}
        self.stages: dict[str, list[Row]] = {}
        self.marks: dict[tuple[int, Mark], BitMap64] = {}
        self.superseded = BitMap64()
        """Those that were still wanted when a newer revision ended them."""
        self.aside = BitMap64()
        """Those that were put aside when they were published."""
        self.lost = BitMap64()
        """Those that were unreadable when they were folded."""
        self.doomed = BitMap64()
        self.reclaimed = 0

    def fold(self, batch: Batch, history: bytes) -> None:
        if batch.index != self.meta.index + 1:
            raise Fatal(f"batch {batch.index} cannot follow batch {self.meta.index}")
        self._put_rows(batch)
        replaced = unpack_seqs(batch.changes.died.get(int(Death.SUPERSEDED), b""))
        self.superseded |= BitMap64([seq for seq in replaced if not self.is_kept(seq)])
        self.aside |= unpack_seqs(batch.changes.aside)
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
        table = {key: self.cells[Kind.TAKEOVER, key] for key in [*keys, key]}
        cursors = [value for (kind, _), value in self.cells.items() if kind is Kind.CURSOR]
        for name, value in trim(table, cursors).items():
            if value is None:
                del self.cells[Kind.TAKEOVER, name]
            else:
                self.cells[Kind.TAKEOVER, name] = value

    def _reclaim(self) -> None:
        """Drop the rows that died before the first pin: nobody can ask for them any more."""
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

    def mark(self, pin: int, mark: Mark, seqs: BitMap64) -> None:
        self.marks[pin, mark] = self.marked(pin, mark) | seqs
        if pin == 0 and mark is Mark.DEAD:
            self.doomed |= seqs

    def kept(self, upto: int) -> BitMap64:
        marked = [seqs for (_, mark), seqs in self.marks.items() if mark is Mark.KEPT]
        return BitMap64(
            [seq for seqs in marked for seq in seqs if seq <= upto and self.is_kept(seq)]
        )

    def dead(self, low: int, high: int) -> int:
        marked = [seqs for (_, mark), seqs in self.marks.items() if mark is Mark.DEAD]
        return BitMap64().union(*marked).range_cardinality(low, high + 1)

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
        """Whether a worker may get it, in the order of seqs."""
        is_live = self.is_visible(seq, Reader()) and self.rows[seq].body is not None
        return is_live and seq not in self.aside

    def is_visible(self, seq: int, reader: Reader) -> bool:
        if seq not in self.rows:
            return False
        for interval in intervals_before(self.meta, reader):
            if seq <= interval.floor or seq in self.marked(interval.pin, Mark.DEAD):
                return False
            if not reader.retain and seq in self.marked(interval.pin, Mark.KEPT):
                return False
        return True

    def held(self, pin: int) -> list[Held]:
        """The rows that died since the pin was made."""
        seqs = [
            seq
            for seq in sorted(self.rows)
            if self.is_dead(seq) and self.is_visible(seq, Reader(pin, retain=True))
        ]
        return [Held(seq, seq, 1) for seq in seqs]

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
            aside=seq in self.aside,
        )


def _rows(block: Block, batch: Batch) -> list[Row]:
    if isinstance(block, DamagedBlock):
        # They count as any others until they are ended; nobody may read them.
        return [Row(0, batch.time_ms, b"", None, ())] * block.count
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
