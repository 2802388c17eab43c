"""A checkpoint: everything that was folded since the last one, as one commit of the index.

Rule 1: what is written is a function of what was frozen and of the index as it is, so that a
checkpoint that found no room is simply written again.
Rule 2: the replay mark, the applied index of every group and the facts of this node are part of the
same commit (C1, L6).
Rule 3: what may be large and can wait (marks of merged intervals, dropped shards, marks of rows
that are gone) is done in bounded steps, some with every checkpoint (C3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from msgspec import structs
from pyroaring import BitMap, BitMap64

from millrace import limits
from millrace.core.model import GroupId, Kind
from millrace.errors import Fatal
from millrace.store import chunk
from millrace.store.cells import Cells, Table
from millrace.store.dead_rows import DEAD, MARKS
from millrace.store.overlay import Overlay, ShardOverlay
from millrace.store.place import Place, decode_place, encode_place
from millrace.store.tables import (
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
from millrace.wal.record import Mark

MARK = struct.Struct(">QQIQ")
GROUP = struct.Struct(">QQ")
"""Applied index and epoch of a group."""

_SMALL = frozenset((Kind.TURN, Kind.GROUP, Kind.RING, Kind.BUCKET))
"""Kinds of which there may be very many, and whose cells have one part whatever they hold."""

_ONE_PART = b"\0\1"

Pairs = list[tuple[bytes, bytes | None]]


class Frozen:
    """What one checkpoint is made of; nobody changes it any more."""

    def __init__(
        self,
        overlay: Overlay,
        mark: Mark,
        facts: dict[GroupId, bytes],
        groups: dict[GroupId, tuple[int, int]],
        shards: dict[int, StoredShard],
    ) -> None:
        self.overlay = overlay
        self.mark = mark
        self.facts = facts
        self.groups = groups
        self.shards = shards
        """Every shard that was touched, by the number under which the index holds it."""
        self.metas: dict[int, StoredShard] = {}
        """The same by shard, without copies that are not complete."""
        self.building: list[int] = []
        self.needed = 0
        self.next_file = 0
        self.merging: list[tuple[int, int, int]] = []
        """(Shard, pin, interval that it was merged into): marks to be moved."""
        self.cleaning: list[tuple[int, int, tuple[int, ...]]] = []
        """(Shard, gone, pins): marks of rows up to `gone` are not needed any more."""
        self.reclaiming: list[int] = []
        """Shards that ended earlier, and of which the index still holds something."""
        self.removable: list[int] = []
        """Sealed files that nothing refers to once this is committed."""
        self.spans: FileSpans = {}
        """The files of the shards whose marks are to be moved to the first interval."""
        # What the writing found out, for `thaw`.
        self.merged: list[tuple[int, int]] = []
        self.moved: list[tuple[int, BitMap64]] = []
        self.cleaned: list[int] = []
        self.reclaimed: list[int] = []
        self.removed: list[int] = []


class Checkpoint:
    """Makes the writes of one checkpoint."""

    def __init__(self, cells: Cells, frozen: Frozen) -> None:
        self._cells = cells
        self._frozen = frozen
        # An earlier attempt that found no room may have left something here.
        frozen.merged, frozen.moved, frozen.cleaned, frozen.reclaimed = [], [], [], []
        self._writes: dict[Table, dict[bytes, bytes | None]] = {table: {} for table in Table}
        self._left = limits.RECLAIM_STEP

    def writes(self) -> dict[Table, dict[bytes, bytes | None]]:
        frozen, overlay = self._frozen, self._frozen.overlay
        self._put_parts(
            Table.META,
            [(number_bytes(shard), encode_shard(known)) for shard, known in frozen.metas.items()],
        )
        cells: Pairs = []
        for shard, part in overlay.shards.items():
            prefix = number_bytes(shard)
            cells.extend(
                (prefix + key, value) for key, value in part.cells.items() if key[0] not in _SMALL
            )
            self._put_small(prefix, part)
            self._put_keys(prefix, part)
            self._put_places(shard, part)
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

    # --- What was folded -------------------------------------------------------------------------

    def _put_parts(self, table: Table, pairs: Pairs) -> None:
        """Put values that may need several parts; parts of longer ones before them go."""
        writes = self._writes[table]
        before = self._cells.get(table, [first_part(key) for key, _ in pairs])
        for (key, value), old in zip(pairs, before, strict=True):
            now = parts(key, value) if value is not None else []
            writes.update(now)
            writes.update(dict.fromkeys(part_keys(key, len(now), part_count(old))))

    def _put_small(self, prefix: bytes, part: ShardOverlay) -> None:
        """Put values that have one part, as what they replace: nothing has to be looked up."""
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
                # Another revision may have come since: its entry stays.
                if value == number_bytes(seq):
                    writes[prefix + key] = None
        writes.update({prefix + key: number_bytes(seq) for key, seq in part.keys.items()})

    def _put_places(self, shard: int, part: ShardOverlay) -> None:
        writes = self._writes[Table.BLOCKS]
        _, places, gone = part.rows
        for first in gone:
            writes[block_key(shard, first)] = None
        for first, place in places.items():
            writes[block_key(shard, first)] = encode_place(place)
        for (stage, ordinal), staged in part.staged.items():
            key = stage_key(shard, stage, ordinal)
            writes[key] = None if staged is None else encode_place(staged)
        for (sealed, home, name), (low, high) in part.extents.items():
            if name is None:
                ends = block_key(shard, low), block_key(shard, high)
            else:
                ends = stage_key(shard, name, low), stage_key(shard, name, high)
            writes[extent_key(home, ends[0], sealed=sealed)] = ends[1]

    # --- Marks -----------------------------------------------------------------------------------

    def _put_marks(self) -> None:
        """Add the new marks to those of their chunks, under the interval that they belong to."""
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
        """Move marks of merged intervals to where they belong, as many as one step may."""
        frozen, writes = self._frozen, self._writes[Table.DEATHS]
        for shard, pin, into in frozen.merging:
            if not self._left:
                break
            low, high = deaths_key(shard, pin, 0, 0), deaths_key(shard, pin + 1, 0, 0)
            found = self._take(Table.DEATHS, low, high)
            dead: list[tuple[int, BitMap]] = []
            for key, value in found:
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
        """Nobody wants the rows any more whose marks were moved to the first interval."""
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

    # --- What ended ------------------------------------------------------------------------------

    def _reclaim(self) -> None:
        """Remove what is left of dropped shards."""
        frozen = self._frozen
        for shard in frozen.overlay.ended:
            meta = self._writes[Table.META]
            low, high = shard_range(shard)
            found = self._cells.range(Table.META, low, high, limit=limits.RECLAIM_STEP)
            meta.update(dict.fromkeys(key for key, _ in found))
        for shard in frozen.reclaiming:
            ranges: Iterable[tuple[Table, tuple[bytes, bytes]]] = (
                (Table.CELLS, shard_range(shard)),
                (Table.KEYS, shard_range(shard)),
                (Table.BLOCKS, shard_range(shard)),
                (Table.BLOCKS, stages_range(shard)),
                (Table.DEATHS, shard_range(shard)),
            )
            for table, (low, high) in ranges:
                found = self._take(table, low, high)
                self._writes[table].update(dict.fromkeys(key for key, _ in found))
            if self._left:
                self._writes[Table.NODE][dropped_key(shard)] = None
                self._writes[Table.NODE][copy_key(shard)] = None
                frozen.reclaimed.append(shard)

    def _take(self, table: Table, low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
        """Cells of the range, as many as this step has left; with none left, there may be more."""
        if not self._left:
            return []
        found = self._cells.range(table, low, high, limit=self._left)
        self._left -= len(found)
        return found

    # --- A last look -----------------------------------------------------------------------------

    def check_homes(self) -> None:
        """Make sure that nothing refers to what will be released after this commit.

        Raises:
            Fatal: something does; nothing was committed.
        """
        frozen = self._frozen
        homes = set(frozen.overlay.homes)
        # What the index still holds of shards that ended, nobody can ask for.
        ended = {*frozen.overlay.dropped, *frozen.reclaiming} - {*frozen.building}
        writes = self._writes[Table.BLOCKS]
        for sealed, home in homes:
            low, high = extents_range(home, sealed=sealed)
            for key, last in self._all(low, high):
                for block, value in self._all(extent_low(key), last + b"\0"):
                    stays = writes.get(block, value)
                    if stays is not None and shard_of(block) not in ended:
                        self._check_place(block, decode_place(stays), (sealed, home))
        for part in frozen.overlay.shards.values():
            for first, place in part.rows[1].items():
                if (place.sealed, place.home) in homes:
                    self._check_place(number_bytes(first), place, (place.sealed, place.home))

    def _check_place(self, key: bytes, place: Place, home: tuple[bool, int]) -> None:
        if (place.sealed, place.home) == home:
            where = "sealed file" if place.sealed else "log generation"
            raise Fatal(
                f"{where} {place.home} would be released, but the rows under {key.hex()} lie in it"
            )

    def _all(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            found = self._cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
            yield from found
            if len(found) < limits.PLACES_STEP:
                return
            low = found[-1][0] + b"\0"


def _roots(known: StoredShard) -> dict[int, int]:
    """Merged pin → the interval that it belongs to now."""
    return {pin: into for into, pins in known.sources.items() for pin in pins}
