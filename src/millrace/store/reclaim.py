"""Space reclamation: plans sealing passes over log generations and sealed files.

Planning and finishing run on the engine's thread and are short; the pass itself (`seal`) is bulk
work for an I/O thread.

A home (a log generation or a sealed file) is reclaimed in three steps: its rows get new locations,
these are committed, and only then the home is recycled or removed (F1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import Kind
from millrace.core.format.codec import decode_cell
from millrace.core.spec import QueueSpec
from millrace.errors import Corrupt
from millrace.store.cells import Table
from millrace.store.compression import Codec
from millrace.store.dead_rows import (
    DEAD,
    ENDED,
    KEPT,
    ShardState,
)
from millrace.store.folding import Folding
from millrace.store.index_codec import extent_low, extents_range, shard_of
from millrace.store.layered_index import LayeredIndex
from millrace.store.overlay import KINDS, Overlay, parts_of
from millrace.store.row_location import (
    UNREADABLE,
    RowLocation,
    decode_location,
    republished,
)
from millrace.store.row_reader import RowReader
from millrace.store.seal import (
    Home,
    SealPlan,
    SealResult,
    ShardFacts,
)
from millrace.store.sealed_stats import SealedFileStats
from millrace.store.unreadable import HOME
from millrace.wal.record import LogMark

Edits = dict[int, tuple[list[int], list[tuple[int, RowLocation]]]]
"""Shard → first seqs whose locations are removed, and new locations by their first seqs."""


class Reclaimer:
    """Plans sealing passes and applies their results, one at a time."""

    def __init__(
        self,
        layered: LayeredIndex,
        file_stats: SealedFileStats,
        folding: Folding,
        row_reader: RowReader,
        room: Callable[[], int],
    ) -> None:
        self._layered = layered
        self._room = room
        self._file_stats = file_stats
        self._folding = folding
        self._row_reader = row_reader
        self._plan: SealPlan | None = None
        self._unwritten: Overlay | None = None
        """The layer with the last result: the next pass waits until it is in the index."""
        self._looked = -1
        self._expected: dict[int, int] = {}
        """Expected dead rows of the files that the pass may spare."""
        self.is_held = False
        """True while a resync refers to locations that a pass would empty."""
        self.needed = 0
        """The oldest generation with rows; older ones are needed until that is durable."""
        self.fronts: set[int] = set()
        """Shards whose oldest locations may all be gone."""
        self._hollow: dict[int, bool] = {}
        """Generation → True if it is almost empty; rows only ever leave a generation."""
        self.damaged: dict[int, Corrupt] = {}
        """Files with unreadable rows: they are not touched while such a row is live."""
        self._doubted: list[int] = []
        """Damaged files in which all unreadable rows may have ended."""

    def plan(
        self,
        mark: LogMark | None,
        *,
        unsealed: int | None,
        failed: SealPlan | None,
        is_short: bool = False,
    ) -> SealPlan | None:
        """Plan the next pass: the oldest segments, if more than `unsealed` are full; else files.

        It takes as many homes as the disk has room for.

        Args:
            mark: the index contains all locations in older generations.
            unsealed: below 0, every full segment is sealed; None seals no segment.
            is_short: the remaining space is reserved for the index. Sealing a segment gives no
                space back, so that only an almost empty one may be sealed.
        """
        if self._plan is not None and self._plan is failed:
            self._end()
        if self.is_busy or mark is None or self._unwritten in self._layered.layers:
            return None
        segments = self._full_segments(mark, unsealed) if unsealed is not None else []
        room = None
        if is_short and segments:
            segments = segments[:1]
            room = self._row_reader.log.record_bytes_max // limits.SEAL_SHORT_SHARE
        homes: list[Home] = [(False, home) for home in segments]
        rows: dict[int, int] = {}
        if not homes and self._file_stats.changes != self._looked:
            suspects = self._some(self._file_stats.suspects())
            rows = {number: self._file_stats.rows_of(number) for number in suspects}
            homes = [(True, number) for number in suspects or self._small()]
        if not homes and self._folding.is_unreadable_doubted:
            self._folding.is_unreadable_doubted = False
            self._doubt()
        if not homes and self._doubted:
            # One file per pass: if an unreadable row is still live, only this pass fails.
            homes = [(True, self._doubted.pop())]
        if not homes:
            # Do not search again before the statistics have changed.
            self._looked = self._file_stats.changes
            return None
        extents = [extent for home in homes for extent in self._extents(home)]
        shards = {shard_of(low) for low, _ in extents}
        notes = {
            shard: self._shard_facts(state)
            for shard in sorted(shards)
            if (state := self._layered.numbered(shard)) is not None
        }
        self._folding.moved = {
            (shard, name, ordinal): first
            for shard in notes
            for part in parts_of(self._layered.layers, shard)
            for (name, ordinal), first in part.moved.items()
        }
        self._expected = {number: self._file_stats.expected(number) for number in rows}
        self._plan = SealPlan(
            frozenset(homes), extents, notes, self._file_stats.next_number, rows, room
        )
        return self._plan

    def _doubt(self) -> None:
        """Find homes with unreadable rows that may have ended.

        A pass over such a home skips these rows and copies the others, which removes the damage.
        """
        for number in self.damaged.keys() - set(self._file_stats.numbers()):
            del self.damaged[number]
        homes = [HOME, *sorted(self.damaged, reverse=True)]
        self._doubted = [home for home in homes if any(True for _ in self._extents((True, home)))]
        self._folding.has_unreadable = bool(self._doubted)

    def note_damage(self, number: int, error: Corrupt) -> None:
        """Record that a file is damaged."""
        self.damaged[number] = error
        self._folding.has_unreadable = True

    def _full_segments(self, mark: LogMark, unsealed: int) -> list[int]:
        log = self._row_reader.log
        full = [
            segment.generation
            for segment in log.segments()
            if self.needed <= segment.generation < mark.generation
        ]
        if len(full) <= max(unsealed, 0):
            return []
        together = max(1, limits.SEALED_FILE_BYTES // (log.record_bytes_max + limits.SECTOR_BYTES))
        left = len(full) // 2 if unsealed >= 0 else 0
        room = self._room() // (log.record_bytes_max + limits.SECTOR_BYTES)
        return full[: min(together, len(full) - left, max(1, room))]

    def is_hollow(self, generation: int, mark: LogMark | None) -> bool:
        """Return True if a generation is almost empty; False until it is in the index."""
        if mark is None or generation >= mark.generation:
            return False
        is_known_hollow = self._hollow.get(generation)
        if is_known_hollow is None:
            self._hollow = {
                older: is_so for older, is_so in self._hollow.items() if older >= self.needed
            }
            is_known_hollow = self._hollow[generation] = self._has_little(generation)
        return is_known_hollow

    def _has_little(self, generation: int) -> bool:
        size, limit = 0, self._row_reader.log.record_bytes_max // limits.HOLLOW_SHARE
        for ranges, (low, high) in enumerate(self._extents((False, generation)), 1):
            cells = self._layered.cells.range(
                Table.BLOCKS, low, high + b"\0", limit=limits.HOLLOW_PLACES_MAX + 1
            )
            size += sum(decode_location(value).length for _, value in cells)
            if max(ranges, len(cells)) > limits.HOLLOW_PLACES_MAX or size > limit:
                return False
        return True

    def _some(self, numbers: list[int]) -> list[int]:
        """Return as many of the files as fill about one new file, and as the disk has room for."""
        taken: list[int] = []
        size = 0
        limit = min(limits.SEALED_FILE_BYTES, self._room()) if numbers else 0
        for number in numbers:
            if number in self.damaged:
                continue
            size += self._file_stats.size_of(number)
            if taken and size > limit:
                break
            taken.append(number)
        return taken

    def _small(self) -> list[int]:
        """Return small files to merge, at least two: a single one would be rewritten repeatedly."""
        files = self._some(self._file_stats.small())
        return files if len(files) > 1 else []

    def _extents(self, home: Home) -> Iterable[tuple[bytes, bytes]]:
        low, high = extents_range(home[1], sealed=home[0])
        while True:
            cells = self._layered.cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
            for key, value in cells:
                yield extent_low(key), value
            if len(cells) < limits.PLACES_STEP:
                return
            low = cells[-1][0] + b"\0"

    def shards_in(self, home: Home) -> dict[int, tuple[int, list[tuple[bytes, bytes]]]]:
        """Return the numbers of shards with rows in a home → shard and ranges of block keys."""
        ranges: dict[int, tuple[int, list[tuple[bytes, bytes]]]] = {}
        for low, high in self._extents(home):
            state = self._layered.numbered(shard_of(low))
            if state is not None:
                ranges.setdefault(state.id, (state.shard, []))[1].append((low, high))
        return ranges

    def _shard_facts(self, state: ShardState) -> ShardFacts:
        pins = state.pins_of([0])
        dead, ended = BitMap64(), BitMap64()
        for part in parts_of(self._layered.layers, state.id):
            for (pin, mark), seqs in part.marks.items():
                if mark == DEAD and pin in pins:
                    dead |= seqs
                elif mark in (ENDED, KEPT):
                    ended |= seqs
        floor = max(state.meta.intervals[0].floor, state.gone)
        stored = [pin for pin in pins if pin == 0 or pin in state.stored]
        codec = self._codec(state.id)
        return ShardFacts(state.shard, state.meta.keyed, floor, stored, dead, ended, codec)

    def _codec(self, number: int) -> Codec | None:
        """Return the compression that the queue's settings ask for."""
        value = self._layered.cell_of(number, KINDS[Kind.SPEC])
        spec = decode_cell(Kind.SPEC, value) if value is not None else None
        return (spec.compressed or None) if isinstance(spec, QueueSpec) else None

    @property
    def is_busy(self) -> bool:
        """True if no pass may begin."""
        return self._plan is not None or self.is_held

    def hold_until_checkpoint(self) -> None:
        """Plan no pass until the present layer is in the index."""
        self._unwritten = self._layered.new

    def _end(self) -> None:
        """Reset the state of the pass."""
        self._plan = self._folding.moved = None

    def finish(self, result: SealResult) -> None:
        layered, file_stats = self._layered, self._file_stats
        moved = self._folding.moved or {}
        self._end()
        homes = {home for home in result.plan.homes if not (home[0] and home[1] in result.spared)}
        # The quarantine is not a file that could be removed, and has few extents.
        homes.discard((True, HOME))
        for number, dead in result.spared.items():
            file_stats.correct(number, dead - self._expected[number])
        for number, facts in result.files.items():
            file_stats.add(number, facts)
        edits: Edits = {}
        for replaced in result.replaced:
            removed, put = edits.setdefault(replaced.shard, ([], []))
            removed += replaced.firsts
            if replaced.location is not None:
                put.append((replaced.first, replaced.location))
        self._restage(result, moved, edits)
        for shard, (removed, put) in edits.items():
            state = layered.numbered(shard)
            if state is not None:
                layered.touch(state).part.replace(removed, put)
                state.part.key_drops += result.key_drops.get(shard, [])
                self.fronts.add(shard)
        self._count(result, edits)
        self.hold_until_checkpoint()
        homes -= self._left_behind(moved)
        layered.new.homes += sorted(homes)
        self._row_reader.forget(homes)
        for sealed, home in sorted(homes):
            if sealed:
                file_stats.drop(home)
                self.damaged.pop(home, None)
        full = sorted(home for sealed, home in result.plan.homes if not sealed)
        for home in full:
            if (False, home) not in homes:
                break
            self.needed = max(self.needed, home + 1)

    def skip_empty_generations(self, mark: LogMark) -> None:
        """Advance `needed` over the oldest generations before `mark` without rows.

        Every open begins a generation: on a full disk they would use up the reserve.
        """
        if self.is_busy:
            return
        for segment in self._row_reader.log.segments():
            if segment.generation >= mark.generation:
                return
            if segment.generation >= self.needed:
                if self._holds_rows(segment.generation):
                    return
                self.needed = segment.generation + 1

    def _holds_rows(self, generation: int) -> bool:
        low, high = extents_range(generation, sealed=False)
        return bool(self._layered.cells.range(Table.BLOCKS, low, high, limit=1)) or any(
            home == generation and not sealed
            for layer in self._layered.layers
            for part in layer.shards.values()
            for sealed, home, _ in part.extents
        )

    def _restage(
        self,
        result: SealResult,
        moved: dict[tuple[int, str, int], int],
        edits: Edits,
    ) -> None:
        """Apply the new locations of staged rows; some were published during the pass."""
        layered = self._layered
        twice = {location for found in result.replaced for location in map(_spot, found.origins)}
        for found in result.restaged:
            state = layered.numbered(found.shard)
            if state is None or _spot(found.origin) in twice:
                continue
            first = moved.get((found.shard, found.stage, found.ordinal))
            if first is not None:
                now = layered.row_index.at(found.shard, first)
                if now is not None and _spot(now[1]) == _spot(found.origin):
                    _, put = edits.setdefault(found.shard, ([], []))
                    put.append((first, republished(found.location, now[1].time_ms)))
            elif found.ordinal in dict(layered.row_index.staged(found.shard, found.stage)):
                layered.touch(state).part.stage(found.stage, found.ordinal, found.location)

    def _count(self, result: SealResult, edits: Edits) -> None:
        """Count the rows of the new files that died during the pass (F2)."""
        dead = dict.fromkeys(result.files, 0)
        for shard, (_, put) in edits.items():
            state = self._layered.numbered(shard)
            if not put:
                continue
            low, high = min(put)[0], max(first + location.span for first, location in put)
            gone = self._layered.marks.reclaimable(state, low, high) if state else BitMap64()
            for first, location in put:
                if location.flags & UNREADABLE:
                    self._folding.has_unreadable = True
                    continue
                count = gone.range_cardinality(first, first + location.span)
                dead[location.home] += (
                    count - (location.span - location.count) if state else location.count
                )
        for number, count in dead.items():
            self._file_stats.correct(number, count - self._file_stats.expected(number))

    def _left_behind(self, moved: dict[tuple[int, str, int], int]) -> set[Home]:
        """Return homes with rows whose publication the pass has missed."""
        homes: set[Home] = set()
        for (shard, _, _), first in moved.items():
            now = self._layered.row_index.at(shard, first)
            if now is not None:
                homes.add((now[1].sealed, now[1].home))
        return homes


def _spot(location: RowLocation) -> tuple[bool, int, int]:
    return location.sealed, location.home, location.offset
