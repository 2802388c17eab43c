"""Tombstones: the marked seqs of a shard (dead, kept, deletes), by interval.

Rule 1: marks are only ever added. A dead row stays dead, whatever happens to its bytes.
Rule 2: an interval is merged into another by name first: `sources` lists the pins whose marks count
there as well. The marks themselves are moved by later checkpoints, in steps.
Rule 3: marks are read from the newest layer first, and from the index last, in one transaction:
they move downwards only, so that a reader concurrent with a checkpoint may see a mark twice, but
never misses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pyroaring import BitMap, BitMap64

from millrace import limits
from millrace.core.needs import PinnedRows
from millrace.core.state.fold import (
    Interval,
    Reader,
    RowMark,
    ShardMeta,
    intervals_before,
)
from millrace.store import chunk
from millrace.store.cells import Cells, Table
from millrace.store.index_codec import StoredShard, chunk_of, deaths_key
from millrace.store.overlay import Layers, Overlay, ShardOverlay, parts_of

DELETE = 2
"""A mark of the store in addition to `RowMark`: the row has no body. Always under pin 0."""

ENDED = 3
"""A mark of the store, in keyed shards: the row died, but no newer row of its key replaced it, so
that the key may still name it. Always under pin 0."""

DEFERRED = 4
"""A mark of the store: the row is deferred, not ready in seq order. Always under pin 0."""

MARKS = 5

DEAD, KEPT = int(RowMark.DEAD), int(RowMark.KEPT)


class ShardState:
    """One shard in memory: its counters, and its ledger while a batch is folded."""

    __slots__ = (
        "cached_marks",
        "counted",
        "gone",
        "id",
        "kept_from",
        "marks",
        "meta",
        "part",
        "shard",
        "sources",
        "stored",
        "uses",
    )

    def __init__(self, shard: int, stored: StoredShard, marks: Marks) -> None:
        self.shard = shard
        self.id = stored.number or shard
        """Number under which the index holds it."""
        self.marks = marks
        self.meta = stored.meta
        self.gone = stored.gone
        self.kept_from = stored.kept_from
        self.stored = frozenset(stored.stored)
        self.sources = dict(stored.sources)
        self.uses = stored.uses
        self.counted = stored.meta.intervals[0].floor if stored.meta.intervals else 0
        """The floor up to which `SealedFileStats` has counted dead rows."""
        self.part = ShardOverlay()
        """The newest layer's part of this shard."""
        self.cached_marks: CachedMarks | None = None

    def to_store(self) -> StoredShard:
        return StoredShard(
            self.meta,
            self.gone,
            self.kept_from,
            tuple(sorted(self.stored)),
            dict(sorted(self.sources.items())),
            self.uses,
            self.id if self.id != self.shard else 0,
        )

    # --- The ledger, as `core.fold` asks for it ------------------------------------------------

    def mark(self, pin: int, mark: int, seqs: BitMap64) -> None:
        self.uses |= 1 << mark
        self.part.mark(pin, mark, seqs)
        if mark == KEPT and seqs:
            self.kept_from = min(self.kept_from, seqs.min() - 1)

    def kept(self, upto: int) -> BitMap64:
        low = max(self.kept_from, self.gone, self.meta.floor) + 1
        self.kept_from = max(self.kept_from, upto)
        if low > upto or not self.uses & 1 << KEPT:
            return BitMap64()
        everyone = [interval.pin for interval in self.meta.intervals]
        marks = self.marks
        kept = marks.bits(self, everyone, KEPT, low, upto)
        return kept - marks.bits(self, everyone, DEAD, low, upto) if kept else kept

    def dead(self, low: int, high: int) -> int:
        if not self.uses & 1 << DEAD:
            return 0
        gone = max(min(self.gone, high) - low + 1, 0)
        everyone = [interval.pin for interval in self.meta.intervals]
        return gone + len(self.marks.bits(self, everyone, DEAD, low + gone, high))

    def merge(self, pin: int, into: int) -> None:
        sources = dict(self.sources)
        sources[into] = (*sources.get(into, ()), pin, *sources.pop(pin, ()))
        self.sources = sources
        self.marks.merging.add(self.id)

    # --- Merged intervals ------------------------------------------------------------------------

    def pins_of(self, intervals: Iterable[int]) -> list[int]:
        """Return the pins under which the marks of these intervals are stored."""
        sources = self.sources
        pins: list[int] = []
        for pin in intervals:
            pins.append(pin)
            pins.extend(sources.get(pin, ()))
        return pins

    def roots(self) -> dict[int, int]:
        """Return merged pin → the interval that it belongs to now."""
        return {pin: into for into, pins in self.sources.items() for pin in pins}

    def forget_merged(self, layer: Overlay) -> bool:
        """Drop the names of merged intervals of which neither the index nor `layer` has marks.

        Returns True if any are left.
        """
        part = layer.shards.get(self.id)
        used = self.stored | ({pin for pin, _ in part.marks} if part else set())
        kept = {
            into: left
            for into, pins in self.sources.items()
            if (left := tuple(pin for pin in pins if pin in used))
        }
        self.sources = kept
        return bool(kept)


