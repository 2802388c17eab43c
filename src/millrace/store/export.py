"""The sending side of a resync, for the disk store.

Everything but the rows is taken at once: bitmaps and cells are small, and staged rows are held
where they lie. Rows are read when they are asked for, wherever they lie by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.fold import ShardMeta
from millrace.core.model import Kind
from millrace.store import chunk
from millrace.store.dead_rows import (
    ASIDE,
    DEAD,
    DELETE,
    ENDED,
    KEPT,
    ShardState,
)
from millrace.store.layered import Layered
from millrace.store.reading import Reading
from millrace.store.scanning import Scanning


class DiskExport:
    """A shard, as of the last folded batch; see `Export`."""

    def __init__(self, layered: Layered, reading: Reading, state: ShardState) -> None:
        self._state = state
        self._scanning = Scanning(layered, reading)
        self._cells = list(layered.cells_of(state.id).items())
        self.meta: ShardMeta = state.meta
        low, high = state.gone + 1, state.meta.last_seq
        self.needed: BitMap64 = chunk.span(low, high)
        if self.needed:
            self.needed -= layered.marks.reclaimable(state, low, high)
        self._marks: list[tuple[int, int, BitMap64]] = []
        bits = layered.marks.bits
        for pin in [interval.pin for interval in state.meta.intervals]:
            self._marks += [
                (pin, mark, bits(state, [pin], mark, low, high) & self.needed)
                for mark in ((DEAD, KEPT) if pin else (KEPT, DELETE, ENDED, ASIDE))
            ]
        self._staged: list[tuple[str, pa.RecordBatch]] = [
            (name, reading.batch(state.shard, 0, place))
            for name in layered.blocks.stages(state.id)
            for _, place in layered.blocks.staged(state.id, name)
        ]

    def cells(self) -> Sequence[tuple[Kind, bytes, bytes]]:
        return [(Kind(key[0]), key[1:], value) for key, value in self._cells]

    def marks(self) -> Iterable[tuple[int, int, BitMap64]]:
        return [(pin, mark, seqs) for pin, mark, seqs in self._marks if seqs]

    def staged(self) -> Iterable[tuple[str, pa.RecordBatch]]:
        return self._staged

    def rows(self, seqs: BitMap64) -> Iterator[pa.RecordBatch]:
        return self._scanning.scan(
            self._state,
            0,
            self.meta.last_seq,
            lambda low, high: chunk.span(low, high) - seqs,
        )
