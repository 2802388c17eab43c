"""Scans: the rows of a range in seq order, as Arrow batches over the bytes where they lie.

Rule 1: a scan goes by turns. Where rows lie is found on the engine's thread, whose the index is;
they are read on any thread, beside folding, checkpoints and sealing. Rows that were moved meanwhile
are looked up again; which rows a pin shows does not change.
Rule 2: a batch whose rows are all wanted is handed on as it is, even as the bytes that lie in the
file; others are filtered, which copies.
Rule 3: what was found shows the right rows for ever: files do not change, and a segment of the log
is held before it is read, or else it is gone, and looked up again.
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
from millrace.core.fold import Reader, ShardMeta
from millrace.store import chunk
from millrace.store.blocks import Found
from millrace.store.dead_rows import ShardState
from millrace.store.layered import Layered
from millrace.store.place import Place
from millrace.store.reading import Reading, without
from millrace.store.sealed import Moved
from millrace.store.unreadable import Unreadable

SCAN_ROWS = 64 * chunk.ROWS
"""Seqs whose marks are read at once."""

Hidden = Callable[[int, int], BitMap64]
"""Which seqs within [low, high] are not wanted; those of which there is no row are among them."""


class Scanning:
    """Reads ranges of rows."""

    def __init__(self, layered: Layered, reading: Reading) -> None:
        self._layered = layered
        self._reading = reading

    def visible(self, shard: int, after: int, upto: int, reader: Reader) -> Scan:
        """The rows within (after, upto] that the reader sees."""
        state = self._layered.must(shard)
        marks = self._layered.marks
        return self.scan(
            state, after, upto, lambda low, high: marks.hidden(state, reader, low, high)
        )

    def scan(self, state: ShardState, after: int, upto: int, hidden_in: Hidden) -> Scan:
        """The rows within (after, upto] but for those that are hidden."""
        return Scan(self._layered, self._reading, state, after, upto, hidden_in)


class _Piece(NamedTuple):
    """Rows [low, high] of a place, without the hidden ones."""

    first: int
    place: Place
    low: int
    high: int
    wanted: int
    hidden: BitMap64


class Scan:
    """A range of rows: `find` some, read them, and so on; or iterate, which does both.

    Iterating finds as well: another thread than the engine's may do that only while it is certain
    that the store is not being closed.
    """

    def __init__(
        self,
        layered: Layered,
        reading: Reading,
        state: ShardState,
        after: int,
        upto: int,
        hidden_in: Hidden,
    ) -> None:
        self._layered = layered
        self._reading = reading
        self._state = state
        self._hidden_in = hidden_in
        self._upto = min(upto, state.meta.last_seq)
        self._read_to = after
        """The last row that was read."""
        self._given_to = after
        """The last row that was given to be read."""
        self._passed = after
        """The last row that was given, or found not to be wanted."""
        self._next = after + 1
        """Where to look after `_page`."""
        self._page: deque[Found] = deque()
        self._is_begin = False
        """Nothing lies across `_next`."""
        self._hidden = BitMap64()
        self._known_from = self._known_to = 0
        """The rows whose marks are at hand."""
        self._tries = 0
        self._part: Part | None = None

    def meta(self) -> ShardMeta | None:
        """The shard's counters, None once it has ended; on any thread."""
        return self._state.meta if self._layered.is_current(self._state) else None

    def find(self, bytes_max: int = limits.SCAN_STEP_BYTES) -> Part | None:
        """Where the next rows lie, up to `bytes_max` and at least one place; None at the end.

        What was not read of the part that was given before is found again.
        """
        if self._read_to < self._given_to:
            self._tries += 1
            if self._tries > limits.LOOK_AGAIN_MAX:
                at = self._layered.blocks.after(self._state.id, self._read_to + 1, self._upto)
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
                size += piece.place.length
        if not pieces:
            return None
        self._given_to = pieces[-1].high
        return Part(self, self._reading, self._state.shard, pieces)

    def _look(self) -> bool:
        while not self._page and self._skip_hidden():
            page, self._next = self._layered.blocks.page(
                self._state.id, self._next, self._upto, is_begin=self._is_begin
            )
            self._is_begin = True
            self._page.extend(page)
        return bool(self._page)

    def _skip_hidden(self) -> bool:
        """Go on to the next row that is wanted, over as many others as there are; whether there is
        one. Where rows were published one by one and have died, each has a place of its own."""
        while self._next <= self._upto:
            low = self._next
            self._know(low, low)
            high = min(self._known_to, self._upto)
            count = high - low + 1
            if self._hidden.range_cardinality(low, high + 1) < count:
                # The first one that is not hidden, by halving.
                found = bisect_left(
                    range(count),
                    1,
                    key=lambda at: at + 1 - self._hidden.range_cardinality(low, low + at + 1),
                )
                if found:
                    self._next, self._is_begin = low + found, False
                return True
            self._next, self._is_begin = high + 1, False
        return False

    def _know(self, low: int, high: int) -> None:
        """Have the marks at hand of the rows [low, high]."""
        if high > self._known_to or low < self._known_from:
            self._known_from = low
            self._known_to = min(self._upto, max(high, low + SCAN_ROWS - 1))
            self._hidden = self._hidden_in(low, self._known_to)

    def _piece(self, first: int, place: Place) -> _Piece:
        low = max(first, self._passed + 1)
        high = self._passed = min(first + place.span - 1, self._upto)
        self._know(low, high)
        wanted = high - low + 1 - self._hidden.range_cardinality(low, high + 1)
        return _Piece(first, place, low, high, wanted, self._hidden)

    def note_read(self, seq: int) -> None:
        """Everything up to here was read."""
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


