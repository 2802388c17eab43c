"""Sealing (compaction): copies the live rows of log segments and sparse files to new sealed files.

A pass has three parts. `plan` (see `reclaim`), on the engine's thread, picks the homes to empty and
collects facts about the shards. `run`, on an I/O thread, reads, filters, merges and writes in bulk,
and changes no state of the store. `finish`, on the engine's thread, applies the new locations.

Rule 1: the files are durable before `finish`, the new locations before anything is released (F1).
Rule 2: rows may die during the pass. That makes the copy larger than necessary, never wrong: live
rows are counted when the file is registered (F2).
Rule 3: rows are dropped only if no reader can see them any more. Kept and pinned rows are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.format.block import FLAG_KEYS
from millrace.errors import Corrupt, Full
from millrace.store import chunk
from millrace.store.cells import Cells, Table
from millrace.store.compression import Codec
from millrace.store.dead_rows import DEAD, ENDED, KEPT, Marks
from millrace.store.index_codec import (
    FileFacts,
    block_key,
    first_of,
    number_bytes,
    number_of,
    stage_of,
)
from millrace.store.row_location import (
    COMPRESSED,
    RELATIVE,
    UNREADABLE,
    RowLocation,
    decode_location,
)
from millrace.store.row_reader import RowReader, without
from millrace.store.scan import lost
from millrace.store.sealed import SEALED_SCHEMA, Moved, SealedWriter
from millrace.store.unreadable import Unreadable, quarantine_bytes
from millrace.wal.disk import Disk


class Sealer:
    """Runs sealing passes, on an I/O thread."""

    def __init__(
        self,
        disk: Disk,
        cells: Cells,
        marks: Marks,
        row_reader: RowReader,
        note_damage: Callable[[int, Corrupt], None],
    ) -> None:
        self._disk = disk
        self._cells = cells
        self._marks = marks
        self._row_reader = row_reader
        self._note_damage = note_damage
        self.failed: SealPlan | None = None
        """The last plan that failed."""

    def run(self, plan: SealPlan, pause: Callable[[], None]) -> SealResult:
        """Copy the live rows. When this returns, the new files are durable.

        Raises:
            Full: the disk has no room; the new files are removed, nothing has changed.
            Corrupt: rows to be copied are damaged; a damaged file is recorded as such.
        """
        work = _Pass(self._disk, self._cells, self._marks, self._row_reader, plan, pause)
        try:
            return work.run()
        except BaseException as error:
            if isinstance(error, Corrupt) and work.reads is not None and work.reads.sealed:
                self._note_damage(work.reads.home, error)
            self.failed = plan
            raise

    def find_unreadable(
        self, shards: dict[int, tuple[int, list[tuple[bytes, bytes]]]], number: int
    ) -> list[Unreadable]:
        """Read all visible rows of a sealed file; return an error for each unreadable location."""
        unreadable: list[Unreadable] = []
        for shard, extents in shards.values():
            for low, high in extents:
                for key, value in self._blocks(low, high):
                    location = decode_location(value)
                    if not location.sealed or location.home != number or stage_of(key) is not None:
                        continue
                    try:
                        self._row_reader.decode(location, shard, first_of(key))
                    except Unreadable as error:
                        unreadable.append(error)
                    except Moved:
                        unreadable.append(lost(shard, first_of(key), (first_of(key), location)))
        return unreadable

    def _blocks(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        while cells := self._cells.range(Table.BLOCKS, low, high + b"\0", limit=limits.PLACES_STEP):
            yield from cells
            low = cells[-1][0] + b"\0"


class _Pass:
    """State of a running pass."""

    def __init__(
        self,
        disk: Disk,
        cells: Cells,
        marks: Marks,
        row_reader: RowReader,
        plan: SealPlan,
        pause: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._cells = cells
        self._marks = marks
        self._row_reader = row_reader
        self._plan = plan
        self._pause = pause
        self.reads: RowLocation | None = None
        """The location that is being read."""
        self._writer: SealedWriter | None = None
        self._done: list[SealedWriter] = []
        self._spans: dict[int, tuple[int, int]] = {}
        self._shard = 0
        self._group: list[pa.RecordBatch] = []
        self._group_bytes = 0
        self._group_rows = 0
        self._group_flags = 0
        self._firsts: list[int] = []
        self._origins: list[RowLocation] = []
        self._result = SealResult(plan, [], [], {}, {}, {}, [])

    def run(self) -> SealResult:
        try:
            visible, staged = self._find()
            self._spare(visible, staged)
            self._check_room(visible, staged)
            for shard in sorted(visible):
                self._shard = shard
                self._seal(shard, visible[shard])
            if staged:
                # Staged rows have no seqs yet, so that dead rows of such a file cannot be counted
                # by seqs: do not mix them with visible rows.
                self._close_file()
            for shard, name, ordinal, location in staged:
                self._seal_stage(shard, name, ordinal, location)
            self._close_file()
        except BaseException:
            self._abandon()
            raise
        return self._result

    # --- Rows of the homes --------------------------------------------------------------------

    def _find(
        self,
    ) -> tuple[dict[int, dict[int, RowLocation]], list[tuple[int, str, int, RowLocation]]]:
        """Return all locations in the homes, visible and staged.

        Stages are read first: rows that are published in between are then found twice, not missed.
        """
        visible: dict[int, dict[int, RowLocation]] = {}
        staged: list[tuple[int, str, int, RowLocation]] = []
        for low, high in sorted(self._plan.extents, reverse=True):
            for key, location in self._locations(low, high):
                stage = stage_of(key)
                if stage is not None:
                    staged.append((*stage, location))
                elif (shard := number_of(key[:8])) in self._plan.shards:
                    visible.setdefault(shard, {})[first_of(key)] = location
        return visible, [block for block in staged if block[0] in self._plan.shards]

    def _locations(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, RowLocation]]:
        end = high + b"\0"
        while True:
            cells = self._cells.range(Table.BLOCKS, low, end, limit=limits.PLACES_STEP)
            for key, value in cells:
                location = decode_location(value)
                if (location.sealed, location.home) in self._plan.homes:
                    yield key, location
            if len(cells) < limits.PLACES_STEP:
                return
            low = cells[-1][0] + b"\0"

    def _spare(
        self,
        visible: dict[int, dict[int, RowLocation]],
        staged: list[tuple[int, str, int, RowLocation]],
    ) -> None:
        """Count the live rows of the files, and spare files that are not sparse."""
        rows = self._plan.rows
        live = dict.fromkeys(rows, 0)
        for shard, locations in visible.items():
            for first, location, dead in self._with_dead(shard, locations):
                if location.sealed and location.home in live:
                    last = first + location.span - 1
                    live[location.home] += location.span - dead.range_cardinality(first, last + 1)
        for _, _, _, location in staged:
            if location.sealed and location.home in live:
                live[location.home] += location.count
        spared = {
            home
            for home, count in live.items()
            if count and count * 100 >= limits.SPARSE_PER_CENT * rows[home]
        }
        for home in spared:
            self._result.spared[home] = rows[home] - live[home]
        for locations in visible.values():
            for first in [
                first
                for first, location in locations.items()
                if location.sealed and location.home in spared
            ]:
                del locations[first]
        staged[:] = [block for block in staged if not (block[3].sealed and block[3].home in spared)]

    def _check_room(
        self,
        visible: dict[int, dict[int, RowLocation]],
        staged: list[tuple[int, str, int, RowLocation]],
    ) -> None:
        """Raise `Full` before anything is written if the live rows do not fit."""
        free = self._disk.free_bytes()
        if self._plan.room is not None:
            free = min(free, self._plan.room)
        size = sum(location.length for _, _, _, location in staged)
        if (
            size + sum(location.length for some in visible.values() for location in some.values())
            <= free
        ):
            return
        for shard, locations in visible.items():
            for first, location, dead in self._with_dead(shard, locations):
                live = location.span - dead.range_cardinality(first, first + location.span)
                size += location.length * live // location.span
        if size > free:
            raise Full(f"sealing needs {size} bytes, and has {free}", field="disk")

    def _with_dead(
        self, shard: int, locations: dict[int, RowLocation]
    ) -> Iterator[tuple[int, RowLocation, BitMap64]]:
        """Yield the locations in order, each with dead seqs that cover at least its span."""
        shard_facts = self._plan.shards[shard]
        known_from, known_to, dead = 1, 0, BitMap64()
        for first, location in sorted(locations.items()):
            last = first + location.span - 1
            if last > known_to:
                known_from = max(min(known_to + 1, first), first - chunk.ROWS)
                known_to = max(last, first + 64 * chunk.ROWS)
                dead = shard_facts.dead & chunk.span(known_from, known_to)
                dead |= chunk.span(known_from, min(shard_facts.floor, known_to))
                dead |= self._marks.stored(shard, shard_facts.pins, DEAD, known_from, known_to)
            yield first, location, dead

    # --- Rows ----------------------------------------------------------------------------------

    def _seal(self, shard: int, locations: dict[int, RowLocation]) -> None:
        shard_facts = self._plan.shards[shard]
        after = 0
        for first, location, dead in self._with_dead(shard, locations):
            last = first + location.span - 1
            if after and not self._is_empty(shard, after, first, dead):
                self._flush()
            after = last + 1
            gone = dead.range_cardinality(first, last + 1)
            if (
                shard_facts.is_keyed
                and gone > location.span - location.count
                and location.flags & FLAG_KEYS
            ):
                self._drop_keys(shard, first, location, dead)
            if gone < location.span:
                if location.flags & UNREADABLE:
                    # It stays in quarantine until all of its rows have ended.
                    self._flush()
                    continue
                try:
                    batch = self._read(shard, first, location)
                except Unreadable as error:
                    if location.sealed:
                        raise
                    self._flush()
                    quarantined = self._quarantine_bytes(location, error)
                    self._result.replaced.append(
                        Replaced(shard, [first], [location], first, quarantined)
                    )
                    continue
                self._add(_live_rows(batch, first, location, dead, gone))
                self._group_flags |= location.flags & ~(RELATIVE | COMPRESSED)
            self._firsts.append(first)
            self._origins.append(location)
        self._flush()

    def _quarantine_bytes(self, location: RowLocation, error: Unreadable) -> RowLocation:
        """Copy unreadable bytes of the log to the quarantine, to allow recycling the segment."""
        data = self._row_reader.log.raw(location.position())
        self.reads = None
        if data is None:
            raise error
        self._result.unreadable.append(error)
        return quarantine_bytes(self._disk, location, data)

    def _is_empty(self, shard: int, low: int, high: int, dead: BitMap64) -> bool:
        """Return True if [low, high) has no live row: a batch must not span other locations."""
        if low == high:
            return True
        ends = block_key(shard, low), block_key(shard, high)
        return dead.range_cardinality(low, high) == high - low and not self._cells.range(
            Table.BLOCKS, *ends, limit=1
        )

    def _read(self, shard: int, first: int, location: RowLocation) -> pa.RecordBatch:
        with self._at(shard, first, location):
            if location.sealed:
                return self._row_reader.sealed_batch(
                    self._plan.shards[shard].shard, first, location
                )
            block = self._row_reader.held_block(self._plan.shards[shard].shard, first, location)
            return block.arrow(shard, first, location.time_ms).select(SEALED_SCHEMA.names)

    @contextmanager
    def _at(self, shard: int, first: int, location: RowLocation) -> Iterator[None]:
        """Attribute errors to this location and its home while it is read."""
        self.reads = location
        try:
            yield
        except Moved:
            # Only this pass empties homes: the file is missing.
            raise lost(self._plan.shards[shard].shard, first) from None
        self.reads = None

    def _add(self, batch: pa.RecordBatch) -> None:
        """Gather rows for the next record batch; a large batch is written as it is."""
        size = batch.get_total_buffer_size()
        if self._group and (
            self._group_bytes + size > limits.SEALED_BATCH_BYTES
            or self._group_rows + batch.num_rows > limits.SEALED_BATCH_ROWS
        ):
            self._flush()
        self._group.append(batch)
        self._group_bytes += size
        self._group_rows += batch.num_rows

    def _flush(self) -> None:
        """Write the gathered rows as one record batch."""
        if not self._firsts:
            return
        first, location = 0, None
        if self._group:
            batch = joined_batches(self._group)
            seqs, times = batch.column("seq"), batch.column("time").view(pa.int64())
            first = seqs[0].as_py()
            span = seqs[-1].as_py() - first + 1
            writer = self._open_file()
            location = writer.add(
                self._plan.shards[self._shard].shard,
                first,
                span,
                batch,
                self._group_flags,
                [times[0].as_py(), times[-1].as_py()],
                self._plan.shards[self._shard].codec,
            )
            low, _ = self._spans.get(self._shard, (first, 0))
            self._spans[self._shard] = (low, first + span - 1)
        self._result.replaced.append(
            Replaced(self._shard, self._firsts, self._origins, first, location)
        )
        self._group, self._group_bytes, self._group_rows, self._group_flags = [], 0, 0, 0
        self._firsts, self._origins = [], []

    def _seal_stage(self, shard: int, name: str, ordinal: int, location: RowLocation) -> None:
        """Copy a staged block; its rows are numbered from 0, as they have no seqs yet."""
        try:
            batch = self._read(shard, 0, location)
        except Unreadable as error:
            if location.sealed:
                raise
            quarantined = self._quarantine_bytes(location, error)
            self._result.restaged.append(Restaged(shard, name, ordinal, location, quarantined))
            return
        writer = self._open_file()
        flags = (location.flags | RELATIVE) & ~COMPRESSED
        shard_facts = self._plan.shards[shard]
        times = [location.time_ms]
        moved = writer.add(
            shard_facts.shard, 0, location.count, batch, flags, times, shard_facts.codec
        )
        self._result.restaged.append(Restaged(shard, name, ordinal, location, moved))

    def _drop_keys(self, shard: int, first: int, location: RowLocation, dead: BitMap64) -> None:
        """Collect the keys of dropped rows if the index still names these rows."""
        shard_facts = self._plan.shards[shard]
        last = first + location.span - 1
        # If a newer row of the key has replaced a row, the key names the newer one.
        dropped = shard_facts.ended | self._marks.stored(shard, [0], ENDED, first, last)
        for pin in shard_facts.pins:
            dropped |= self._marks.stored(shard, [pin], KEPT, first, last)
        dropped |= chunk.span(first, min(shard_facts.floor, last))
        dropped &= dead & chunk.span(first, last)
        if not dropped:
            return
        try:
            with self._at(shard, first, location):
                pairs_here = self._row_reader.decode(location, shard_facts.shard, first).pairs(
                    first
                )
        except Unreadable:
            # The keys of unreadable dead rows stay in the index: an entry that names a dead row
            # reads like no entry.
            self.reads = None
            return
        pairs = [(key, seq) for key, seq in pairs_here if key is not None and seq in dropped]
        prefix = number_bytes(shard)
        named = self._cells.get(Table.KEYS, [prefix + key for key, _ in pairs])
        self._result.key_drops.setdefault(shard, []).extend(
            pair for pair, value in zip(pairs, named, strict=True) if value == number_bytes(pair[1])
        )

    # --- Files -----------------------------------------------------------------------------------

    def _open_file(self) -> SealedWriter:
        if self._writer is not None and self._writer.size >= limits.SEALED_FILE_BYTES:
            self._close_file()
        if self._writer is None:
            number = self._plan.number + len(self._done)
            self._writer = SealedWriter(self._disk, number, self._pause)
        return self._writer

    def _close_file(self) -> None:
        writer = self._writer
        if writer is None:
            return
        writer.close()
        self._writer = None
        self._done.append(writer)
        few = len(self._spans) <= limits.FILE_SPANS_MAX
        spans = dict(sorted(self._spans.items())) if few else {}
        self._result.files[writer.number] = FileFacts(writer.size, writer.rows, spans=spans)
        self._spans = {}

    def _abandon(self) -> None:
        for writer in (*self._done, *([self._writer] if self._writer else [])):
            writer.abandon()


def _live_rows(
    batch: pa.RecordBatch, first: int, location: RowLocation, dead: BitMap64, gone: int
) -> pa.RecordBatch:
    """Return the rows of the batch that are not dead."""
    if gone == location.span - location.count:
        return batch
    return without(batch, location, dead & chunk.span(first, first + location.span - 1))


def joined_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all batches in one batch."""
    if len(batches) == 1:
        return batches[0]
    [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


# --- Plan and result of a pass -----------------------------------------------------------------

Home = tuple[bool, int]
"""(Sealed or not, file or generation)."""


class ShardFacts(NamedTuple):
    """State of a shard at the time of planning; rows may die later, none is revived."""

    shard: int
    """The shard of the rows; in the index it may have another number."""
    is_keyed: bool
    floor: int
    pins: list[int]
    """Pins whose stored marks make a row garbage."""
    dead: BitMap64
    """Such marks that are not in the index yet."""
    ended: BitMap64
    """Dead rows that their keys may still name, from marks that are not in the index yet."""
    codec: Codec | None = None
    """Compression of its rows from now on."""


class SealPlan(NamedTuple):
    """The homes that one pass empties."""

    homes: frozenset[Home]
    extents: list[tuple[bytes, bytes]]
    """Ranges of block keys, first and last, with the rows of these homes."""
    shards: dict[int, ShardFacts]
    number: int
    """Number of the first file that may be created."""
    rows: dict[int, int]
    """Original row counts of the files that are spared if enough of their rows are live."""
    room: int | None = None
    """Bytes that may be written; None: as many as the disk has room for."""


class Replaced(NamedTuple):
    """Visible rows with a new location, or none."""

    shard: int
    firsts: list[int]
    """First seqs of the removed locations."""
    origins: list[RowLocation]
    first: int
    location: RowLocation | None


class Restaged(NamedTuple):
    """Staged rows with a new location."""

    shard: int
    stage: str
    ordinal: int
    origin: RowLocation
    location: RowLocation


class SealResult(NamedTuple):
    """The result of a pass."""

    plan: SealPlan
    replaced: list[Replaced]
    restaged: list[Restaged]
    key_drops: dict[int, list[tuple[bytes, int]]]
    files: dict[int, FileFacts]
    spared: dict[int, int]
    """Untouched files that are not sparse after all, with their counts of dead rows. Rows that the
    index no longer lists count as dead: their shard was dropped, or their stage."""
    unreadable: list[Unreadable]
    """Rows in the log whose bytes were copied to the quarantine."""
