"""Checkpoints: all changes folded since the last one, written as one commit of the index.

Rule 1: the writes are a function of the frozen state and the present index, so that a checkpoint
that found no room is simply written again.
Rule 2: the replay mark, the applied index of every group and the facts of this node are part of the
same commit (C1, L6).
Rule 3: garbage collection that may be large (marks of merged intervals, dropped shards, marks of
rows that are gone) is done in bounded steps, some with every checkpoint (C3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from msgspec import structs
from pyroaring import BitMap, BitMap64

from millrace import limits
from millrace.core.cells import Kind
from millrace.core.model import GroupId
from millrace.errors import Fatal, Full
from millrace.store import chunk
from millrace.store.cells import Cells, Table
from millrace.store.dead_rows import DEAD, MARKS
from millrace.store.index_codec import (
    MARK_KEY,
    NEEDED_KEY,
    NEXT_FILE_KEY,
    FileSpans,
    StoredShard,
    block_key,
    chunk_of,
    copy_key,
    deaths_key,
    dropped_key,
    encode_file,
    encode_shard,
    extent_key,
    extent_low,
    extents_range,
    fact_key,
    first_part,
    group_key,
    number_bytes,
    part_count,
    part_keys,
    parts,
    shard_of,
    shard_range,
    stage_key,
    stages_range,
)
from millrace.store.layered_index import LayeredIndex
from millrace.store.overlay import Overlay, ShardOverlay
from millrace.store.reclaim import Reclaimer
from millrace.store.row_location import RowLocation, decode_location, encode_location
from millrace.store.sealed import FOLDER, SealedFiles, file_name
from millrace.store.sealed_stats import SealedFileStats
from millrace.wal.disk import Disk
from millrace.wal.record import LogMark

MARK = struct.Struct(">QQIQ")
GROUP = struct.Struct(">QQ")
"""Applied index and epoch of a group."""

_SMALL = frozenset((Kind.TURN, Kind.GROUP, Kind.RING, Kind.BUCKET))
"""Kinds with very many cells; each cell always has one part."""

_ONE_PART = b"\0\1"

Pairs = list[tuple[bytes, bytes | None]]


class FrozenState:
    """The immutable input of one checkpoint, and results for `thaw`."""

    def __init__(
        self,
        overlay: Overlay,
        mark: LogMark,
        facts: dict[GroupId, bytes],
        groups: dict[GroupId, tuple[int, int]],
        shards: dict[int, StoredShard],
    ) -> None:
        self.overlay = overlay
        self.mark = mark
        self.facts = facts
        self.groups = groups
        self.shards = shards
        """Every changed shard, by the number under which the index holds it."""
        self.metas: dict[int, StoredShard] = {}
        """The same by shard, without incomplete copies."""
        self.building: list[int] = []
        self.needed = 0
        self.next_file = 0
        self.merging: list[tuple[int, int, int]] = []
        """(Shard, pin, interval that it was merged into): marks to move."""
        self.cleaning: list[tuple[int, int, tuple[int, ...]]] = []
        """(Shard, gone, pins): marks of rows up to `gone` are garbage."""
        self.reclaiming: list[int] = []
        """Dropped shards that still have entries in the index."""
        self.removable: list[int] = []
        """Sealed files without references once this is committed."""
        self.spans: FileSpans = {}
        """Files of the shards whose marks move to the first interval."""
        # Results of writing, for `thaw`.
        self.merged: list[tuple[int, int]] = []
        self.moved: list[tuple[int, BitMap64]] = []
        self.cleaned: list[int] = []
        self.reclaimed: list[int] = []
        self.removed: list[int] = []


class CheckpointBuilder:
    """Builds the writes of one checkpoint."""

    def __init__(self, cells: Cells, frozen: FrozenState) -> None:
        self._cells = cells
        self._frozen = frozen
        # Reset the results of an earlier attempt that found no room.
        frozen.merged, frozen.moved, frozen.cleaned, frozen.reclaimed = [], [], [], []
        self._writes: dict[Table, dict[bytes, bytes | None]] = {table: {} for table in Table}
        self._left = limits.RECLAIM_STEP

    def writes(self) -> dict[Table, dict[bytes, bytes | None]]:
        frozen, overlay = self._frozen, self._frozen.overlay
        self._put_parts(
            Table.META,
            [(number_bytes(shard), encode_shard(stored)) for shard, stored in frozen.metas.items()],
        )
        cells: Pairs = []
        for shard, part in overlay.shards.items():
            prefix = number_bytes(shard)
            cells.extend(
                (prefix + key, value) for key, value in part.cells.items() if key[0] not in _SMALL
            )
            self._put_small(prefix, part)
            self._put_keys(prefix, part)
            self._put_locations(shard, part)
        self._put_parts(Table.CELLS, cells)
        self._put_marks()
        self._clean_marks()
        files = self._writes[Table.FILES]
        for number, facts in overlay.files.items():
            files[number_bytes(number)] = None if facts is None else encode_file(facts)
        self._count_moved(files)
        self._drop_extents()
        self._put_node()
        self._reclaim()
        return self._writes

    # --- Folded changes --------------------------------------------------------------------------

    def _put_parts(self, table: Table, pairs: Pairs) -> None:
        """Put values that may need several parts; delete surplus parts of the old values."""
        writes = self._writes[table]
        before = self._cells.get(table, [first_part(key) for key, _ in pairs])
        for (key, value), old in zip(pairs, before, strict=True):
            now = parts(key, value) if value is not None else []
            writes.update(now)
            writes.update(dict.fromkeys(part_keys(key, len(now), part_count(old))))

    def _put_small(self, prefix: bytes, part: ShardOverlay) -> None:
        """Put values with one part that replace values with one part, without reading the index."""
        small = {
            first_part(prefix + key): value and _ONE_PART + value
            for key, value in part.cells.items()
            if key[0] in _SMALL
        }
        self._writes[Table.CELLS].update(small)

    def _put_keys(self, prefix: bytes, part: ShardOverlay) -> None:
        writes = self._writes[Table.KEYS]
        if part.key_drops:
            drops = [(key, seq) for key, seq in part.key_drops if key not in part.keys]
            named = self._cells.get(Table.KEYS, [prefix + key for key, _ in drops])
            for (key, seq), value in zip(drops, named, strict=True):
                # A newer revision of the key may exist: its entry stays.
                if value == number_bytes(seq):
                    writes[prefix + key] = None
        writes.update({prefix + key: number_bytes(seq) for key, seq in part.keys.items()})

    def _put_locations(self, shard: int, part: ShardOverlay) -> None:
        writes = self._writes[Table.BLOCKS]
        _, locations, gone = part.rows
        for first in gone:
            writes[block_key(shard, first)] = None
        for first, location in locations.items():
            writes[block_key(shard, first)] = encode_location(location)
        for (stage, ordinal), staged in part.staged.items():
            key = stage_key(shard, stage, ordinal)
            writes[key] = None if staged is None else encode_location(staged)
        for (sealed, home, name), (low, high) in part.extents.items():
            if name is None:
                ends = block_key(shard, low), block_key(shard, high)
            else:
                ends = stage_key(shard, name, low), stage_key(shard, name, high)
            writes[extent_key(home, ends[0], sealed=sealed)] = ends[1]

    # --- Marks -----------------------------------------------------------------------------------

    def _put_marks(self) -> None:
        """Add the new marks to the stored chunks, under the interval that they belong to."""
        added: dict[bytes, list[BitMap]] = {}
        for shard, part in self._frozen.overlay.shards.items():
            roots = _roots(self._frozen.shards[shard])
            gone = self._frozen.shards[shard].gone
            for (pin, mark), seqs in part.marks.items():
                for number, offsets in chunk.split(seqs):
                    if number >= (gone + 1) // chunk.ROWS:
                        key = deaths_key(shard, roots.get(pin, pin), mark, number)
                        added.setdefault(key, []).append(offsets)
        self._merge(added)
        writes = self._writes[Table.DEATHS]
        keys = list(added)
        for key, old in zip(keys, self._cells.get(Table.DEATHS, keys), strict=True):
            sets = added[key]
            if old is not None:
                sets.append(chunk.unpack(old))
            writes[key] = chunk.pack(BitMap.union(*sets) if len(sets) > 1 else sets[0])

    def _merge(self, added: dict[bytes, list[BitMap]]) -> None:
        """Move marks of merged intervals to their new interval, in a bounded step."""
        frozen, writes = self._frozen, self._writes[Table.DEATHS]
        for shard, pin, into in frozen.merging:
            if not self._left:
                break
            low, high = deaths_key(shard, pin, 0, 0), deaths_key(shard, pin + 1, 0, 0)
            marks = self._take(Table.DEATHS, low, high)
            dead: list[tuple[int, BitMap]] = []
            for key, value in marks:
                offsets, mark = chunk.unpack(value), key[16]
                added.setdefault(deaths_key(shard, into, mark, chunk_of(key)), []).append(offsets)
                writes[key] = None
                if mark == DEAD and into == 0:
                    dead.append((chunk_of(key), offsets))
            frozen.moved.append((shard, chunk.join(dead)))
            if self._left:
                frozen.merged.append((shard, pin))

    def _clean_marks(self) -> None:
        frozen, writes = self._frozen, self._writes[Table.DEATHS]
        for shard, gone, pins in frozen.cleaning:
            border = (gone + 1) // chunk.ROWS
            for pin in pins:
                for mark in range(MARKS):
                    low = deaths_key(shard, pin, mark, 0)
                    for key, _ in self._take(
                        Table.DEATHS, low, deaths_key(shard, pin, mark, border)
                    ):
                        writes[key] = None
            if self._left:
                frozen.cleaned.append(shard)

    def _count_moved(self, files: dict[bytes, bytes | None]) -> None:
        """Count rows as dead in their files if their marks moved to the first interval."""
        counts: dict[int, int] = {}
        for shard, seqs in self._frozen.moved:
            for first, last, number, facts in self._frozen.spans.get(shard, ()):
                counts[number] = counts.get(number, facts.dead) + seqs.range_cardinality(
                    first, last + 1
                )
                dead = min(counts[number], facts.rows)
                files[number_bytes(number)] = encode_file(structs.replace(facts, dead=dead))

    # --- The node --------------------------------------------------------------------------------

    def _put_node(self) -> None:
        frozen, node = self._frozen, self._writes[Table.NODE]
        node[MARK_KEY] = MARK.pack(*frozen.mark)
        node[NEEDED_KEY] = number_bytes(frozen.needed)
        node[NEXT_FILE_KEY] = number_bytes(frozen.next_file)
        for group, applied in frozen.groups.items():
            node[group_key(group)] = GROUP.pack(*applied)
        self._put_parts(
            Table.NODE, [(fact_key(group), fact) for group, fact in frozen.facts.items()]
        )
        for number in frozen.overlay.dropped:
            node[dropped_key(number)] = b""
        for number, shard in frozen.overlay.copies.items():
            node[copy_key(number)] = number_bytes(shard)
            node[dropped_key(number)] = None

    def _drop_extents(self) -> None:
        writes = self._writes[Table.BLOCKS]
        for sealed, home in self._frozen.overlay.homes:
            low, high = extents_range(home, sealed=sealed)
            writes.update(dict.fromkeys(key for key, _ in self._all(low, high)))

    # --- Dropped shards --------------------------------------------------------------------------

    def _reclaim(self) -> None:
        """Delete the index entries of dropped shards, in a bounded step."""
        frozen = self._frozen
        for shard in frozen.overlay.ended:
            meta = self._writes[Table.META]
            low, high = shard_range(shard)
            garbage = self._cells.range(Table.META, low, high, limit=limits.RECLAIM_STEP)
            meta.update(dict.fromkeys(key for key, _ in garbage))
        for shard in frozen.reclaiming:
            ranges: Iterable[tuple[Table, tuple[bytes, bytes]]] = (
                (Table.CELLS, shard_range(shard)),
                (Table.KEYS, shard_range(shard)),
                (Table.BLOCKS, shard_range(shard)),
                (Table.BLOCKS, stages_range(shard)),
                (Table.DEATHS, shard_range(shard)),
            )
            for table, (low, high) in ranges:
                garbage = self._take(table, low, high)
                self._writes[table].update(dict.fromkeys(key for key, _ in garbage))
            if self._left:
                self._writes[Table.NODE][dropped_key(shard)] = None
                self._writes[Table.NODE][copy_key(shard)] = None
                frozen.reclaimed.append(shard)

    def _take(self, table: Table, low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
        """Return cells of the range up to the limit of this step; there may be more cells."""
        if not self._left:
            return []
        cells = self._cells.range(table, low, high, limit=self._left)
        self._left -= len(cells)
        return cells

    # --- Final check -------------------------------------------------------------------------

    def check_references(self) -> None:
        """Check that no row location refers to a generation or file to be released.

        Raises:
            Fatal: one does; nothing was committed.
        """
        frozen = self._frozen
        homes = set(frozen.overlay.homes)
        # Entries of dropped shards are unreachable.
        ended = {*frozen.overlay.dropped, *frozen.reclaiming} - {*frozen.building}
        writes = self._writes[Table.BLOCKS]
        for sealed, home in homes:
            low, high = extents_range(home, sealed=sealed)
            for key, last in self._all(low, high):
                for block, value in self._all(extent_low(key), last + b"\0"):
                    stays = writes.get(block, value)
                    if stays is not None and shard_of(block) not in ended:
                        self._check_location(block, decode_location(stays), (sealed, home))
        for part in frozen.overlay.shards.values():
            for first, location in part.rows[1].items():
                if (location.sealed, location.home) in homes:
                    self._check_location(
                        number_bytes(first), location, (location.sealed, location.home)
                    )

    def _check_location(self, key: bytes, location: RowLocation, home: tuple[bool, int]) -> None:
        if (location.sealed, location.home) == home:
            where = "sealed file" if location.sealed else "log generation"
            raise Fatal(
                f"{where} {location.home} would be released, but the rows under {key.hex()} "
                "lie in it"
            )

    def _all(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            page = self._cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
            yield from page
            if len(page) < limits.PLACES_STEP:
                return
            low = page[-1][0] + b"\0"


def _roots(stored: StoredShard) -> dict[int, int]:
    """Return merged pin → the interval that it belongs to now."""
    return {pin: into for into, pins in stored.sources.items() for pin in pins}


# --- Life cycle of a checkpoint ------------------------------------------------------------------
#
# `freeze` and `thaw` run on the engine's thread and are short; `write`, between them, is bulk work
# for an I/O thread.


class Checkpoints:
    """Freezes, writes and thaws checkpoints; holds the state of the last durable one."""

    def __init__(
        self,
        disk: Disk,
        layered: LayeredIndex,
        file_stats: SealedFileStats,
        reclaimer: Reclaimer,
        files: SealedFiles,
    ) -> None:
        self._disk = disk
        self._layered = layered
        self._file_stats = file_stats
        self._reclaimer = reclaimer
        self._files = files
        self.mark: LogMark | None = None
        """The mark at which replay would begin now."""
        self.needed = 0
        """The oldest log generation that the durable index refers to."""
        self.facts: dict[GroupId, bytes] = {}
        self._retry_moved: FrozenState | None = None
        self.readers = 0
        """Number of readers of the files; while there are any, no file is removed."""
        self._cleaning: set[int] = set()
        """Shards with marks of rows that are gone, to be deleted."""

    def begin(self, mark: LogMark | None, needed: int, facts: dict[GroupId, bytes]) -> None:
        """Set the state that was read from the index."""
        self.mark = mark
        self.needed = self._reclaimer.needed = needed
        self.facts = facts

    # --- Checkpoints -----------------------------------------------------------------------------

    def freeze(self, mark: LogMark, facts: dict[GroupId, bytes]) -> FrozenState:
        layered = self._layered
        if self._retry_moved is not None:
            again, self._retry_moved = self._retry_moved, None
            return again
        if len(layered.layers) > 1:
            raise Fatal("a checkpoint is under way")
        self._move_fronts()
        self._reclaimer.skip_empty_generations(mark)
        overlay = layered.new
        merging = self._note_pins(overlay)
        self._count_marks(overlay)
        frozen = FrozenState(
            overlay,
            mark,
            dict(facts),
            dict(layered.groups),
            {
                number: state.to_store()
                for number in overlay.shards
                if (state := layered.numbered(number)) is not None
            },
        )
        frozen.metas = {
            state.shard: frozen.shards[number]
            for number in frozen.shards
            if (state := layered.numbered(number)) is not None and layered.is_current(state)
        }
        frozen.needed = self._reclaimer.needed
        frozen.next_file = self._file_stats.next_number
        frozen.merging = merging
        frozen.cleaning = [
            (number, state.gone, tuple({0, *state.stored}))
            for number in sorted(self._cleaning)
            if (state := layered.numbered(number)) is not None
        ]
        frozen.reclaiming = sorted(layered.reclaiming - layered.building)
        frozen.building = sorted(layered.building)
        frozen.removable = [] if self.readers else sorted(self._file_stats.removing)
        if merging:
            frozen.spans = self._file_stats.spans_of(
                {number for number, _, into in merging if not into}
            )
        layered.layers = (Overlay(), overlay)
        return frozen

    def _note_pins(self, overlay: Overlay) -> list[tuple[int, int, int]]:
        """Record the pins with stored marks, and return the marks to move."""
        layered = self._layered
        for number, part in overlay.shards.items():
            if part.marks and (state := layered.numbered(number)) is not None:
                roots = state.roots()
                state.stored |= {roots.get(pin, pin) for pin, _ in part.marks}
        moving: list[tuple[int, int, int]] = []
        for number in sorted(layered.marks.merging):
            if (state := layered.numbered(number)) is not None:
                for into, pins in state.sources.items():
                    moving += [(number, pin, into) for pin in pins if pin in state.stored]
        for number, _, into in moving:
            # The marks will be there once this is written, even if that pin is removed before.
            if (state := layered.numbered(number)) is not None:
                layered.touch(state).stored |= {into}
        return moving

    def _count_marks(self, overlay: Overlay) -> None:
        """Count the rows that died in this layer, so that one commit has marks and counts."""
        layered, file_stats = self._layered, self._file_stats
        for number, part in overlay.shards.items():
            if (state := layered.numbered(number)) is not None:
                roots = state.roots()
                for (pin, mark), seqs in part.marks.items():
                    if mark == DEAD and roots.get(pin, pin) == 0 and seqs:
                        file_stats.count_dead(number, seqs)
                if state.meta.intervals:
                    floor = state.meta.intervals[0].floor
                    file_stats.count_floor(number, state.counted, floor)
                    state.counted = floor

    def refreeze(self, frozen: FrozenState) -> None:
        """Write this checkpoint again next time, as it found no room."""
        self._retry_moved = frozen

    def write(self, frozen: FrozenState) -> None:
        cells = self._layered.cells
        checkpoint = CheckpointBuilder(cells, frozen)
        writes = checkpoint.writes()
        checkpoint.check_references()
        cells.commit(writes)
        for number in frozen.removable:
            if self._disk.exists(file_name(number)):
                self._disk.remove(file_name(number))
            # Not before: a concurrent reader would open it again.
            self._files.forget(number)
        if frozen.removable:
            # Also if an earlier process has removed them: it may have ended before the sync, and a
            # name that reappears after its entry was deleted would stay for ever. The commit is
            # done, so that on a full disk the removal is just repeated with the next checkpoint.
            with suppress(Full):
                self._disk.sync_folder(FOLDER)
                frozen.removed = frozen.removable

    def thaw(self, frozen: FrozenState) -> None:
        layered, file_stats = self._layered, self._file_stats
        layered.reclaiming |= frozen.overlay.dropped - layered.new.copies.keys()
        layered.reclaiming -= set(frozen.reclaimed)
        for number in frozen.reclaimed:
            layered.copies.pop(number, None)
        layered.layers = (layered.new,)
        for number in frozen.overlay.dropped - layered.building:
            file_stats.count_dropped(number)
        if frozen.overlay.dropped or any(
            location is None
            for part in frozen.overlay.shards.values()
            for location in part.staged.values()
        ):
            file_stats.doubt()
        self._absorb_marks(frozen)
        for number in list(layered.marks.merging):
            state = layered.loaded(number)
            if state is None or not state.forget_merged(layered.new):
                layered.marks.merging.discard(number)
        cleaned = {number: gone for number, gone, _ in frozen.cleaning}
        for number in frozen.cleaned:
            state = layered.loaded(number)
            if state is None or state.gone == cleaned[number]:
                self._cleaning.discard(number)
        for number in frozen.removed:
            file_stats.forget(number)
        self.mark, self.needed, self.facts = frozen.mark, frozen.needed, frozen.facts

    def _absorb_marks(self, frozen: FrozenState) -> None:
        """Update caches and counts: the layer's marks are in the index, older ones were moved."""
        layered, file_stats = self._layered, self._file_stats
        for number, seqs in frozen.moved:
            if seqs:
                # The commit contains the same counts.
                file_stats.count_dead(number, seqs)
        for number, pin in frozen.merged:
            if (state := layered.loaded(number)) is not None:
                layered.touch(state).stored -= {pin}
        for number, part in frozen.overlay.shards.items():
            if (state := layered.loaded(number)) is not None:
                layered.mark_cache.absorb(state, part)

    def _move_fronts(self) -> None:
        """Advance `gone`, the last seq of the prefix without rows, of some shards at a time."""
        layered, fronts = self._layered, self._reclaimer.fronts
        for number in sorted(fronts)[: limits.FRONTS_STEP]:
            fronts.discard(number)
            state = layered.numbered(number)
            if state is None or not layered.is_current(state):
                continue
            last = state.meta.last_seq
            front = layered.row_index.front(number, state.gone + 1, last)
            gone = min(front - 1, last)
            if gone < last and layered.row_index.at(number, front) is None:
                # The bounded step did not reach a location.
                fronts.add(number)
            if gone > state.gone:
                if gone // chunk.ROWS > state.gone // chunk.ROWS:
                    self._cleaning.add(number)
                layered.touch(state).gone = gone
