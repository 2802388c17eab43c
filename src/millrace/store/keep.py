"""Keeping the store: checkpoints and sealing passes, as far as they touch its state.

Rule 1: freezing, thawing, planning and finishing run on the engine's thread and are short; what
lies between them is bulk work for a lane.
Rule 2: a home (a log generation, a sealed file) is given up in three steps: its rows are said to
lie elsewhere, that is committed, and only then the home is released or removed (F1).
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap64

from millrace import limits
from millrace.core.model import GroupId
from millrace.errors import Fatal
from millrace.log.files import Disk
from millrace.log.record import Mark
from millrace.store import chunk
from millrace.store.book import Book
from millrace.store.cells import Table
from millrace.store.checkpoint import Checkpoint, Frozen
from millrace.store.folding import Folding
from millrace.store.layered import Layered
from millrace.store.ledger import DEAD, ENDED, KEPT, ShardState
from millrace.store.overlay import Overlay, parts_of
from millrace.store.place import Place, republished
from millrace.store.reading import Reading
from millrace.store.sealed import FOLDER, file_name
from millrace.store.sealplan import Home, SealPlan, SealResult, ShardNote
from millrace.store.tables import extent_low, extents_range, shard_of


class Keeping:
    """What is durable of the store, and how that moves on."""

    def __init__(
        self, disk: Disk, layered: Layered, book: Book, folding: Folding, reading: Reading
    ) -> None:
        self._disk = disk
        self._layered = layered
        self._book = book
        self._folding = folding
        self._reading = reading
        self.mark: Mark | None = None
        """Where replay would begin now."""
        self.needed = 0
        """The oldest generation that the durable index refers to."""
        self.facts: dict[GroupId, bytes] = {}
        self._needed_next = 0
        self._again: Frozen | None = None
        self._plan: SealPlan | None = None
        self._finished: Overlay | None = None
        """The layer that the last pass was finished in: the next one needs it in the index."""
        self._fronts: set[int] = set()
        """Shards whose oldest rows may all be gone."""
        self._cleaning: set[int] = set()
        """Shards with marks of rows that are gone."""

    def begin(self, mark: Mark | None, needed: int, facts: dict[GroupId, bytes]) -> None:
        """What the index said when it was opened."""
        self.mark = mark
        self.needed = self._needed_next = needed
        self.facts = facts

    # --- Checkpoints -----------------------------------------------------------------------------

    def freeze(self, mark: Mark, facts: dict[GroupId, bytes]) -> Frozen:
        layered = self._layered
        if self._again is not None:
            again, self._again = self._again, None
            return again
        if len(layered.layers) > 1:
            raise Fatal("a checkpoint is under way")
        self._move_fronts()
        overlay = layered.new
        merging = self._note_pins(overlay)
        frozen = Frozen(
            overlay,
            mark,
            dict(facts),
            dict(layered.groups),
            {shard: layered.must(shard).to_store() for shard in overlay.shards},
        )
        frozen.needed = self._needed_next
        frozen.next_file = self._book.next_number
        frozen.merging = merging
        frozen.cleaning = [
            (shard, state.gone, tuple({0, *state.stored}))
            for shard in sorted(self._cleaning)
            if (state := layered.state(shard)) is not None
        ]
        frozen.reclaiming = sorted(layered.reclaiming)
        frozen.removable = sorted(self._book.removing)
        layered.layers = (Overlay(), overlay)
        return frozen

    def _note_pins(self, overlay: Overlay) -> list[tuple[int, int, int]]:
        """Note under which pins there will be marks, and find those that are to be moved."""
        layered = self._layered
        for shard, part in overlay.shards.items():
            if part.marks:
                touched = layered.must(shard)
                roots = touched.roots()
                touched.stored |= {roots.get(pin, pin) for pin, _ in part.marks}
        moving = [
            (shard, pin, into)
            for shard in sorted(layered.marks.merging)
            if (state := layered.state(shard)) is not None
            for into, pins in state.sources.items()
            for pin in pins
            if pin in state.stored
        ]
        for shard, _, into in moving:
            # They will lie there as soon as this is written, though that pin may go meanwhile.
            layered.touch(layered.must(shard)).stored |= {into}
        return moving

    def refreeze(self, frozen: Frozen) -> None:
        """It found no room: the next checkpoint is this one again."""
        self._again = frozen

    def write(self, frozen: Frozen) -> None:
        cells = self._layered.cells
        checkpoint = Checkpoint(cells, frozen)
        writes = checkpoint.writes()
        checkpoint.check_homes()
        cells.commit(writes)
        removed = False
        for number in frozen.removable:
            self._reading.files.forget(number)
            if self._disk.exists(file_name(number)):
                self._disk.remove(file_name(number))
                removed = True
        if removed:
            self._disk.sync_folder(FOLDER)

    def thaw(self, frozen: Frozen) -> None:
        layered, book = self._layered, self._book
        layered.reclaiming |= frozen.overlay.dropped
        layered.reclaiming -= set(frozen.reclaimed)
        layered.layers = (layered.new,)
        for shard in frozen.overlay.dropped:
            book.count_dropped(shard)
        if frozen.overlay.dropped or any(
            place is None
            for part in frozen.overlay.shards.values()
            for place in part.staged.values()
        ):
            book.doubt()
        for shard, seqs in frozen.moved:
            if seqs:
                book.count_dead(shard, seqs)
        for shard, pin in frozen.merged:
            if (state := layered.loaded(shard)) is not None:
                layered.touch(state).stored -= {pin}
        for shard, part in frozen.overlay.shards.items():
            if (state := layered.loaded(shard)) is not None:
                layered.known.absorb(state, part)
                roots = state.roots()
                for (pin, mark), seqs in part.marks.items():
                    if mark == DEAD and roots.get(pin, pin) == 0 and seqs:
                        book.count_dead(shard, seqs)
                book.count_floor(shard, state.meta.intervals[0].floor)
        for shard in list(layered.marks.merging):
            state = layered.loaded(shard)
            if state is None or not state.forget_merged(layered.new):
                layered.marks.merging.discard(shard)
        cleaned = {shard: gone for shard, gone, _ in frozen.cleaning}
        for shard in frozen.cleaned:
            state = layered.loaded(shard)
            if state is None or state.gone == cleaned[shard]:
                self._cleaning.discard(shard)
        for number in frozen.removable:
            book.forget(number)
        self.mark, self.needed, self.facts = frozen.mark, frozen.needed, frozen.facts

    def _move_fronts(self) -> None:
        """Learn up to which seq shards have nothing left, some at a time."""
        layered = self._layered
        for shard in sorted(self._fronts)[: limits.FRONTS_STEP]:
            self._fronts.discard(shard)
            state = layered.state(shard)
            if state is None:
                continue
            last = state.meta.last_seq
            found = layered.blocks.after(shard, state.gone + 1, last)
            gone = found[0] - 1 if found is not None else last
            if gone > state.gone:
                if gone // chunk.ROWS > state.gone // chunk.ROWS:
                    self._cleaning.add(shard)
                layered.touch(state).gone = gone

    # --- Sealing ---------------------------------------------------------------------------------

    def plan(self, *, unsealed: int, failed: SealPlan | None) -> SealPlan | None:
        """What to empty next: the oldest segments, if more than `unsealed` are full; else files."""
        if self._plan is not None and self._plan is failed:
            self.abandon()
        if self._plan is not None or self.mark is None or self._finished in self._layered.layers:
            return None
        homes: list[Home] = [(False, home) for home in self._full_segments(unsealed)]
        homes = homes or [(True, number) for number in self._sparse_files()]
        if not homes:
            return None
        extents = [extent for home in homes for extent in self._extents(home)]
        shards = {shard_of(low) for low, _ in extents}
        notes = {
            shard: self._note(state)
            for shard in sorted(shards)
            if (state := self._layered.state(shard)) is not None
        }
        self._folding.moved = {
            (shard, name, ordinal): first
            for shard in notes
            for part in parts_of(self._layered.layers, shard)
            for (name, ordinal), first in part.moved.items()
        }
        rows = {home: self._book.rows_of(home) for sealed, home in homes if sealed}
        self._plan = SealPlan(frozenset(homes), extents, notes, self._book.next_number, rows)
        return self._plan

    def _full_segments(self, unsealed: int) -> list[int]:
        assert self.mark is not None
        log = self._reading.log
        full = [
            segment.generation
            for segment in log.segments()
            if self._needed_next <= segment.generation < self.mark.generation
        ]
        if len(full) <= max(unsealed, 0):
            return []
        together = max(1, limits.SEALED_FILE_BYTES // (log.record_bytes_max + limits.SECTOR_BYTES))
        left = len(full) // 2 if unsealed >= 0 else 0
        return full[: min(together, len(full) - left)]

    def _sparse_files(self) -> list[int]:
        """Files that make about one new file."""
        taken: list[int] = []
        size = 0
        for number in self._book.suspects():
            size += self._book.size_of(number)
            if taken and size > limits.SEALED_FILE_BYTES:
                break
            taken.append(number)
        return taken

    def _extents(self, home: Home) -> Iterable[tuple[bytes, bytes]]:
        low, high = extents_range(home[1], sealed=home[0])
        while True:
            cells = self._layered.cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
            for key, value in cells:
                yield extent_low(key), value
            if len(cells) < limits.PLACES_STEP:
                return
            low = cells[-1][0] + b"\0"

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
        return ShardNote(state.meta.keyed, floor, stored, dead, ended)

    def abandon(self) -> None:
        """The pass has failed; nothing was changed."""
        self._plan = self._folding.moved = None

    def finish(self, result: SealResult) -> None:
        layered, book = self._layered, self._book
        moved = self._folding.moved or {}
        self.abandon()
        homes = {home for home in result.plan.homes if not (home[0] and home[1] in result.spared)}
        for number, dead in result.spared.items():
            book.correct(number, dead)
        for number, facts in result.files.items():
            book.add(number, facts)
        edits: dict[int, tuple[list[int], list[tuple[int, Place]]]] = {}
        for found in result.replaced:
            removed, put = edits.setdefault(found.shard, ([], []))
            removed += found.firsts
            if found.place is not None:
                put.append((found.first, found.place))
        self._restage(result, moved, edits)
        for shard, (removed, put) in edits.items():
            state = layered.state(shard)
            if state is not None:
                layered.touch(state).part.replace(removed, put)
                state.part.key_drops += result.key_drops.get(shard, [])
                self._fronts.add(shard)
        self._count(result, edits)
        self._finished = layered.new
        homes -= self._left_behind(moved)
        layered.new.homes += sorted(homes)
        self._reading.forget(homes)
        for sealed, home in sorted(homes):
            if sealed:
                book.drop(home)
        full = sorted(home for sealed, home in result.plan.homes if not sealed)
        for home in full:
            if (False, home) not in homes:
                break
            self._needed_next = home + 1

    def _restage(
        self,
        result: SealResult,
        moved: dict[tuple[int, str, int], int],
        edits: dict[int, tuple[list[int], list[tuple[int, Place]]]],
    ) -> None:
        """Staged rows lie elsewhere now; some were published while they were copied."""
        layered = self._layered
        twice = {place for found in result.replaced for place in map(_spot, found.origins)}
        for found in result.restaged:
            state = layered.state(found.shard)
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

    def _count(
        self, result: SealResult, edits: dict[int, tuple[list[int], list[tuple[int, Place]]]]
    ) -> None:
        """Count the rows of the new files that died while they were copied (F2)."""
        dead = dict.fromkeys(result.files, 0)
        for shard, (_, put) in edits.items():
            state = self._layered.state(shard)
            if not put:
                continue
            low, high = min(put)[0], max(first + place.span for first, place in put)
            gone = self._layered.marks.reclaimable(state, low, high) if state else BitMap64()
            for first, place in put:
                count = gone.range_cardinality(first, first + place.span)
                dead[place.home] += count - (place.span - place.count) if state else place.count
        for number, count in dead.items():
            self._book.correct(number, count)

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