class Part:
    """Rows whose places are known, to be read once, on any thread; see `Scan.find`.

    It ends early where rows were moved meanwhile: then `find` gives them again.
    """

    def __init__(self, scan: Scan, reading: Reading, shard: int, pieces: deque[_Piece]) -> None:
        self._scan = scan
        self._reading = reading
        self._shard = shard
        self._pieces = pieces

    def is_hot(self) -> bool:
        """Whether reading it, and what it gives, does not wait for a disk, as far as known."""
        return all(self._reading.is_hot(piece.place) for piece in self._pieces)

    def load(self) -> list[pa.RecordBatch]:
        """All that is left of it, read from the disk."""
        batches: list[pa.RecordBatch] = []
        while self._pieces:
            try:
                self._reading.touch(self._shard, self._pieces[0].first, self._pieces[0].place)
            except Moved:
                self._pieces.clear()
                break
            batches += self._step()
        return batches

    def load_packed(self, least: int) -> list[pa.RecordBatch | pa.Buffer]:
        """As `load`; sealed batches of so many bytes whose rows are all wanted come as their IPC
        messages, which are of the schema of sealed files."""
        found: list[pa.RecordBatch | pa.Buffer] = []
        while self._pieces:
            first, place, low, high, wanted, _ = self._pieces[0]
            is_whole = low == first and high == first + place.span - 1 and wanted == place.count
            try:
                self._reading.touch(self._shard, first, place)
                message = None
                if is_whole and place.sealed and place.length >= least:
                    message = self._reading.message(self._shard, first, place)
            except Moved:
                self._pieces.clear()
                break
            if message is None:
                found += self._step()
            else:
                self._pieces.popleft()
                self._scan.note_read(high)
                found.append(message)
        return found

    def __iter__(self) -> Part:
        return self

    def __next__(self) -> pa.RecordBatch:
        while self._pieces:
            for batch in self._step():
                return batch
        raise StopIteration

    def _step(self) -> list[pa.RecordBatch]:
        """The rows of the next place, if there are any."""
        piece = self._pieces.popleft()
        try:
            batch = self._rows(piece)
        except Moved:
            self._pieces.clear()
            return []
        self._scan.note_read(piece.high)
        return [batch] if batch.num_rows else []

    def _rows(self, piece: _Piece) -> pa.RecordBatch:
        first, place, low, high, wanted, hidden = piece
        batch = self._reading.batch(self._shard, first, place)
        if low != first or high != first + place.span - 1:
            begin, end = low - first, high - first + 1
            if place.span != place.count:
                bounds = np.array([low, high + 1], np.uint64)
                begin, end = np.searchsorted(batch.column("seq").to_numpy(), bounds).tolist()
            batch = batch.slice(begin, end - begin)
        if wanted == batch.num_rows:
            return batch
        return without(batch, place, hidden & chunk.span(low, high))


def lost(shard: int, seq: int, found: Found | None = None) -> Unreadable:
    """Rows that the index knows, at a place with this one, are nowhere."""
    first, last = seq, seq
    if found is not None:
        first, last = found[0], found[0] + found[1].span - 1
    return Unreadable(
        f"shard {shard}: the rows at {seq} are not where the index says; a sealed file is missing. "
        "Restore it from a backup, or resync the shard from a replica",
        shard=shard,
        first=first,
        last=last,
    )
