"""Emptying log generations and sealed files: what a pass is to do, and what it has done.

Planning and finishing run on the engine's thread and are short; the pass itself (`seal`) is bulk
work for a lane.

A home (a log generation, a sealed file) is given up in three steps: its rows are said to lie
elsewhere, that is committed, and only then the home is released or removed (F1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyroaring import BitMap64

from millrace import limits
from millrace.core.codec import decode_cell
from millrace.core.model import Kind, QueueSpec
from millrace.errors import Corrupt
from millrace.store.cells import Table
from millrace.store.dead_rows import (
    DEAD,
    ENDED,
    KEPT,
    ShardState,
)
from millrace.store.folding import Folding
from millrace.store.layered import Layered
from millrace.store.overlay import KINDS, Overlay, parts_of
from millrace.store.packing import Codec
from millrace.store.place import UNREADABLE, Place, decode_place, republished
from millrace.store.reading import Reading
from millrace.store.sealed_stats import Book
from millrace.store.sealplan import Home, SealPlan, SealResult, ShardNote
from millrace.store.tables import extent_low, extents_range, shard_of
from millrace.store.unreadable import HOME
from millrace.wal.record import Mark

Edits = dict[int, tuple[list[int], list[tuple[int, Place]]]]
"""Shard → first seqs whose places count no more, and new places by their first seqs."""


class Emptying:
    """Plans passes and takes in their results, one at a time."""

    def __init__(
        self,
        layered: Layered,
        book: Book,
        folding: Folding,
        reading: Reading,
        room: Callable[[], int],
    ) -> None:
        self._layered = layered
        self._room = room
        self._book = book
        self._folding = folding
        self._reading = reading
        self._plan: SealPlan | None = None
        self._unwritten: Overlay | None = None
        """The layer that the last result went to: the next pass needs it in the index."""
        self._looked = -1
        self._expected: dict[int, int] = {}
        """What the book said of the files that the plan may leave alone."""
        self.is_held = False
        """A resync is about to refer to places that a pass would empty."""
        self.needed = 0
        """The oldest generation in which rows lie; older ones are needed until that is durable."""
        self.fronts: set[int] = set()
        """Shards whose oldest rows may all be gone."""
        self._hollow: dict[int, bool] = {}
        """Generation → whether next to nothing lies in it; rows only ever leave one."""
        self.damaged: dict[int, Corrupt] = {}
        """Files with rows that cannot be read: they are left as they are while one is wanted."""
        self._doubted: list[int] = []
        """Those of them in which all unreadable rows may have ended."""

    def plan(
        self,
        mark: Mark | None,
        *,
        unsealed: int | None,
        failed: SealPlan | None,
        is_short: bool = False,
    ) -> SealPlan | None:
        """What to empty next: the oldest segments, if more than `unsealed` are full; else files.

        Of several homes only those are taken whose rows the disk has room for.

        Args:
            mark: what lies in generations before it is in the index.
            unsealed: below 0, every full segment is emptied; None leaves all of them alone.
            is_short: the room that is left is the index's. A segment that is emptied gives none
                back, so that next to nothing may be left of it.
        """
        if self._plan is not None and self._plan is failed:
            self._end()
        if self.is_busy or mark is None or self._unwritten in self._layered.layers:
            return None
        segments = self._full_segments(mark, unsealed) if unsealed is not None else []
        room = None
        if is_short and segments:
            segments = segments[:1]
            room = self._reading.log.record_bytes_max // limits.SEAL_SHORT_SHARE
        homes: list[Home] = [(False, home) for home in segments]
        rows: dict[int, int] = {}
        if not homes and self._book.changes != self._looked:
            suspects = self._some(self._book.suspects())
            rows = {number: self._book.rows_of(number) for number in suspects}
            homes = [(True, number) for number in suspects or self._small()]
        if not homes and self._folding.is_unreadable_doubted:
            self._folding.is_unreadable_doubted = False
            self._doubt()
        if not homes and self._doubted:
            # One at a time: where a row is still wanted, the pass fails, and others go on.
            homes = [(True, self._doubted.pop())]
        if not homes:
            # Nobody looks through the book again before something in it has changed.
            self._looked = self._book.changes
            return None
        extents = [extent for home in homes for extent in self._extents(home)]
        shards = {shard_of(low) for low, _ in extents}
        notes = {
            shard: self._note(state)
            for shard in sorted(shards)
            if (state := self._layered.numbered(shard)) is not None
        }
        self._folding.moved = {
            (shard, name, ordinal): first
            for shard in notes
            for part in parts_of(self._layered.layers, shard)
            for (name, ordinal), first in part.moved.items()
        }
        self._expected = {number: self._book.expected(number) for number in rows}
        self._plan = SealPlan(frozenset(homes), extents, notes, self._book.next_number, rows, room)
        return self._plan

    def _doubt(self) -> None:
        """Find where unreadable rows lie that may have ended: they are not read again, and others
        are copied, so that the damage goes."""
        for number in self.damaged.keys() - set(self._book.numbers()):
            del self.damaged[number]
        homes = [HOME, *sorted(self.damaged, reverse=True)]
        self._doubted = [home for home in homes if any(True for _ in self._extents((True, home)))]
        self._folding.has_unreadable = bool(self._doubted)

    def note_damage(self, number: int, error: Corrupt) -> None:
        """A file was found damaged."""
        self.damaged[number] = error
        self._folding.has_unreadable = True

    def _full_segments(self, mark: Mark, unsealed: int) -> list[int]:
        log = self._reading.log
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

    def is_hollow(self, generation: int, mark: Mark | None) -> bool:
        """Whether next to nothing lies in a generation: known once it is in the index."""
        if mark is None or generation >= mark.generation:
            return False
        found = self._hollow.get(generation)
        if found is None:
            self._hollow = {one: is_so for one, is_so in self._hollow.items() if one >= self.needed}
            found = self._hollow[generation] = self._has_little(generation)
        return found

    def _has_little(self, generation: int) -> bool:
        size, most = 0, self._reading.log.record_bytes_max // limits.HOLLOW_SHARE
        for ranges, (low, high) in enumerate(self._extents((False, generation)), 1):
            cells = self._layered.cells.range(
                Table.BLOCKS, low, high + b"\0", limit=limits.HOLLOW_PLACES_MAX + 1
            )
            size += sum(decode_place(value).length for _, value in cells)
            if max(ranges, len(cells)) > limits.HOLLOW_PLACES_MAX or size > most:
                return False
        return True

    def _some(self, numbers: list[int]) -> list[int]:
        """As many of the files as make about one new file, and as there is room for."""
        taken: list[int] = []
        size = 0
        most = min(limits.SEALED_FILE_BYTES, self._room()) if numbers else 0
        for number in numbers:
            if number in self.damaged:
                continue
            size += self._book.size_of(number)
            if taken and size > most:
                break
            taken.append(number)
        return taken

    def _small(self) -> list[int]:
        """Small files that become one; one alone would be written anew again and again."""
        found = self._some(self._book.small())
        return found if len(found) > 1 else []

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
        """The numbers of shards with rows in a home → the shard, and the ranges of block keys."""
        found: dict[int, tuple[int, list[tuple[bytes, bytes]]]] = {}
        for low, high in self._extents(home):
            state = self._layered.numbered(shard_of(low))
            if state is not None:
                found.setdefault(state.id, (state.shard, []))[1].append((low, high))
        return found

    def _note(self, state: ShardState) -> ShardNote:
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
        return ShardNote(state.shard, state.meta.keyed, floor, stored, dead, ended, codec)

    def _codec(self, number: int) -> Codec | None:
        """How the queue wants its rows compressed."""
        value = self._layered.cell_of(number, KINDS[Kind.SPEC])
        spec = decode_cell(Kind.SPEC, value) if value is not None else None
        return (spec.compressed or None) if isinstance(spec, QueueSpec) else None

    @property
    def is_busy(self) -> bool:
        """Whether no pass may begin."""
        return self._plan is not None or self.is_held

    def wait(self) -> None:
        """Plan nothing until what was said of places so far is in the index."""
        self._unwritten = self._layered.new

    def _end(self) -> None:
        """No pass is under way any more."""
        self._plan = self._folding.moved = None

    def finish(self, result: SealResult) -> None:
        layered, book = self._layered, self._book
        moved = self._folding.moved or {}
        self._end()
        homes = {home for home in result.plan.homes if not (home[0] and home[1] in result.spared)}
        # It is no file that could be removed, and what is listed of it is little.
        homes.discard((True, HOME))
        for number, dead in result.spared.items():
            book.correct(number, dead - self._expected[number])
        for number, facts in result.files.items():
            book.add(number, facts)
        edits: Edits = {}
        for found in result.replaced:
            removed, put = edits.setdefault(found.shard, ([], []))
            removed += found.firsts
            if found.place is not None:
                put.append((found.first, found.place))
        self._restage(result, moved, edits)
        for shard, (removed, put) in edits.items():
            state = layered.numbered(shard)
            if state is not None:
                layered.touch(state).part.replace(removed, put)
                state.part.key_drops += result.key_drops.get(shard, [])
                self.fronts.add(shard)
        self._count(result, edits)
        self.wait()
        homes -= self._left_behind(moved)
        layered.new.homes += sorted(homes)
        self._reading.forget(homes)
        for sealed, home in sorted(homes):
            if sealed:
                book.drop(home)
                self.damaged.pop(home, None)
        full = sorted(home for sealed, home in result.plan.homes if not sealed)
        for home in full:
            if (False, home) not in homes:
                break
            self.needed = max(self.needed, home + 1)

    def pass_over(self, mark: Mark) -> None:
        """Need no more the oldest generations before `mark` in which nothing ever lay.

        Every open begins a generation: on a full disk they would use up the reserve.
        """
        if self.is_busy:
            return
        for segment in self._reading.log.segments():
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
        """Staged rows lie elsewhere now; some were published while they were copied."""
        layered = self._layered
        twice = {place for found in result.replaced for place in map(_spot, found.origins)}
        for found in result.restaged:
            state = layered.numbered(found.shard)
            if state is None or _spot(found.origin) in twice:
                continue
            first = moved.get((found.shard, found.stage, found.ordinal))
            if first is not None:
                now = layered.blocks.at(found.shard, first)
                if now is not None and _spot(now[1]) == _spot(found.origin):
                    _, put = edits.setdefault(found.shard, ([], []))
                    put.append((first, republished(found.place, now[1].time_ms)))
            elif found.ordinal in dict(layered.blocks.staged(found.shard, found.stage)):
                layered.touch(state).part.stage(found.stage, found.ordinal, found.place)

    def _count(self, result: SealResult, edits: Edits) -> None:
        """Count the rows of the new files that died while they were copied (F2)."""
        dead = dict.fromkeys(result.files, 0)
        for shard, (_, put) in edits.items():
            state = self._layered.numbered(shard)
            if not put:
                continue
            low, high = min(put)[0], max(first + place.span for first, place in put)
            gone = self._layered.marks.reclaimable(state, low, high) if state else BitMap64()
            for first, place in put:
                if place.flags & UNREADABLE:
                    self._folding.has_unreadable = True
                    continue
                count = gone.range_cardinality(first, first + place.span)
                dead[place.home] += count - (place.span - place.count) if state else place.count
        for number, count in dead.items():
            self._book.correct(number, count - self._book.expected(number))

    def _left_behind(self, moved: dict[tuple[int, str, int], int]) -> set[Home]:
        """Homes in which rows still lie that were published at a moment when the pass was blind."""
        found: set[Home] = set()
        for (shard, _, _), first in moved.items():
            now = self._layered.blocks.at(shard, first)
            if now is not None:
                found.add((now[1].sealed, now[1].home))
        return found


def _spot(place: Place) -> tuple[bool, int, int]:
    return place.sealed, place.home, place.offset
