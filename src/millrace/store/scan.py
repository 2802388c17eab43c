"""Scans: the rows of a range in seq order, as Arrow batches without copies.

Rule 1: a scan alternates two steps. Rows are located on the engine's thread, which owns the index;
they are read on any thread, concurrently with folding, checkpoints and sealing. Rows that were
moved in between are located again; the set of rows that a pin shows does not change.
Rule 2: a batch whose rows are all wanted is passed on as it is, even as the bytes of the file;
others are filtered, which copies.
Rule 3: a location shows the right rows for ever: files do not change, and a segment of the log is
held before it is read, or it is gone, and the rows are located again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.state.fold import Reader, ShardMeta
from millrace.store import chunk
from millrace.store.dead_rows import ShardState
from millrace.store.layered_index import LayeredIndex
from millrace.store.row_index import Located
from millrace.store.row_location import RowLocation
from millrace.store.row_reader import RowReader, without
from millrace.store.sealed import Moved
from millrace.store.unreadable import Unreadable

SCAN_ROWS = 64 * chunk.ROWS
"""Number of seqs whose marks are read at once."""

Hidden = Callable[[int, int], BitMap64]
"""Returns the hidden seqs within [low, high], including those without a row."""


class Scanner:
    """Reads ranges of rows."""

    def __init__(self, layered: LayeredIndex, row_reader: RowReader) -> None:
        self._layered = layered
        self._row_reader = row_reader

    def visible(self, shard: int, after: int, upto: int, reader: Reader) -> Scan:
        """Return a scan of the rows within (after, upto] that the reader sees."""
        state = self._layered.must(shard)
        marks = self._layered.marks
        return self.scan(
            state, after, upto, lambda low, high: marks.hidden(state, reader, low, high)
        )

    def scan(self, state: ShardState, after: int, upto: int, hidden_in: Hidden) -> Scan:
        """Return a scan of the rows within (after, upto] that are not hidden."""
        return Scan(self._layered, self._row_reader, state, after, upto, hidden_in)


class _Piece(NamedTuple):
    """Rows [low, high] of a location, without the hidden ones."""

    first: int
    location: RowLocation
    low: int
    high: int
    wanted: int
    hidden: BitMap64


class Scan:
    """A scan of a range of rows: `find` locates a part, which is then read; or iterate over both.

    Iteration calls `find`, too: on other threads than the engine's this is safe only while the
    store is certainly not closed.
    """

    def __init__(
        self,
        layered: LayeredIndex,
        row_reader: RowReader,
        state: ShardState,
        after: int,
        upto: int,
        hidden_in: Hidden,
    ) -> None:
        self._layered = layered
        self._row_reader = row_reader
        self._state = state
        self._hidden_in = hidden_in
        self._upto = min(upto, state.meta.last_seq)
        self._read_to = after
        """The last row that was read."""
        self._given_to = after
        """The last row of the last part."""
        self._passed = after
        """The last row that is in a part, or hidden."""
        self._next = after + 1
        """The seq after `_page`."""
        self._page: deque[Located] = deque()
        self._is_begin = False
        """True if no location spans `_next`."""
        self._hidden = BitMap64()
        self._known_from = self._known_to = 0
        """Range of rows of `_hidden`."""
        self._tries = 0
        self._part: ScanPart | None = None

    def meta(self) -> ShardMeta | None:
        """Return the shard's counters, None once it was dropped; on any thread."""
        return self._state.meta if self._layered.is_current(self._state) else None

    def find(self, bytes_max: int = limits.SCAN_STEP_BYTES) -> ScanPart | None:
        """Locate the next rows, up to `bytes_max` and at least one location; None at the end.

        Rows of the previous part that were not read are located again.
        """
        if self._read_to < self._given_to:
            self._tries += 1
            if self._tries > limits.LOOK_AGAIN_MAX:
                at = self._layered.row_index.after(self._state.id, self._read_to + 1, self._upto)
                raise lost(self._state.shard, at[0] if at else self._read_to + 1, at)
            self._page.clear()
            self._given_to = self._passed = self._read_to
            self._next, self._is_begin = self._read_to + 1, False
        pieces: deque[_Piece] = deque()
        size = 0
        while size < bytes_max and (self._page or (not pieces and self._look())):
            piece = self._piece(*self._page.popleft())
            if piece.wanted:
                pieces.append(piece)
                size += piece.location.length
        if not pieces:
            return None
        self._given_to = pieces[-1].high
        return ScanPart(self, self._row_reader, self._state.shard, pieces)

    def _look(self) -> bool:
        while not self._page and self._skip_hidden():
            page, self._next = self._layered.row_index.page(
                self._state.id, self._next, self._upto, is_begin=self._is_begin
            )
            self._is_begin = True
            self._page.extend(page)
        return bool(self._page)

    def _skip_hidden(self) -> bool:
        """Skip hidden rows; return True if a visible one follows.

        This avoids reading the locations of dead rows that were published one by one.
        """
        while self._next <= self._upto:
            low = self._next
            self._know(low, low)
            high = min(self._known_to, self._upto)
            count = high - low + 1
            if self._hidden.range_cardinality(low, high + 1) < count:
                # Find the first one that is not hidden by binary search.
                skipped = bisect_left(
                    range(count),
                    1,
                    key=lambda at: at + 1 - self._hidden.range_cardinality(low, low + at + 1),
                )
                if skipped:
                    self._next, self._is_begin = low + skipped, False
                return True
            self._next, self._is_begin = high + 1, False
        return False

    def _know(self, low: int, high: int) -> None:
        """Load the marks of the rows [low, high]."""
        if high > self._known_to or low < self._known_from:
            self._known_from = low
            self._known_to = min(self._upto, max(high, low + SCAN_ROWS - 1))
            self._hidden = self._hidden_in(low, self._known_to)

    def _piece(self, first: int, location: RowLocation) -> _Piece:
        low = max(first, self._passed + 1)
        high = self._passed = min(first + location.span - 1, self._upto)
        self._know(low, high)
        wanted = high - low + 1 - self._hidden.range_cardinality(low, high + 1)
        return _Piece(first, location, low, high, wanted, self._hidden)

    def note_read(self, seq: int) -> None:
        """Record that all rows up to this seq were read."""
        self._read_to = seq
        self._tries = 0

    def __iter__(self) -> Scan:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            batch = next(self._part, None) if self._part is not None else None
            if batch is not None:
                return batch
            self._part = self.find()
            if self._part is None:
                raise StopIteration


