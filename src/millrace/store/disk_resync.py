"""Resync of the disk store: `DiskExport` sends a shard, `DiskIntake` receives a copy.

An export takes everything but the rows at once: bitmaps and cells are small, and staged rows are
held in place. Rows are read when they are requested, from their locations at that time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import Kind
from millrace.core.format.block import FLAG_DELETES, FLAG_HEADERS, FLAG_KEYS
from millrace.core.state.fold import ShardMeta
from millrace.store import chunk
from millrace.store.dead_rows import (
    DEAD,
    DEFERRED,
    DELETE,
    ENDED,
    KEPT,
    ShardState,
)
from millrace.store.index_codec import FileFacts
from millrace.store.layered_index import LayeredIndex
from millrace.store.overlay import KINDS
from millrace.store.reclaim import Reclaimer
from millrace.store.row_location import RELATIVE, RowLocation
from millrace.store.row_reader import RowReader
from millrace.store.scan import Scanner
from millrace.store.seal import joined_batches
from millrace.store.sealed import SEALED_SCHEMA, SealedWriter
from millrace.store.sealed_stats import SealedFileStats
from millrace.wal.disk import Disk


class DiskExport:
    """A shard as of the last folded batch; see `ShardExport`."""

    def __init__(self, layered: LayeredIndex, row_reader: RowReader, state: ShardState) -> None:
        self._state = state
        self._scanner = Scanner(layered, row_reader)
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
                for mark in ((DEAD, KEPT) if pin else (KEPT, DELETE, ENDED, DEFERRED))
            ]
        self._staged: list[tuple[str, pa.RecordBatch]] = [
            (name, row_reader.batch(state.shard, 0, location))
            for name in layered.row_index.stages(state.id)
            for _, location in layered.row_index.staged(state.id, name)
        ]

    def cells(self) -> Sequence[tuple[Kind, bytes, bytes]]:
        return [(Kind(key[0]), key[1:], value) for key, value in self._cells]

    def marks(self) -> Iterable[tuple[int, int, BitMap64]]:
        return [(pin, mark, seqs) for pin, mark, seqs in self._marks if seqs]

    def staged(self) -> Iterable[tuple[str, pa.RecordBatch]]:
        return self._staged

    def rows(self, seqs: BitMap64) -> Iterator[pa.RecordBatch]:
        return self._scanner.scan(
            self._state,
            0,
            self.meta.last_seq,
            lambda low, high: chunk.span(low, high) - seqs,
        )


# --- Receiving side ----------------------------------------------------------------------------
#
# Rule 1: the copy is held under a number of its own, listed for removal until it is complete: if
# the process ends before that, the copy is reclaimed like a dropped shard, and the old state stays.
# Rule 2: rows that exist already stay where they are: the copy refers to the same locations. A
# location that lacks a row which the copy needs is not used at all: locations must not overlap.
# Rule 3: received rows go to sealed files at once; a file is finished before anything else may
# create one.


class DiskIntake:
    """An incomplete copy of a shard; see `ShardIntake`.

    It syncs files: run it on an I/O thread while the engine's thread waits.
    """

    def __init__(
        self,
        disk: Disk,
        layered: LayeredIndex,
        file_stats: SealedFileStats,
        row_reader: RowReader,
        reclaimer: Reclaimer,
        old: ShardState | None,
        copy: ShardState,
        meta: ShardMeta,
        *,
        gone: int,
        shared: int,
    ) -> None:
        self._disk = disk
        self._layered = layered
        self._file_stats = file_stats
        self._row_reader = row_reader
        self._reclaimer = reclaimer
        # The copy must not refer to locations that a sealing pass is about to empty.
        reclaimer.is_held = True
        self._old = old
        self._copy = copy
        self._shared = shared
        copy.meta = meta
        copy.gone = gone
        self._dead = chunk.span(1, max(meta.floor, gone))
        self._borders: list[int] = []
        """First seqs of the existing locations: no new one may span them."""
        self._writer: SealedWriter | None = None
        self._written: list[tuple[int, RowLocation]] = []
        """Locations in the file that is being written."""
        self._group: list[pa.RecordBatch] = []
        self._group_rows = 0
        self._group_bytes = 0
        self._span: tuple[int, int] | None = None
        self._staged: list[tuple[str, int, RowLocation]] = []
        self._ordinals: dict[str, int] = {}
        """Stage → ordinal of its next block."""

    # --- Cells and marks -------------------------------------------------------------------------

    def put_cells(self, cells: Sequence[tuple[Kind, bytes, bytes]]) -> None:
        part = self._layered.touch(self._copy).part
        part.cells.update({KINDS[kind] + key: value for kind, key, value in cells})

    def put_marks(self, pin: int, mark: int, seqs: BitMap64) -> None:
        self._layered.touch(self._copy).mark(pin, mark, seqs)
        if mark == DEAD:
            self._dead |= seqs

    # --- Existing rows ---------------------------------------------------------------------------

    def have(self, needed: BitMap64) -> BitMap64:
        existing = BitMap64()
        if self._old is None:
            self._put_locations([])
            return existing
        kept: list[tuple[int, RowLocation]] = []
        for first, location in self._layered.row_index.between(self._old.id, 1, self._shared):
            last = first + location.span - 1
            wanted = needed & chunk.span(first, last)
            if wanted and last <= self._shared and self._is_whole(first, location, wanted):
                existing |= wanted
                kept.append((first, location))
        self._put_locations(kept)
        self._borders = [first for first, _ in kept]
        return existing

    def _is_whole(self, first: int, location: RowLocation, wanted: BitMap64) -> bool:
        """Return True if all wanted rows are at the location; enter their keys."""
        is_keyed = self._copy.meta.keyed and bool(location.flags & FLAG_KEYS)
        if location.span == location.count and not is_keyed:
            return True
        decoded = self._row_reader.decode(location, self._copy.shard, first)
        if decoded.seqs is not None and not wanted.issubset(BitMap64(decoded.seqs.tolist())):
            return False
        if is_keyed:
            self._learn_keys(decoded.pairs(first))
        return True

    def _put_locations(self, locations: list[tuple[int, RowLocation]]) -> None:
        """Enter locations of rows of the copy."""
        self._layered.touch(self._copy).part.replace([], locations)
        self._reclaimer.hold_until_checkpoint()
        self._reclaimer.is_held = self._writer is not None

    def _learn_keys(self, pairs: Sequence[tuple[bytes | None, int]]) -> None:
        """Enter the keys of live rows: a key has one live row at most."""
        dead = self._dead
        self._layered.touch(self._copy).part.keys.update(
            {key: seq for key, seq in pairs if key is not None and seq not in dead}
        )

    # --- Received rows ---------------------------------------------------------------------------

    def put_rows(self, batch: pa.RecordBatch) -> None:
        seqs = batch.column("seq").to_numpy()
        # A record batch may hold rows between the same two existing locations only.
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
        """Return True if an existing location begins between two rows."""
        return bisect_right(self._borders, before) != bisect_right(self._borders, after)

    def flush(self) -> None:
        """Write the gathered rows as one record batch."""
        if not self._group:
            return
        batch = joined_batches(self._group)
        self._group, self._group_rows, self._group_bytes = [], 0, 0
        first, last = _ends(batch)
        times = batch.column("time").view(pa.int64())
        flags = flags_of(batch)
        location = self._open_file().add(
            self._copy.shard,
            first,
            last - first + 1,
            batch,
            flags,
            [times[0].as_py(), times[-1].as_py()],
        )
        self._span = (self._span[0] if self._span else first, last)
        self._written.append((first, location))
        if self._copy.meta.keyed and flags & FLAG_KEYS:
            keys: list[bytes | None] = batch.column("key").to_pylist()
            seqs = batch.column("seq").to_numpy().tolist()
            self._learn_keys(list(zip(keys, seqs, strict=True)))

    def put_staged(self, name: str, batch: pa.RecordBatch) -> None:
        rows = batch.select(SEALED_SCHEMA.names)
        flags = flags_of(rows) | RELATIVE
        time = batch.column("time").view(pa.int64())[0].as_py()
        location = self._open_file().add(self._copy.shard, 0, batch.num_rows, rows, flags, [time])
        # Ordinals rise in the order of arrival, and stay below those of later batches, which
        # contain the index of their batch.
        ordinal = self._ordinals.get(name, 0)
        self._ordinals[name] = ordinal + 1
        self._staged.append((name, ordinal, location))

    # --- Files and the end -----------------------------------------------------------------------

    def _open_file(self) -> SealedWriter:
        if self._writer is not None and self._writer.size >= limits.SEALED_FILE_BYTES:
            self.close_file()
        if self._writer is None:
            self._reclaimer.is_held = True
            self._writer = SealedWriter(self._disk, self._file_stats.next_number, lambda: None)
        return self._writer

    def close_file(self) -> None:
        """Finish the file that is being written, and add it to the file statistics."""
        self.flush()
        writer = self._writer
        if writer is None:
            return
        # If this raises `Full`, `abandon` still removes the file.
        writer.close()
        self._writer = None
        # Staged rows have no seqs, so that dead rows of their file cannot be counted by seqs.
        spans = {self._copy.id: self._span} if self._span and not self._staged else {}
        self._file_stats.add(writer.number, FileFacts(writer.size, writer.rows, spans=spans))
        self._put_locations(self._written)
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
        self._reclaimer.is_held = False
        self._layered.drop_copy(self._copy)


def _ends(batch: pa.RecordBatch) -> tuple[int, int]:
    seqs = batch.column("seq")
    return seqs[0].as_py(), seqs[-1].as_py()


def flags_of(batch: pa.RecordBatch) -> int:
    """Return the location flags for the rows of an Arrow batch."""
    rows = batch.num_rows
    return (
        (FLAG_KEYS if batch.column("key").null_count < rows else 0)
        | (FLAG_HEADERS if batch.column("headers").null_count < rows else 0)
        | (FLAG_DELETES if batch.column("value").null_count else 0)
    )
