"""Statistics of the sealed files: sizes and estimates of live rows, to choose files to compact.

Deaths are recorded per seq, never per location, so that the counts are estimates: they select
candidates. Before a file is rewritten, its live rows are counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.store.cells import Cells, Table
from millrace.store.index_codec import (
    FileFacts,
    FileSpans,
    decode_file,
    number_of,
)
from millrace.store.layered_index import LayeredIndex


class SealedFileStats:
    """Statistics of every sealed file in the index; on the engine's thread."""

    def __init__(self, layered: LayeredIndex) -> None:
        self._layered = layered
        self._files: dict[int, FileFacts] = {}
        self._spans: dict[int, list[tuple[int, int, int]]] = {}
        """Shard → (first seq, last seq, file)."""
        self._elsewhere = 0
        """Number of rows that died in files shared by many shards, or in the log."""
        self._looked: dict[int, int] = {}
        self._doubted: set[int] = set()
        self.changes = 0
        """A counter of changes that may make another file a candidate."""
        self.next_number = 1
        """Number of the next file."""
        self.removing: set[int] = set()
        """Unreferenced files whose removal is not durable yet."""

    def load(self, cells: Cells) -> None:
        low = b""
        while True:
            page = cells.range(Table.FILES, low, b"\xff" * 9, limit=limits.PLACES_STEP)
            for key, value in page:
                number, facts = number_of(key), decode_file(value)
                if facts.dropping:
                    self.removing.add(number)
                else:
                    self._enter(number, facts)
            if len(page) < limits.PLACES_STEP:
                return
            low = page[-1][0] + b"\0"

    def _enter(self, number: int, facts: FileFacts) -> None:
        self.changes += 1
        self._files[number] = facts
        for shard, (low, high) in facts.spans.items():
            self._spans.setdefault(shard, []).append((low, high, number))

    def numbers(self) -> list[int]:
        """Return the numbers of the files that may hold rows."""
        return sorted(self._files)

    def spans_of(self, shards: Iterable[int]) -> FileSpans:
        """Return the ranges of seqs by file for these shards."""
        return {
            shard: [(first, last, number, self._files[number]) for first, last, number in spans]
            for shard in shards
            if (spans := self._spans.get(shard))
        }

    def weights(self) -> tuple[int, int]:
        """Return estimates of the live and the dead bytes of all files."""
        size = dead = 0
        for facts in self._files.values():
            size += facts.size
            dead += facts.size * min(facts.dead, facts.rows) // max(facts.rows, 1)
        return size - dead, dead

    # --- Changes ---------------------------------------------------------------------------------

    def add(self, number: int, facts: FileFacts) -> None:
        """Add a durable file."""
        self._enter(number, facts)
        self._layered.new.files[number] = facts
        self.next_number = max(self.next_number, number + 1)

    def correct(self, number: int, dead: int) -> None:
        """Correct the estimate after counting: there are `dead` more dead rows than recorded."""
        facts = self._files.get(number)
        self._looked[number] = self._elsewhere
        self._doubted.discard(number)
        if facts is not None:
            self._set(number, msgspec.structs.replace(facts, dead=facts.dead + dead))

    def expected(self, number: int) -> int:
        """Return the number of dead rows that will be recorded once all marks are written."""
        facts = self._files[number]
        marks = self._layered.marks
        count = facts.dead
        for shard, (low, high) in facts.spans.items():
            if (state := self._layered.numbered(shard)) is not None:
                count += marks.uncounted(state, low, high).range_cardinality(low, high + 1)
                floor = state.meta.intervals[0].floor if state.meta.intervals else 0
                count += max(0, min(high, floor) - max(low, state.counted + 1) + 1)
        return count

    def drop(self, number: int) -> None:
        """Drop an unreferenced file; it is removed once that is durable."""
        facts = self._files.pop(number)
        for shard in facts.spans:
            self._spans[shard] = [span for span in self._spans[shard] if span[2] != number]
        self._looked.pop(number, None)
        self._doubted.discard(number)
        self.removing.add(number)
        self._layered.new.files[number] = msgspec.structs.replace(facts, dropping=True, spans={})

    def forget(self, number: int) -> None:
        """Forget a file that was removed."""
        self.removing.discard(number)
        self._layered.new.files[number] = None

    def _set(self, number: int, facts: FileFacts) -> None:
        self.changes += 1
        self._files[number] = facts
        self._layered.new.files[number] = facts

    # --- Estimates -------------------------------------------------------------------------------

    def count_dead(self, shard: int, seqs: BitMap64) -> None:
        """Count rows as dead in their files."""
        low, high = seqs.min(), seqs.max()
        assigned = 0
        for first, last, number in self._spans.get(shard, ()):
            if first <= high and last >= low:
                count = seqs.range_cardinality(first, last + 1)
                if count:
                    self._add_dead(number, count)
                    assigned += count
        self._count_elsewhere(len(seqs) - assigned)

    def count_floor(self, shard: int, before: int, floor: int) -> None:
        """Count the rows up to `floor` as dead; those up to `before` were counted already."""
        if floor <= before:
            return
        for first, last, number in self._spans.get(shard, ()):
            count = min(last, floor) - max(first, before + 1) + 1
            if count > 0:
                self._add_dead(number, count)
        self._count_elsewhere(floor - before)

    def count_dropped(self, shard: int) -> None:
        """Count all rows of a dropped shard as dead."""
        for first, last, number in self._spans.pop(shard, ()):
            self._add_dead(number, last - first + 1)
            facts = self._files[number]
            spans = {key: span for key, span in facts.spans.items() if key != shard}
            self._set(number, msgspec.structs.replace(facts, spans=spans))

    def _count_elsewhere(self, count: int) -> None:
        if count:
            self._elsewhere += count
            self.changes += 1

    def doubt(self) -> None:
        """Make files without seq ranges candidates after a shard or stage was dropped."""
        self.changes += 1
        self._doubted |= {number for number, facts in self._files.items() if not facts.spans}

    def _add_dead(self, number: int, count: int) -> None:
        facts = self._files[number]
        dead = min(facts.dead + count, facts.rows)
        if dead != facts.dead:
            self._set(number, msgspec.structs.replace(facts, dead=dead))

    def suspects(self) -> list[int]:
        """Return the files that are probably sparse, the emptiest first."""
        candidates: list[tuple[float, int]] = []
        for number, facts in self._files.items():
            dead = facts.dead
            if not facts.spans:
                # Shared by many shards: all rows that died since the last count may be in it.
                dead += self._elsewhere - self._looked.get(number, 0)
            live = max(facts.rows - dead, 0) / max(facts.rows, 1)
            if live * 100 < limits.SPARSE_PER_CENT or number in self._doubted:
                candidates.append((live, number))
        return [number for _, number in sorted(candidates)]

    def small(self) -> list[int]:
        """Return small files to merge, oldest first, if there are many."""
        files = [
            number
            for number, facts in sorted(self._files.items())
            if facts.size < limits.SMALL_FILE_BYTES
        ]
        return files if len(files) >= limits.SMALL_FILES_MAX else []

    def rows_of(self, number: int) -> int:
        return self._files[number].rows

    def size_of(self, number: int) -> int:
        return self._files[number].size
