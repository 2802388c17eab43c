"""Scans: the rows of a range in seq order, as Arrow batches over the bytes where they lie.

Rule 1: a scan may be iterated on any thread, beside folding, checkpoints and sealing. Rows that
were moved meanwhile are looked up again; which rows a pin shows does not change.
Rule 2: a batch whose rows are all wanted is handed on as it is; others are filtered, which copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.fold import Reader
from millrace.errors import Corrupt
from millrace.store import chunk
from millrace.store.layered import Layered
from millrace.store.ledger import ShardState
from millrace.store.place import Place
from millrace.store.reading import Reading, without
from millrace.store.sealed import Moved

SCAN_ROWS = 64 * chunk.ROWS
"""Seqs whose marks are read at once."""

Hidden = Callable[[int, int], BitMap64]
"""Which seqs within [low, high] are not wanted; those of which there is no row are among them."""


class Scanning:
    """Reads ranges of rows."""

    def __init__(self, layered: Layered, reading: Reading) -> None:
        self._layered = layered
        self._reading = reading

    def visible(
        self, shard: int, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        """The rows within (after, upto] that the reader sees."""
        state = self._layered.must(shard)
        marks = self._layered.marks
        return self.scan(
            state, after, upto, lambda low, high: marks.hidden(state, reader, low, high)
        )

    def scan(
        self, state: ShardState, after: int, upto: int, hidden_in: Hidden
    ) -> Iterator[pa.RecordBatch]:
        """The rows within (after, upto] but for those that are hidden."""
        low, upto = after + 1, min(upto, state.meta.last_seq)
        known_to, hidden, tries = 0, BitMap64(), 0
        while low <= upto:
            page, after_page = self._layered.blocks.page(state.id, low, upto)
            for first, place in page:
                begin, last = max(first, low), min(first + place.span - 1, upto)
                if last > known_to:
                    known_to = min(upto, max(last, begin + SCAN_ROWS - 1))
                    hidden = hidden_in(begin, known_to)
                try:
                    batch = self._wanted(state.shard, first, place, begin, last, hidden)
                except Moved:
                    tries += 1
                    if tries > limits.LOOK_AGAIN_MAX:
                        raise lost(state.shard, first) from None
                    break
                low, tries = last + 1, 0
                if batch is not None and batch.num_rows:
                    yield batch
            else:
                low = after_page

    def _wanted(
        self, shard: int, first: int, place: Place, low: int, high: int, hidden: BitMap64
    ) -> pa.RecordBatch | None:
        """The rows of a place within [low, high] that are not hidden."""
        wanted = high - low + 1 - hidden.range_cardinality(low, high + 1)
        if wanted == 0:
            return None
        batch = self._reading.batch(shard, first, place)
        if low != first or high != first + place.span - 1:
            begin, end = low - first, high - first + 1
            if place.span != place.count:
                bounds = np.array([low, high + 1], np.uint64)
                begin, end = np.searchsorted(batch.column("seq").to_numpy(), bounds).tolist()
            batch = batch.slice(begin, end - begin)
        if wanted == batch.num_rows:
            return batch
        return without(batch, place, hidden & chunk.span(low, high))


def lost(shard: int, seq: int) -> Corrupt:
    """Rows that the index knows are nowhere."""
    return Corrupt(
        f"shard {shard}: the rows at {seq} are not where the index says; a sealed file is missing. "
        "Restore it from a backup, or resync the shard from a replica"
    )