class ScanPart:
    """Located rows, to be read once, on any thread; see `Scan.find`.

    It ends early if rows were moved in between: then `find` locates them again.
    """

    def __init__(
        self, scan: Scan, row_reader: RowReader, shard: int, pieces: deque[_Piece]
    ) -> None:
        self._scan = scan
        self._row_reader = row_reader
        self._shard = shard
        self._pieces = pieces

    def is_hot(self) -> bool:
        """Return True if reading it will not wait for a disk, as far as is known."""
        return all(self._row_reader.is_hot(piece.location) for piece in self._pieces)

    def load(self) -> list[pa.RecordBatch]:
        """Return all remaining batches, read from the disk."""
        batches: list[pa.RecordBatch] = []
        while self._pieces:
            try:
                self._row_reader.touch(self._shard, self._pieces[0].first, self._pieces[0].location)
            except Moved:
                self._pieces.clear()
                break
            batches += self._step()
        return batches

    def load_packed(self, least: int) -> list[pa.RecordBatch | pa.Buffer]:
        """Return all remaining batches; large, fully visible sealed ones as IPC messages.

        These have at least `least` bytes and the schema of sealed files, without the shard.
        """
        batches: list[pa.RecordBatch | pa.Buffer] = []
        while self._pieces:
            first, location, low, high, wanted, _ = self._pieces[0]
            is_whole = (
                low == first and high == first + location.span - 1 and wanted == location.count
            )
            try:
                self._row_reader.touch(self._shard, first, location)
                message = None
                if is_whole and location.sealed and location.length >= least:
                    message = self._row_reader.message(self._shard, first, location)
            except Moved:
                self._pieces.clear()
                break
            if message is None:
                batches += self._step()
            else:
                self._pieces.popleft()
                self._scan.note_read(high)
                batches.append(message)
        return batches

    def __iter__(self) -> ScanPart:
        return self

    def __next__(self) -> pa.RecordBatch:
        while self._pieces:
            for batch in self._step():
                return batch
        raise StopIteration

    def _step(self) -> list[pa.RecordBatch]:
        """Return the rows of the next location, if there are any."""
        piece = self._pieces.popleft()
        try:
            batch = self._rows(piece)
        except Moved:
            self._pieces.clear()
            return []
        self._scan.note_read(piece.high)
        return [batch] if batch.num_rows else []

    def _rows(self, piece: _Piece) -> pa.RecordBatch:
        first, location, low, high, wanted, hidden = piece
        batch = self._row_reader.batch(self._shard, first, location)
        if low != first or high != first + location.span - 1:
            begin, end = low - first, high - first + 1
            if location.span != location.count:
                bounds = np.array([low, high + 1], np.uint64)
                begin, end = np.searchsorted(batch.column("seq").to_numpy(), bounds).tolist()
            batch = batch.slice(begin, end - begin)
        if wanted == batch.num_rows:
            return batch
        return without(batch, location, hidden & chunk.span(low, high))


def lost(shard: int, seq: int, located: Located | None = None) -> Unreadable:
    """Return the error for rows that the index has, but that exist nowhere."""
    first, last = seq, seq
    if located is not None:
        first, last = located[0], located[0] + located[1].span - 1
    return Unreadable(
        f"shard {shard}: the rows at {seq} are not where the index says; a sealed file is missing. "
        "Restore it from a backup, or resync the shard from a replica",
        shard=shard,
        first=first,
        last=last,
    )