class Marks:
    """Reads marks from all layers and the index; on any thread."""

    def __init__(self, cells: Cells, layers: Callable[[], Layers]) -> None:
        self._cells = cells
        self._layers = layers
        self.merging: set[int] = set()
        """Shards with merged intervals whose marks were not moved yet."""

    def bits(
        self, state: ShardState, intervals: Iterable[int], mark: int, low: int, high: int
    ) -> BitMap64:
        """Return the seqs within [low, high] that have the mark in one of these intervals."""
        # Read the layers first, then the pins: see rule 3.
        parts = parts_of(self._layers(), state.id)
        logical = list(intervals)
        pins = state.pins_of(logical)
        marked_seqs = BitMap64()
        for part in parts:
            for pin in pins:
                marked = part.marks.get((pin, mark))
                if marked is not None:
                    marked_seqs |= marked
        if marked_seqs:
            marked_seqs &= chunk.span(low, high)
        wanted = {*logical, *(pin for pin in pins if pin in state.stored)}
        return marked_seqs | self.stored(state.id, sorted(wanted), mark, low, high)

    def stored(self, shard: int, pins: list[int], mark: int, low: int, high: int) -> BitMap64:
        """Return the marked seqs within [low, high] from the index only, by stored pins."""
        if low > high:
            return BitMap64()
        chunks = range(low // chunk.ROWS, high // chunk.ROWS + 1)
        keys = [deaths_key(shard, pin, mark, number) for pin in pins for number in chunks]
        values = self._cells.get(Table.DEATHS, keys)
        numbers = list(chunks) * len(pins)
        seqs = chunk.join(
            (number, chunk.unpack(value))
            for number, value in zip(numbers, values, strict=True)
            if value is not None
        )
        if seqs and (seqs.min() < low or seqs.max() > high):
            seqs &= chunk.span(low, high)
        return seqs

    def hidden(self, state: ShardState, reader: Reader, low: int, high: int) -> BitMap64:
        """Return the seqs within [low, high] that the reader must not see."""
        intervals = intervals_before(state.meta, reader)
        pins = [interval.pin for interval in intervals]
        floor = max((interval.floor for interval in intervals), default=0)
        floor = max(floor, state.gone)
        hidden = chunk.span(low, min(floor, high))
        low = max(low, floor + 1)
        if low <= high:
            hidden |= self.bits(state, pins, DEAD, low, high)
            if not reader.retain and state.uses & 1 << KEPT:
                hidden |= self.bits(state, pins, KEPT, low, high)
        return hidden

    def reclaimable(self, state: ShardState, low: int, high: int) -> BitMap64:
        """Return the seqs within [low, high] that are garbage: no reader can see them any more."""
        first = state.meta.intervals[0]
        floor = max(first.floor, state.gone)
        gone = chunk.span(low, min(floor, high))
        low = max(low, floor + 1)
        return gone | self.bits(state, [first.pin], DEAD, low, high) if low <= high else gone

    def held(self, state: ShardState, pin: int) -> list[PinnedRows]:
        """Count the rows that died since the pin was made, by ranges of seqs.

        During a checkpoint, rows whose marks are being written may be counted twice.
        """
        older = [interval for interval in state.meta.intervals if interval.pin < pin]
        newer = [interval for interval in state.meta.intervals if interval.pin >= pin]
        before = max(state.gone, *(interval.floor for interval in older), 0)
        floor = max(before, *(interval.floor for interval in newer), 0)
        held: list[PinnedRows] = []
        for low in range(before + 1, floor + 1, 64 * chunk.ROWS):
            high = min(low + 64 * chunk.ROWS - 1, floor)
            dead = self.bits(state, [interval.pin for interval in older], DEAD, low, high)
            held.append(PinnedRows(low, high, high - low + 1 - len(dead)))
        counts: dict[int, int] = {}
        for number, rows in self._marked(state, [interval.pin for interval in newer], floor):
            counts[number] = counts.get(number, 0) + rows
        last = state.meta.last_seq
        for number, rows in sorted(counts.items()):
            high = min((number + 1) * chunk.ROWS - 1, last)
            held.append(PinnedRows(max(number * chunk.ROWS, 1), high, rows))
        return held

    def _marked(
        self, state: ShardState, intervals: list[int], floor: int
    ) -> Iterator[tuple[int, int]]:
        """Yield chunk numbers with the count of dead rows above `floor` in these intervals."""
        pins = state.pins_of(intervals)
        sets = [
            marked
            for part in parts_of(self._layers(), state.id)
            for pin in pins
            if (marked := part.marks.get((pin, DEAD)))
        ]
        for number, offsets in chunk.split(BitMap64().union(*sets)) if sets else ():
            yield number, _above(number, offsets, floor)
        for pin in {*intervals, *(pin for pin in pins if pin in state.stored)}:
            low = deaths_key(state.id, pin, DEAD, (floor + 1) // chunk.ROWS)
            high = deaths_key(state.id, pin, DEAD + 1, 0)
            while cells := self._cells.range(Table.DEATHS, low, high, limit=limits.PLACES_STEP):
                for key, value in cells:
                    yield chunk_of(key), _above(chunk_of(key), chunk.unpack(value), floor)
                low = cells[-1][0] + b"\0"

    def uncounted(self, state: ShardState, low: int, high: int) -> BitMap64:
        """Return the `reclaimable` seqs that `SealedFileStats` counts with a later checkpoint."""
        merged = state.sources.get(0, ())
        seqs = self.stored(
            state.id, [pin for pin in merged if pin in state.stored], DEAD, low, high
        )
        part = self._layers()[0].shards.get(state.id)
        for pin in (0, *merged):
            if part is not None and (marked := part.marks.get((pin, DEAD))) is not None:
                seqs |= marked
        return seqs


class CachedMarks:
    """Cached marks of a shard, in the chunks that were read, over all intervals."""

    __slots__ = ("chunks", "marks")

    def __init__(self) -> None:
        self.chunks = BitMap64()
        self.marks = {mark: BitMap64() for mark in (DEAD, KEPT, DELETE, DEFERRED)}
        """Seqs by mark; incomplete outside of `chunks`."""


class MarkCache:
    """A cache of stored marks for the decider; on the engine's thread."""

    def __init__(self, marks: Marks, layers: Callable[[], Layers]) -> None:
        self._marks = marks
        self._layers = layers
        self._states: list[ShardState] = []
        self._count = 0

    def load(self, state: ShardState, chunks: BitMap64) -> dict[int, BitMap64]:
        """Return the stored marks in at least these chunks, without those of the layers."""
        cached = state.cached_marks
        if cached is None:
            cached = state.cached_marks = CachedMarks()
            self._states.append(state)
        missing = chunks - cached.chunks
        if missing:
            if self._count and self._count + len(missing) > limits.KNOWN_CHUNKS_MAX:
                self.clear()
                return self.load(state, chunks)
            self._count += len(missing)
            cached.chunks |= missing
            self._read(state, cached, missing)
        return cached.marks

    def _read(self, state: ShardState, cached: CachedMarks, missing: BitMap64) -> None:
        logical = [interval.pin for interval in state.meta.intervals]
        pins = sorted({*logical, *state.stored})
        for low, high in _runs(missing):
            for mark, marked in cached.marks.items():
                if state.uses & 1 << mark:
                    here = [0] if mark in (DELETE, DEFERRED) else pins
                    marked |= self._marks.stored(
                        state.id, here, mark, low * chunk.ROWS, (high + 1) * chunk.ROWS - 1
                    )

    def absorb(self, state: ShardState, part: ShardOverlay) -> None:
        """Add the marks of a layer's part that is in the index now."""
        if state.cached_marks is not None:
            for (_, mark), seqs in part.marks.items():
                if mark != ENDED:
                    marked = state.cached_marks.marks[mark]
                    marked |= seqs

    def clear(self) -> None:
        """Evict everything."""
        for state in self._states:
            state.cached_marks = None
        self._states.clear()
        self._count = 0

    def dead(self, state: ShardState, seqs: list[int]) -> BitMap64:
        """Return those of `seqs` that are marked as dead; seqs below a floor may be missing."""
        dead = BitMap64()
        if not state.uses & 1 << DEAD:
            return dead
        wanted = BitMap64(seqs)
        wanted.discard(0)
        if not wanted:
            return dead
        low, high = wanted.min() // chunk.ROWS, wanted.max() // chunk.ROWS
        near = chunk.span(low, high)
        if high - low > 4 * len(wanted):
            near = BitMap64([seq // chunk.ROWS for seq in wanted])
        dead |= wanted & self.load(state, near)[DEAD]
        for part in self._parts(state):
            for (_, mark), marked in part.marks.items():
                if mark == DEAD:
                    dead |= wanted & marked
        return dead

    def unready(self, state: ShardState, low: int, high: int) -> BitMap64:
        """Return the seqs within [low, high] that no worker gets in their order."""
        floor = max(state.meta.floor, state.gone)
        unready = BitMap64()
        wanted = chunk.span(low, high)
        for marked in self.load(state, chunk.span(low // chunk.ROWS, high // chunk.ROWS)).values():
            unready |= marked & wanted
        for part in self._parts(state):
            for marked in part.marks.values():
                unready |= marked & wanted
        return unready | chunk.span(low, min(floor, high))

    def _parts(self, state: ShardState) -> list[ShardOverlay]:
        return parts_of(self._layers(), state.id)


def _above(number: int, offsets: BitMap, floor: int) -> int:
    """Return the number of a chunk's seqs above `floor`."""
    return offsets.range_cardinality(max(floor + 1 - number * chunk.ROWS, 0), chunk.ROWS)


def _runs(numbers: BitMap64) -> list[tuple[int, int]]:
    """Return the numbers as ranges, both ends included."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def new_shard() -> StoredShard:
    """Return the stored state of a shard before its first batch."""
    return StoredShard(ShardMeta(intervals=(Interval(0),)))
