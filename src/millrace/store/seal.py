"""Sealing: copying the rows that are still wanted out of log segments and sparse files.

A pass has three parts. `plan`, on the engine's thread, picks what is to be emptied and notes what
is known of the shards. `run`, on a lane, reads, filters, merges and writes in bulk, and touches no
state of the store. `finish`, back on the engine's thread, says where the rows lie now.

Rule 1: the files are durable before `finish`, the new places before anything is released (F1).
Rule 2: rows may die while they are copied. That makes the copy larger than it need be, never wrong:
live rows are counted when the file is registered (F2).
Rule 3: rows are left out only if nobody can ask for them any more. Kept and pinned rows are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core.block import FLAG_KEYS
from millrace.errors import Corrupt, Full
from millrace.store import chunk
from millrace.store.cells import Cells, Table
from millrace.store.dead_rows import (
    DEAD,
    ENDED,
    KEPT,
    Marks,
)
from millrace.store.place import COMPRESSED, RELATIVE, UNREADABLE, Place, decode_place
from millrace.store.reading import Reading, without
from millrace.store.scanning import lost
from millrace.store.sealed import SEALED_SCHEMA, Moved, SealedWriter
from millrace.store.sealplan import Replaced, Restaged, SealPlan, SealResult
from millrace.store.tables import (
    FileFacts,
    block_key,
    first_of,
    number_bytes,
    number_of,
    stage_of,
)
from millrace.store.unreadable import Unreadable, set_aside
from millrace.wal.files import Disk


class Sealing:
    """Runs passes, on a lane."""

    def __init__(
        self,
        disk: Disk,
        cells: Cells,
        marks: Marks,
        reading: Reading,
        note_damage: Callable[[int, Corrupt], None],
    ) -> None:
        self._disk = disk
        self._cells = cells
        self._marks = marks
        self._reading = reading
        self._note_damage = note_damage
        self.failed: SealPlan | None = None
        """The last plan that could not be carried out."""

    def run(self, plan: SealPlan, pause: Callable[[], None]) -> SealResult:
        """Copy what is wanted. When this returns, the new files are durable.

        Raises:
            Full: the disk has no room; what was written is removed again, nothing has changed.
            Corrupt: rows that should be copied are damaged; of a file, it is noted that it is.
        """
        work = _Pass(self._disk, self._cells, self._marks, self._reading, plan, pause)
        try:
            return work.run()
        except BaseException as error:
            if isinstance(error, Corrupt) and work.reads is not None and work.reads.sealed:
                self._note_damage(work.reads.home, error)
            self.failed = plan
            raise

    def look_through(
        self, shards: dict[int, tuple[int, list[tuple[bytes, bytes]]]], number: int
    ) -> list[Unreadable]:
        """Read all visible rows of a sealed file; returns the places at which that failed."""
        found: list[Unreadable] = []
        for shard, extents in shards.values():
            for low, high in extents:
                for key, value in self._blocks(low, high):
                    place = decode_place(value)
                    if not place.sealed or place.home != number or stage_of(key) is not None:
                        continue
                    try:
                        self._reading.decode(place, shard, first_of(key))
                    except Unreadable as error:
                        found.append(error)
                    except Moved:
                        found.append(lost(shard, first_of(key), (first_of(key), place)))
        return found

    def _blocks(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        while cells := self._cells.range(Table.BLOCKS, low, high + b"\0", limit=limits.PLACES_STEP):
            yield from cells
            low = cells[-1][0] + b"\0"


class _Pass:
    """One pass, while it runs."""

    def __init__(
        self,
        disk: Disk,
        cells: Cells,
        marks: Marks,
        reading: Reading,
        plan: SealPlan,
        pause: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._cells = cells
        self._marks = marks
        self._reading = reading
        self._plan = plan
        self._pause = pause
        self.reads: Place | None = None
        """What it is reading at the moment."""
        self._writer: SealedWriter | None = None
        self._done: list[SealedWriter] = []
        self._spans: dict[int, tuple[int, int]] = {}
        self._shard = 0
        self._group: list[pa.RecordBatch] = []
        self._group_bytes = 0
        self._group_rows = 0
        self._group_flags = 0
        self._firsts: list[int] = []
        self._origins: list[Place] = []
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
                # Their seqs are not known yet, so that nobody could tell when such a file is empty
                # from the seqs of the other rows in it.
                self._close_file()
            for shard, name, ordinal, place in staged:
                self._seal_stage(shard, name, ordinal, place)
            self._close_file()
        except BaseException:
            self._abandon()
            raise
        return self._result

    # --- What there is -----------------------------------------------------------------------

    def _find(
        self,
    ) -> tuple[dict[int, dict[int, Place]], list[tuple[int, str, int, Place]]]:
        """Everything that lies in the homes. Stages are looked at first: what is published
        meanwhile is then found twice, and not missed."""
        visible: dict[int, dict[int, Place]] = {}
        staged: list[tuple[int, str, int, Place]] = []
        for low, high in sorted(self._plan.extents, reverse=True):
            for key, place in self._places(low, high):
                stage = stage_of(key)
                if stage is not None:
                    staged.append((*stage, place))
                elif (shard := number_of(key[:8])) in self._plan.shards:
                    visible.setdefault(shard, {})[first_of(key)] = place
        return visible, [found for found in staged if found[0] in self._plan.shards]

    def _places(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, Place]]:
        end = high + b"\0"
        while True:
            cells = self._cells.range(Table.BLOCKS, low, end, limit=limits.PLACES_STEP)
            for key, value in cells:
                place = decode_place(value)
                if (place.sealed, place.home) in self._plan.homes:
                    yield key, place
            if len(cells) < limits.PLACES_STEP:
                return
            low = cells[-1][0] + b"\0"

    def _spare(
        self,
        visible: dict[int, dict[int, Place]],
        staged: list[tuple[int, str, int, Place]],
    ) -> None:
        """Count the rows of the files; those that are not sparse are left alone."""
        rows = self._plan.rows
        live = dict.fromkeys(rows, 0)
        for shard, places in visible.items():
            for first, place, dead in self._with_dead(shard, places):
                if place.sealed and place.home in live:
                    last = first + place.span - 1
                    live[place.home] += place.span - dead.range_cardinality(first, last + 1)
        for _, _, _, place in staged:
            if place.sealed and place.home in live:
                live[place.home] += place.count
        spared = {
            home
            for home, count in live.items()
            if count and count * 100 >= limits.SPARSE_PER_CENT * rows[home]
        }
        for home in spared:
            self._result.spared[home] = rows[home] - live[home]
        for places in visible.values():
            for first in [
                first for first, place in places.items() if place.sealed and place.home in spared
            ]:
                del places[first]
        staged[:] = [found for found in staged if not (found[3].sealed and found[3].home in spared)]

    def _check_room(
        self,
        visible: dict[int, dict[int, Place]],
        staged: list[tuple[int, str, int, Place]],
    ) -> None:
        """Refuse what will not fit before anything is written."""
        free = self._disk.free_bytes()
        if self._plan.room is not None:
            free = min(free, self._plan.room)
        size = sum(place.length for _, _, _, place in staged)
        if size + sum(place.length for some in visible.values() for place in some.values()) <= free:
            return
        for shard, places in visible.items():
            for first, place, dead in self._with_dead(shard, places):
                live = place.span - dead.range_cardinality(first, first + place.span)
                size += place.length * live // place.span
        if size > free:
            raise Full(f"sealing needs {size} bytes, and has {free}", field="disk")

    def _with_dead(
        self, shard: int, places: dict[int, Place]
    ) -> Iterator[tuple[int, Place, BitMap64]]:
        """The places in order, each with the seqs at least around it that nobody wants."""
        note = self._plan.shards[shard]
        known_from, known_to, dead = 1, 0, BitMap64()
        for first, place in sorted(places.items()):
            last = first + place.span - 1
            if last > known_to:
                known_from = max(min(known_to + 1, first), first - chunk.ROWS)
                known_to = max(last, first + 64 * chunk.ROWS)
                dead = note.dead & chunk.span(known_from, known_to)
                dead |= chunk.span(known_from, min(note.floor, known_to))
                dead |= self._marks.stored(shard, note.pins, DEAD, known_from, known_to)
            yield first, place, dead

    # --- Rows ----------------------------------------------------------------------------------

    def _seal(self, shard: int, places: dict[int, Place]) -> None:
        note = self._plan.shards[shard]
        after = 0
        for first, place, dead in self._with_dead(shard, places):
            last = first + place.span - 1
            if after and not self._is_empty(shard, after, first, dead):
                self._flush()
            after = last + 1
            gone = dead.range_cardinality(first, last + 1)
            if note.is_keyed and gone > place.span - place.count and place.flags & FLAG_KEYS:
                self._drop_keys(shard, first, place, dead)
            if gone < place.span:
                if place.flags & UNREADABLE:
                    # It stays where it is until all of its rows have ended.
                    self._flush()
                    continue
                try:
                    batch = self._read(shard, first, place)
                except Unreadable as error:
                    if place.sealed:
                        raise
                    self._flush()
                    aside = self._set_aside(place, error)
                    self._result.replaced.append(Replaced(shard, [first], [place], first, aside))
                    continue
                self._add(_wanted(batch, first, place, dead, gone))
                self._group_flags |= place.flags & ~(RELATIVE | COMPRESSED)
            self._firsts.append(first)
            self._origins.append(place)
        self._flush()

    def _set_aside(self, place: Place, error: Unreadable) -> Place:
        """Copy the bytes of rows in the log that cannot be read, so that the log can go on."""
        data = self._reading.log.raw(place.position())
        self.reads = None
        if data is None:
            raise error
        self._result.unreadable.append(error)
        return set_aside(self._disk, place, data)

    def _is_empty(self, shard: int, low: int, high: int, dead: BitMap64) -> bool:
        """Whether nothing is left within [low, high): a batch must not reach over other places."""
        if low == high:
            return True
        ends = block_key(shard, low), block_key(shard, high)
        return dead.range_cardinality(low, high) == high - low and not self._cells.range(
            Table.BLOCKS, *ends, limit=1
        )

    def _read(self, shard: int, first: int, place: Place) -> pa.RecordBatch:
        with self._at(shard, first, place):
            if place.sealed:
                return self._reading.sealed_batch(self._plan.shards[shard].shard, first, place)
            block = self._reading.held_block(self._plan.shards[shard].shard, first, place)
            return block.arrow(shard, first, place.time_ms).select(SEALED_SCHEMA.names)

    @contextmanager
    def _at(self, shard: int, first: int, place: Place) -> Iterator[None]:
        """While a place is read: whatever is wrong there is wrong with its home."""
        self.reads = place
        try:
            yield
        except Moved:
            # Nobody but this pass empties homes: the file is missing.
            raise lost(self._plan.shards[shard].shard, first) from None
        self.reads = None

    def _add(self, batch: pa.RecordBatch) -> None:
        """Gather rows for the next record batch; a large one stands alone, as it is."""
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
        """Write the rows that were gathered as one record batch."""
        if not self._firsts:
            return
        first, place = 0, None
        if self._group:
            batch = joined_batches(self._group)
            seqs, times = batch.column("seq"), batch.column("time").view(pa.int64())
            first = seqs[0].as_py()
            span = seqs[-1].as_py() - first + 1
            writer = self._open_file()
            place = writer.add(
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
            Replaced(self._shard, self._firsts, self._origins, first, place)
        )
        self._group, self._group_bytes, self._group_rows, self._group_flags = [], 0, 0, 0
        self._firsts, self._origins = [], []

    def _seal_stage(self, shard: int, name: str, ordinal: int, place: Place) -> None:
        """Staged rows have no seqs yet: they are numbered from 0, and the index knows better."""
        try:
            batch = self._read(shard, 0, place)
        except Unreadable as error:
            if place.sealed:
                raise
            aside = self._set_aside(place, error)
            self._result.restaged.append(Restaged(shard, name, ordinal, place, aside))
            return
        writer = self._open_file()
        flags = (place.flags | RELATIVE) & ~COMPRESSED
        note = self._plan.shards[shard]
        times = [place.time_ms]
        moved = writer.add(note.shard, 0, place.count, batch, flags, times, note.codec)
        self._result.restaged.append(Restaged(shard, name, ordinal, place, moved))

    def _drop_keys(self, shard: int, first: int, place: Place, dead: BitMap64) -> None:
        """Note the keys of rows that are left out, where the index still names those rows."""
        note = self._plan.shards[shard]
        last = first + place.span - 1
        # Where a newer row of the key has replaced it, the key names that one.
        left = note.ended | self._marks.stored(shard, [0], ENDED, first, last)
        for pin in note.pins:
            left |= self._marks.stored(shard, [pin], KEPT, first, last)
        left |= chunk.span(first, min(note.floor, last))
        left &= dead & chunk.span(first, last)
        if not left:
            return
        try:
            with self._at(shard, first, place):
                known = self._reading.decode(place, note.shard, first).pairs(first)
        except Unreadable:
            # Rows of which nothing is left have keys that nobody asks for: the index goes on naming
            # dead rows, which is as good as naming none.
            self.reads = None
            return
        pairs = [(key, seq) for key, seq in known if key is not None and seq in left]
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


def _wanted(
    batch: pa.RecordBatch, first: int, place: Place, dead: BitMap64, gone: int
) -> pa.RecordBatch:
    """The rows that somebody may still ask for."""
    if gone == place.span - place.count:
        return batch
    return without(batch, place, dead & chunk.span(first, first + place.span - 1))


def joined_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches in one."""
    if len(batches) == 1:
        return batches[0]
    [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole
