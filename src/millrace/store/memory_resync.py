"""Both sides of a resync for the naive store: copies of plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import cast

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.fold import Mark, ShardMeta
from millrace.core.model import Kind, Row, ShardId
from millrace.store.dead_rows import ASIDE, DELETE, ENDED
from millrace.store.memory_shard import SCAN_ROWS, MemoryShard, arrow_rows


class MemoryExport:
    """A shard in memory, to be sent; see `Export`."""

    def __init__(self, shard: ShardId, source: MemoryShard) -> None:
        self._shard = shard
        self._rows = dict(source.rows)
        self._cells = dict(source.cells)
        self._stages = {name: list(rows) for name, rows in source.stages.items()}
        self._marks = {key: seqs.copy() for key, seqs in source.marks.items()}
        self._aside = source.aside.copy()
        self.meta = source.meta
        self.needed = BitMap64(source.rows)

    def cells(self) -> Sequence[tuple[Kind, bytes, bytes]]:
        return [(kind, key, self._cells[kind, key]) for kind, key in sorted(self._cells)]

    def marks(self) -> Iterable[tuple[int, int, BitMap64]]:
        for (pin, mark), seqs in sorted(self._marks.items()):
            if pin or mark is Mark.KEPT:
                yield pin, int(mark), seqs & self.needed
        yield 0, DELETE, BitMap64([seq for seq, row in self._rows.items() if row.body is None])
        yield 0, ASIDE, self._aside & self.needed
        # Whether a newer row has replaced one is not remembered here: its key may name any.
        for (_, mark), seqs in sorted(self._marks.items()):
            if mark is Mark.DEAD:
                yield 0, ENDED, seqs & self.needed

    def staged(self) -> Iterable[tuple[str, pa.RecordBatch]]:
        for name, rows in sorted(self._stages.items()):
            yield name, arrow_rows(self._shard, rows)

    def rows(self, seqs: BitMap64) -> Iterator[pa.RecordBatch]:
        wanted = iter([self._rows[seq] for seq in seqs])
        while some := list(islice(wanted, SCAN_ROWS)):
            yield arrow_rows(self._shard, some)


class MemoryIntake:
    """A copy of a shard in the making; see `Intake`."""

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
        if mark in (Mark.DEAD, Mark.KEPT):
            self._copy.marks[pin, Mark(mark)] = seqs.copy()
        elif mark == ASIDE:
            self._copy.aside = seqs.copy()

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
    """The rows of an Arrow batch of the common schema."""
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
