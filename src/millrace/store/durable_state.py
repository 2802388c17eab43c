"""Keeping the store: what is durable of it, and how a checkpoint moves that on.

Freezing and thawing run on the engine's thread and are short; what lies between them is bulk work
for a lane.
"""

from __future__ import annotations

from contextlib import suppress

from millrace import limits
from millrace.core.model import GroupId
from millrace.errors import Fatal, Full
from millrace.store import chunk
from millrace.store.checkpoint import Checkpoint, Frozen
from millrace.store.dead_rows import DEAD
from millrace.store.layered import Layered
from millrace.store.overlay import Overlay
from millrace.store.reclaim import Emptying
from millrace.store.sealed import FOLDER, SealedFiles, file_name
from millrace.store.sealed_stats import Book
from millrace.wal.files import Disk
from millrace.wal.record import Mark


class Keeping:
    """What is durable of the store, and how that moves on."""

    def __init__(
        self, disk: Disk, layered: Layered, book: Book, emptying: Emptying, files: SealedFiles
    ) -> None:
        self._disk = disk
        self._layered = layered
        self._book = book
        self._emptying = emptying
        self._files = files
        self.mark: Mark | None = None
        """Where replay would begin now."""
        self.needed = 0
        """The oldest generation that the durable index refers to."""
        self.facts: dict[GroupId, bytes] = {}
        self._again: Frozen | None = None
        self.readers = 0
        """How many read the files at their own pace: none is removed meanwhile."""
        self._cleaning: set[int] = set()
        """Shards with marks of rows that are gone."""

    def begin(self, mark: Mark | None, needed: int, facts: dict[GroupId, bytes]) -> None:
        """What the index said when it was opened."""
        self.mark = mark
        self.needed = self._emptying.needed = needed
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
        self._emptying.pass_over(mark)
        overlay = layered.new
        merging = self._note_pins(overlay)
        self._count_marks(overlay)
        frozen = Frozen(
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
        frozen.needed = self._emptying.needed
        frozen.next_file = self._book.next_number
        frozen.merging = merging
        frozen.cleaning = [
            (number, state.gone, tuple({0, *state.stored}))
            for number in sorted(self._cleaning)
            if (state := layered.numbered(number)) is not None
        ]
        frozen.reclaiming = sorted(layered.reclaiming - layered.building)
        frozen.building = sorted(layered.building)
        frozen.removable = [] if self.readers else sorted(self._book.removing)
        if merging:
            frozen.spans = self._book.spans_of({number for number, _, into in merging if not into})
        layered.layers = (Overlay(), overlay)
        return frozen

    def _note_pins(self, overlay: Overlay) -> list[tuple[int, int, int]]:
        """Note under which pins there will be marks, and find those that are to be moved."""
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
            # They will lie there as soon as this is written, though that pin may go meanwhile.
            if (state := layered.numbered(number)) is not None:
                layered.touch(state).stored |= {into}
        return moving

    def _count_marks(self, overlay: Overlay) -> None:
        """Count what the layer made dead, so that one commit holds it and the count of it."""
        layered, book = self._layered, self._book
        for number, part in overlay.shards.items():
            if (state := layered.numbered(number)) is not None:
                roots = state.roots()
                for (pin, mark), seqs in part.marks.items():
                    if mark == DEAD and roots.get(pin, pin) == 0 and seqs:
                        book.count_dead(number, seqs)
                if state.meta.intervals:
                    floor = state.meta.intervals[0].floor
                    book.count_floor(number, state.counted, floor)
                    state.counted = floor

    def refreeze(self, frozen: Frozen) -> None:
        """It found no room: the next checkpoint is this one again."""
        self._again = frozen

    def write(self, frozen: Frozen) -> None:
        cells = self._layered.cells
        checkpoint = Checkpoint(cells, frozen)
        writes = checkpoint.writes()
        checkpoint.check_homes()
        cells.commit(writes)
        for number in frozen.removable:
            if self._disk.exists(file_name(number)):
                self._disk.remove(file_name(number))
            # Not before: a reader beside this would open it again.
            self._files.forget(number)
        if frozen.removable:
            # Also where an earlier process had removed them: it may not have come to the sync, and
            # a name that came back after they are forgotten would stay for ever. It is committed
            # by now, so that a disk without room only means that they are removed once more.
            with suppress(Full):
                self._disk.sync_folder(FOLDER)
                frozen.removed = frozen.removable

    def thaw(self, frozen: Frozen) -> None:
        layered, book = self._layered, self._book
        layered.reclaiming |= frozen.overlay.dropped - layered.new.copies.keys()
        layered.reclaiming -= set(frozen.reclaimed)
        for number in frozen.reclaimed:
            layered.copies.pop(number, None)
        layered.layers = (layered.new,)
        for number in frozen.overlay.dropped - layered.building:
            book.count_dropped(number)
        if frozen.overlay.dropped or any(
            place is None
            for part in frozen.overlay.shards.values()
            for place in part.staged.values()
        ):
            book.doubt()
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
            book.forget(number)
        self.mark, self.needed, self.facts = frozen.mark, frozen.needed, frozen.facts

    def _absorb_marks(self, frozen: Frozen) -> None:
        """The marks of the layer are in the index now, and some of its older ones were moved."""
        layered, book = self._layered, self._book
        for number, seqs in frozen.moved:
            if seqs:
                # The commit has counted them, too.
                book.count_dead(number, seqs)
        for number, pin in frozen.merged:
            if (state := layered.loaded(number)) is not None:
                layered.touch(state).stored -= {pin}
        for number, part in frozen.overlay.shards.items():
            if (state := layered.loaded(number)) is not None:
                layered.known.absorb(state, part)

    def _move_fronts(self) -> None:
        """Learn up to which seq shards have nothing left, some at a time."""
        layered, fronts = self._layered, self._emptying.fronts
        for number in sorted(fronts)[: limits.FRONTS_STEP]:
            fronts.discard(number)
            state = layered.numbered(number)
            if state is None or not layered.is_current(state):
                continue
            last = state.meta.last_seq
            front = layered.blocks.front(number, state.gone + 1, last)
            gone = min(front - 1, last)
            if gone < last and layered.blocks.at(number, front) is None:
                # There was more to look at than one step does.
                fronts.add(number)
            if gone > state.gone:
                if gone // chunk.ROWS > state.gone // chunk.ROWS:
                    self._cleaning.add(number)
                layered.touch(state).gone = gone
