"""The receiving side of a resync, for the disk store: a copy of a shard in the making.

Rule 1: the copy is held under a number of its own, listed as unwanted until it is complete: if the
process ends before, it is reclaimed like a shard that was dropped, and the old state still stands.
Rule 2: rows that are here already stay where they lie: the copy refers to the same places. A place
of which the copy needs a row that is not there is not used at all: places must not overlap.
Rule 3: rows that are sent go to sealed files at once; a file is finished before anything else may
make one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.block import FLAG_DELETES, FLAG_HEADERS, FLAG_KEYS
from millrace.core.fold import ShardMeta
from millrace.core.model import Kind
from millrace.store import chunk
from millrace.store.dead_rows import DEAD, ShardState
from millrace.store.layered import Layered
from millrace.store.overlay import KINDS
from millrace.store.place import RELATIVE, Place
from millrace.store.reading import Reading
from millrace.store.reclaim import Emptying
from millrace.store.seal import joined_batches
from millrace.store.sealed import SEALED_SCHEMA, SealedWriter
from millrace.store.sealed_stats import Book
from millrace.store.tables import FileFacts
from millrace.wal.files import Disk


class DiskIntake:
    """A copy in the making; see `Intake`. Files are synced in here: it belongs on a lane, with the
    engine's thread standing still."""

    def __init__(
        self,
        disk: Disk,
        layered: Layered,
        book: Book,
        reading: Reading,
        emptying: Emptying,
        old: ShardState | None,
        copy: ShardState,
        meta: ShardMeta,
        *,
        gone: int,
        shared: int,
    ) -> None:
        self._disk = disk
        self._layered = layered
        self._book = book
        self._reading = reading
        self._emptying = emptying
        # Places that a pass is about to empty must not be referred to anew.
        emptying.is_held = True
        self._old = old
        self._copy = copy
        self._shared = shared
        copy.meta = meta
        copy.gone = gone
        self._dead = chunk.span(1, max(meta.floor, gone))
        self._borders: list[int] = []
        """Where the places begin that stay: no new one may reach over them."""
        self._writer: SealedWriter | None = None
        self._written: list[tuple[int, Place]] = []
        """Places in the file that is being made."""
        self._group: list[pa.RecordBatch] = []
        self._group_rows = 0
        self._group_bytes = 0
        self._span: tuple[int, int] | None = None
        self._staged: list[tuple[str, int, Place]] = []
        self._ordinals: dict[str, int] = {}
        """Stage → of its next block."""

    # --- What is small ---------------------------------------------------------------------------

    def put_cells(self, cells: Sequence[tuple[Kind, bytes, bytes]]) -> None:
        part = self._layered.touch(self._copy).part
        part.cells.update({KINDS[kind] + key: value for kind, key, value in cells})

    def put_marks(self, pin: int, mark: int, seqs: BitMap64) -> None:
        self._layered.touch(self._copy).mark(pin, mark, seqs)
        if mark == DEAD:
            self._dead |= seqs

    # --- Rows that are here ----------------------------------------------------------------------

    def have(self, needed: BitMap64) -> BitMap64:
        found = BitMap64()
        if self._old is None:
            self._place([])
            return found
        kept: list[tuple[int, Place]] = []
        for first, place in self._layered.blocks.between(self._old.id, 1, self._shared):
            last = first + place.span - 1
            wanted = needed & chunk.span(first, last)
            if wanted and last <= self._shared and self._is_whole(first, place, wanted):
                found |= wanted
                kept.append((first, place))
        self._place(kept)
        self._borders = [first for first, _ in kept]
        return found

    def _is_whole(self, first: int, place: Place, wanted: BitMap64) -> bool:
        """Whether the wanted rows are all there; their keys are learnt."""
        is_keyed = self._copy.meta.keyed and bool(place.flags & FLAG_KEYS)
        if place.span == place.count and not is_keyed:
            return True
        decoded = self._reading.decode(place, self._copy.shard, first)
        if decoded.seqs is not None and not wanted.issubset(BitMap64(decoded.seqs.tolist())):
            return False
        if is_keyed:
            self._learn_keys(decoded.pairs(first))
        return True

    def _place(self, places: list[tuple[int, Place]]) -> None:
        """Say where rows of the copy lie."""
        self._layered.touch(self._copy).part.replace([], places)
        self._emptying.wait()
        self._emptying.is_held = self._writer is not None

    def _learn_keys(self, pairs: Sequence[tuple[bytes | None, int]]) -> None:
        """A key names its live row: there is one at most."""
        dead = self._dead
        self._layered.touch(self._copy).part.keys.update(
            {key: seq for key, seq in pairs if key is not None and seq not in dead}
        )

    # --- Rows that are sent ----------------------------------------------------------------------

    def put_rows(self, batch: pa.RecordBatch) -> None:
        seqs = batch.column("seq").to_numpy()
        # Rows between the same two places that stay may lie in one record batch.
        between = np.searchsorted(np.array(self._borders, np.uint64), seqs, side="right")
        cuts = [0, *(np.flatnonzero(np.diff(between)) + 1).tolist(), len(seqs)]
        for low, high in pairwise(cuts):
            self._add(batch.slice(low, high - low).select(SEALED_SCHEMA.names))

    def _add(self, batch: pa.RecordBatch) -> None:
        size = batch.nbytes
        first, _ = _ends(batch)
        if self._group and (
            self._group_bytes + size > limits.SEALED_BATCH_BYTES
            or self._group_rows + batch.num_rows > limits.SEALED_BATCH_ROWS
            or self._is_between(_ends(self._group[-1])[1], first)
        ):
            self.flush()
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += size
        if self._group_bytes >= limits.SEALED_BATCH_BYTES:
            self.flush()

    def _is_between(self, before: int, after: int) -> bool:
        """Whether a place that stays begins between two rows."""
        return bisect_right(self._borders, before) != bisect_right(self._borders, after)

    def flush(self) -> None:
        """Write the rows that were gathered as one record batch."""
        if not self._group:
            return
        batch = joined_batches(self._group)
        self._group, self._group_rows, self._group_bytes = [], 0, 0
        first, last = _ends(batch)
        times = batch.column("time").view(pa.int64())
        flags = flags_of(batch)
        place = self._open_file().add(
            self._copy.shard,
            first,
            last - first + 1,
            batch,
            flags,
            [times[0].as_py(), times[-1].as_py()],
        )
        self._span = (self._span[0] if self._span else first, last)
        self._written.append((first, place))
        if self._copy.meta.keyed and flags & FLAG_KEYS:
            keys: list[bytes | None] = batch.column("key").to_pylist()
            seqs = batch.column("seq").to_numpy().tolist()
            self._learn_keys(list(zip(keys, seqs, strict=True)))

    def put_staged(self, name: str, batch: pa.RecordBatch) -> None:
        rows = batch.select(SEALED_SCHEMA.names)
        flags = flags_of(rows) | RELATIVE
        time = batch.column("time").view(pa.int64())[0].as_py()
        place = self._open_file().add(self._copy.shard, 0, batch.num_rows, rows, flags, [time])
        # In the order in which they come, and below every number that a later batch gives: those of
        # the batches so far are as many as that, and no two of a stage have the same.
        ordinal = self._ordinals.get(name, 0)
        self._ordinals[name] = ordinal + 1
        self._staged.append((name, ordinal, place))

    # --- Files and the end -----------------------------------------------------------------------

    def _open_file(self) -> SealedWriter:
        if self._writer is not None and self._writer.size >= limits.SEALED_FILE_BYTES:
            self.close_file()
        if self._writer is None:
            self._emptying.is_held = True
            self._writer = SealedWriter(self._disk, self._book.next_number, lambda: None)
        return self._writer

    def close_file(self) -> None:
        """Finish the file that is being made, and enter it in the book."""
        self.flush()
        writer = self._writer
        if writer is None:
            return
        # If this finds no room, the file is still there to be abandoned.
        writer.close()
        self._writer = None
        # Staged rows have no seqs: of a file with such rows, nobody can tell by seqs what is dead.
        spans = {self._copy.id: self._span} if self._span and not self._staged else {}
        self._book.add(writer.number, FileFacts(writer.size, writer.rows, spans=spans))
        self._place(self._written)
        for staged in self._staged:
            self._copy.part.stage(*staged)
        self._span, self._written, self._staged = None, [], []

    def end(self) -> None:
        self.close_file()
        self._layered.end_copy(self._copy)

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self._emptying.is_held = False
        self._layered.drop_copy(self._copy)


def _ends(batch: pa.RecordBatch) -> tuple[int, int]:
    seqs = batch.column("seq")
    return seqs[0].as_py(), seqs[-1].as_py()


def flags_of(batch: pa.RecordBatch) -> int:
    """What a place says of rows that came as an Arrow batch."""
    rows = batch.num_rows
    return (
        (FLAG_KEYS if batch.column("key").null_count < rows else 0)
        | (FLAG_HEADERS if batch.column("headers").null_count < rows else 0)
        | (FLAG_DELETES if batch.column("value").null_count else 0)
    )
