"""Point reads: keys, marks and single rows, from all layers and the index.

All reads return the state after the last folded batch, on the engine's thread; scans are in `scan`.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TypeVar

import numpy as np
from pyroaring import BitMap64

from millrace import limits
from millrace.core.model import Row
from millrace.core.needs import ExpiredRows, RowFacts, StageFacts
from millrace.core.ordering.group_numbers import group_numbers
from millrace.core.state.fold import Reader
from millrace.errors import Corrupt
from millrace.store import chunk
from millrace.store.cells import Table
from millrace.store.dead_rows import DEAD, DEFERRED, DELETE, ENDED, KEPT, ShardState
from millrace.store.index_codec import number_bytes
from millrace.store.layered_index import LayeredIndex
from millrace.store.overlay import Rows, parts_of
from millrace.store.row_index import Located
from millrace.store.row_reader import DecodedRows, RowReader
from millrace.store.scan import Scanner, lost
from millrace.store.sealed import Moved
from millrace.store.unreadable import Unreadable

T = TypeVar("T")

_NO_SEQ = bytes(8)


class _RecentLocations:
    """A cache of recently used row locations of a shard, valid for the present layers."""

    __slots__ = ("firsts", "found", "is_ahead_known", "locations", "newest", "walk")

    def __init__(self, newest: Rows | None) -> None:
        self.newest = newest
        """Locations in the newest layer; the other layers do not change."""
        self.firsts: list[int] = []
        self.locations: list[Located] = []
        self.found: Located | None = None
        self.is_ahead_known = False
        """True if the following rows were read ahead."""
        self.walk: tuple[list[int], dict[int, Located]] = ([], {})
        """The last looked-up seqs, and their locations by index."""

    def add_all(self, locations: Iterable[Located]) -> None:
        """Add those locations that are not cached yet."""
        for located in locations:
            if self.look(located[0]) is None:
                self.add(located)

    def walked(self, wanted: list[int]) -> dict[int, Located]:
        """Return the known locations of the wanted seqs by index, if they were looked up last."""
        seqs, by_index = self.walk
        return by_index if seqs == wanted else {}

    def add(self, located: Located) -> None:
        """Add a location, which becomes the last used one."""
        if len(self.firsts) >= limits.PLACES_NEAR_MAX:
            self.firsts.clear()
            self.locations.clear()
        at = bisect_right(self.firsts, located[0])
        self.firsts.insert(at, located[0])
        self.locations.insert(at, located)
        self.found = located
        self.is_ahead_known = False

    def look(self, seq: int) -> Located | None:
        """Return the cached location whose rows span `seq`, or None."""
        located = self.found
        if located is not None and located[0] <= seq < located[0] + located[1].span:
            return located
        at = bisect_right(self.firsts, seq) - 1
        if at < 0 or seq >= self.firsts[at] + self.locations[at][1].span:
            return None
        self.found = self.locations[at]
        self.is_ahead_known = False
        return self.found


class RowSizeLimit:
    """Cuts off a list of rows at a size in bytes; the first row always fits."""

    def __init__(self, size: int) -> None:
        self._room = size
        self._counted = 0
        self._length = 0
        """Upper bound of the bytes of the rows that were not counted."""

    def ends(self, rows: list[Row], length: int) -> bool:
        """Count added rows of at most `length` bytes; if the list is full, cut it off, return True.

        The sizes of rows are computed only when the limit might be reached, and once.
        """
        self._length += length
        if self._length <= self._room:
            return False
        for at in range(self._counted, len(rows)):
            size = rows[at].size()
            if size > self._room and at:
                del rows[at:]
                return True
            self._room -= size
        self._counted, self._length = len(rows), 0
        return False


class PointReads:
    """The point reads of a `Store`."""

    def __init__(self, layered: LayeredIndex, row_reader: RowReader) -> None:
        self._layered = layered
        self._row_reader = row_reader
        self._layers = layered.layers
        self._last: dict[int, _RecentLocations] = {}
        self.scan = Scanner(layered, row_reader).visible

    # --- Keys and marks --------------------------------------------------------------------------

    def find(self, shard: int, keys: Sequence[bytes]) -> list[int]:
        state = self._layered.must(shard)
        layer_keys: list[dict[bytes, int]] = [
            part.keys for part in parts_of(self._layered.layers, state.id) if part.keys
        ]
        seqs: list[int | None] = (
            list(map(layer_keys[0].get, keys)) if layer_keys else [None] * len(keys)
        )
        if None in seqs:
            missing = [key for key, seq in zip(keys, seqs, strict=True) if seq is None]
            older = self._find_older(state.id, missing, layer_keys[1:])
            seqs = [older[key] if seq is None else seq for key, seq in zip(keys, seqs, strict=True)]
        floor = max(state.meta.floor, state.gone)
        newest = [seq if seq is not None and seq > floor else 0 for seq in seqs]
        dead = self._layered.mark_cache.dead(state, newest)
        return [0 if seq in dead else seq for seq in newest] if dead else newest

    def _find_older(
        self, number: int, keys: list[bytes], layer_keys: list[dict[bytes, int]]
    ) -> dict[bytes, int]:
        seqs: dict[bytes, int] = {}
        for layer in layer_keys:
            seqs |= {key: layer[key] for key in keys if key in layer and key not in seqs}
        # Sorted keys are close together on the pages of the index.
        rest = sorted([key for key in keys if key not in seqs] if seqs else keys)
        prefix = number_bytes(number)
        values = self._layered.cells.get(Table.KEYS, [prefix + key for key in rest])
        whole = b"".join([value or _NO_SEQ for value in values])
        seqs |= zip(rest, struct.unpack(f">{len(rest)}Q", whole), strict=True)
        return seqs

    def hidden(self, shard: int, low: int, high: int) -> BitMap64:
        state = self._layered.must(shard)
        high = min(high, state.meta.last_seq)
        return self._layered.mark_cache.unready(state, low, high) if low <= high else BitMap64()

    def ended(self, shard: int, low: int, high: int) -> BitMap64:
        state = self._layered.must(shard)
        high = min(high, state.meta.last_seq)
        return self._layered.marks.hidden(state, Reader(), low, high)

    def dead(self, shard: int, low: int, high: int) -> BitMap64:
        state = self._layered.must(shard)
        high = min(high, state.meta.last_seq)
        return self._layered.marks.hidden(state, Reader(retain=True), low, high)

    def row(self, shard: int, seq: int) -> RowFacts:
        layered = self._layered
        state = layered.must(shard)
        if not state.gone < seq <= state.meta.last_seq:
            return RowFacts(live=False)
        everyone = [interval.pin for interval in state.meta.intervals]
        bits = layered.marks.bits
        live = seq > state.meta.floor and seq not in bits(state, everyone, DEAD, seq, seq)
        newer = 0
        # Only a row that ended because it was replaced is superseded by a newer one.
        may_be_replaced = seq > state.meta.floor and state.meta.keyed
        ended = bits(state, [0], ENDED, seq, seq) | bits(state, everyone, KEPT, seq, seq)
        if may_be_replaced and not live and seq not in ended:
            rows: list[Row] = []
            # Without its key the newer row is unknown: then report it as ended.
            with suppress(Unreadable):
                rows = self.rows(shard, BitMap64([seq]))
            if rows and rows[0].key is not None:
                [newer] = self.find(shard, [rows[0].key])
        return RowFacts(
            live=live,
            delete=seq in bits(state, [0], DELETE, seq, seq),
            kept=live and seq in bits(state, everyone, KEPT, seq, seq),
            superseded_by=newer if newer > seq else 0,
            aside=bool(state.uses & 1 << DEFERRED) and seq in bits(state, [0], DEFERRED, seq, seq),
        )

    def stage(self, shard: int, name: str, *, grouped: bool) -> StageFacts:
        number = self._layered.must(shard).id

        def look() -> StageFacts:
            keys: list[bytes | None] = []
            deletes: list[int] = []
            groups: list[int] = []
            for _, location in self._layered.row_index.staged(number, name):
                block = self._row_reader.decoded(location, shard, 0).block
                deletes += [len(keys) + at for at in block.deletes()]
                keys += block.key_list()
                if grouped:
                    groups += group_numbers(block)
            return StageFacts(keys, deletes, groups)

        return self._retry_moved(look, shard, 0)

    def seq_at(self, shard: int, time_ms: int) -> int:
        return self._retry_moved(lambda: self._seq_at(shard, time_ms), shard, 0)

    def _seq_at(self, shard: int, time_ms: int) -> int:
        located = self._location_at_time(shard, time_ms)
        if located is None:
            return self._layered.must(shard).meta.last_seq + 1
        first, location = located
        if location.time_ms >= time_ms:
            return first
        try:
            decoded = self._row_reader.decoded(location, shard, first)
        except Unreadable:
            # Retention may take these rows for newer than they are; others are not affected.
            return first
        times = decoded.times or []
        at = int(np.searchsorted(np.array(times), time_ms))
        return int(decoded.seqs[at]) if decoded.seqs is not None else first + at

    def outlived(self, shard: int, after: int, before_ms: int, limit: int) -> ExpiredRows:
        look = ExpiredScan(self._layered, self._row_reader, shard, before_ms, limit)
        return self._retry_moved(lambda: look.after(after), shard, after)

    def _location_at_time(self, shard: int, time_ms: int) -> Located | None:
        """Return the first location with a row whose time is at least `time_ms`, or None.

        Times never decrease from seq to seq, so that a binary search finds it.
        """
        state = self._layered.must(shard)
        low, high = state.gone + 1, state.meta.last_seq + 1
        located: Located | None = None
        while low < high:
            middle = (low + high) // 2
            location = self._layered.row_index.after(state.id, middle, high - 1)
            if location is None:
                high = middle
            elif location[1].last_ms >= time_ms:
                located, high = location, min(middle, location[0])
            else:
                low = location[0] + location[1].span
        return located

    def warm_time(self, shard: int, time_ms: int) -> Callable[[], None] | None:
        def look() -> Callable[[], None] | None:
            located = self._location_at_time(shard, time_ms)
            if located is None or located[1].time_ms >= time_ms:
                return None
            return self._cold(shard, [located])

        return self._retry_moved(look, shard, 0)

    def warm_stages(self, shard: int, names: Sequence[str]) -> Callable[[], None] | None:
        number = self._layered.must(shard).id
        staged = self._layered.row_index.staged
        blocks = [(0, location) for name in names for _, location in staged(number, name)]
        return self._retry_moved(lambda: self._cold(shard, blocks), shard, 0)

    # --- Rows ------------------------------------------------------------------------------------

    def rows(self, shard: int, seqs: BitMap64, size: int = sys.maxsize) -> list[Row]:
        state = self._layered.must(shard)
        if len(seqs) == 1:
            # The fast path of a single message.
            seq = seqs.min()
            located = self._recent(state.id).look(seq)
            if located is not None:
                try:
                    return self._row_reader.decoded(located[1], shard, located[0]).row(
                        located[0], seq
                    )
                except Moved:
                    self._last.clear()
            single = self._at(state, seq)
            return single[1].row(single[0], seq) if single is not None else []
        out: list[Row] = []
        cut = RowSizeLimit(size)
        wanted = list(seqs)
        last = self._recent(state.id)
        by_index = last.walked(wanted)
        at = moves = 0
        while at < len(wanted):
            located = by_index.get(at) or self._look(state.id, wanted, at, last)
            if located is None:
                at += 1
                continue
            first, location = located
            try:
                decoded = self._row_reader.decoded(location, shard, first)
            except Moved:
                moves += 1
                if moves == limits.LOOK_AGAIN_MAX:
                    raise lost(shard, wanted[at], located) from None
                self._last.clear()
                last, by_index = self._recent(state.id), {}
                continue
            end = _before(wanted, first + location.span, at)
            if end == at + 1:
                out += decoded.row(first, wanted[at])
            else:
                out += decoded.rows(first, wanted[at:end])
            if cut.ends(out, decoded.size):
                break
            at, moves = end, 0
        return out

    def recent_row(self, shard: int, seq: int) -> list[Row] | None:
        """Return the row if this process has written it and the log still has it, else None.

        This is the fast path of a single message; after None, call `rows`.
        """
        located = self._find(self._layered.must(shard).id, seq)
        if located is None or not self._row_reader.is_new(located[1]):
            return None
        try:
            return self._row_reader.decoded(located[1], shard, located[0]).row(located[0], seq)
        except Moved:
            self._last.clear()
            return None

    def _at(self, state: ShardState, seq: int) -> tuple[int, DecodedRows] | None:
        def look() -> tuple[int, DecodedRows] | None:
            located = self._find(state.id, seq)
            return located and (
                located[0],
                self._row_reader.decoded(located[1], state.shard, located[0]),
            )

        return self._retry_moved(look, state.shard, seq)

    def _find(self, number: int, seq: int) -> Located | None:
        """Return the location whose rows span `seq`, or None."""
        last = self._recent(number)
        return last.look(seq) or self._seek(number, seq, last)

    def _recent(self, number: int) -> _RecentLocations:
        """Return the cache of recent locations of a shard.

        A location stays valid while the layers and their parts of the shard are the same:
        checkpoints write to the index only what a layer above it has already.
        """
        layers = self._layered.layers
        if layers is not self._layers or len(self._last) > limits.PLACES_KNOWN_MAX:
            self._last.clear()
            self._layers = layers
        part = layers[0].shards.get(number)
        newest = None if part is None else part.rows
        last = self._last.get(number)
        if last is None or last.newest is not newest:
            last = self._last[number] = _RecentLocations(newest)
        return last

    def _seek(self, number: int, seq: int, last: _RecentLocations) -> Located | None:
        located = self._layered.row_index.at(number, seq)
        if located is not None:
            last.add(located)
        return located

    def _look(
        self, number: int, wanted: list[int], at: int, last: _RecentLocations
    ) -> Located | None:
        """Return the location of one of the wanted rows; if there are many, look up a page."""
        located = last.look(wanted[at])
        if located is not None:
            return located
        if len(wanted) >= limits.PLACES_NEAR_STEP:
            page, _ = self._layered.row_index.page(
                number, wanted[at], wanted[-1], limit=limits.PLACES_NEAR_STEP
            )
            last.add_all(page)
            return last.look(wanted[at])
        return self._seek(number, wanted[at], last)

    def hot(self, shard: int, seqs: BitMap64) -> bool:
        return self.newest(shard, seqs) or all(
            self._row_reader.is_hot(location) for _, location in self._locations(shard, seqs)
        )

    def newest(self, shard: int, seqs: BitMap64) -> bool:
        """Return True if all rows were written since the last checkpoint; this is cheap."""
        part = self._layered.new.shards.get(self._layered.must(shard).id)
        if part is None or not part.rows[0] or not seqs:
            return False
        # Locations of moved rows come before those of all new rows.
        first = part.rows[0][0]
        return first <= seqs.min() and self._row_reader.is_new(part.rows[1][first])

    def _locations(self, shard: int, seqs: BitMap64) -> Iterator[Located]:
        number = self._layered.must(shard).id
        last = self._recent(number)
        wanted = list(seqs)
        by_index: dict[int, Located] = {}
        last.walk = (wanted, by_index)
        at = 0
        while at < len(wanted):
            located = self._look(number, wanted, at, last)
            if located is None:
                at += 1
                continue
            by_index[at] = located
            yield located
            at = _before(wanted, located[0] + located[1].span, at)

    def warm(self, shard: int, seqs: BitMap64) -> Callable[[], None]:
        def look() -> Callable[[], None]:
            locations = list(self._locations(shard, seqs))
            if locations:
                locations += self._following(shard, locations[-1])
            return self._cold(shard, locations) or _nothing

        return self._retry_moved(look, shard, seqs.min() if seqs else 0)

    def ahead(self, shard: int, seqs: BitMap64) -> Callable[[], None] | None:
        """Return a function that reads ahead of these rows, or None if there is nothing to read."""
        if self.newest(shard, seqs):
            return None
        number = self._layered.must(shard).id
        located = self._find(number, seqs.max()) if seqs else None
        if (
            located is None
            or self._row_reader.is_new(located[1])
            or self._last[number].is_ahead_known
        ):
            return None
        self._last[number].is_ahead_known = True
        try:
            return self._cold(shard, self._following(shard, located))
        except Moved:
            return None

    def _following(self, shard: int, located: Located) -> list[Located]:
        """Return the locations after this one, within the read-ahead limit."""
        state = self._layered.must(shard)
        after = located[0] + located[1].span
        if after > state.meta.last_seq:
            return []
        page, _ = self._layered.row_index.page(
            state.id, after, state.meta.last_seq, limit=limits.READ_AHEAD_PLACES_MAX
        )
        ends = accumulate(location.length for _, location in page)
        count = sum(end <= limits.READ_AHEAD_BYTES for end in ends)
        # Include the next location, however large it is.
        return page[: max(count, 1)]

    def _cold(self, shard: int, locations: list[Located]) -> Callable[[], None] | None:
        """Return a function that reads the cold ones of these locations; None if all are hot."""
        cold = [located for located in locations if not self._row_reader.is_hot(located[1])]
        return self._row_reader.toucher(shard, cold) if cold else None

    def _retry_moved(self, look: Callable[[], T], shard: int, seq: int) -> T:
        """Run `look`, and retry it if rows were moved at the same time."""
        for _ in range(limits.LOOK_AGAIN_MAX):
            try:
                return look()
            except Moved:
                self._last.clear()
        raise lost(shard, seq, self._layered.row_index.at(self._layered.must(shard).id, seq))


def _before(wanted: list[int], end: int, at: int) -> int:
    """Return the number of ascending seqs below `end`, which those up to `at` are."""
    if wanted[-1] < end:
        return len(wanted)
    return bisect_left(wanted, end, at + 1)


def _nothing() -> None:
    """Do nothing: all rows are hot."""


# -------------------------------------------------------------------------------------------------
# Retention scan: finds live messages that are older than a time, by the times of row locations.
#
# Dead rows are skipped by their marks, a chunk at a time, and gaps by the next location. A
# location whose rows have several times is read; the rows of a damaged one count as old as the
# last of them.


class ExpiredScan:
    """One scan for at most `limit` messages that were published before `before_ms`."""

    def __init__(
        self, layered: LayeredIndex, row_reader: RowReader, shard: int, before_ms: int, limit: int
    ) -> None:
        self._layered = layered
        self._row_reader = row_reader
        self._shard = shard
        self._state = layered.must(shard)
        self._before_ms = before_ms
        self._limit = limit

    def after(self, seq: int) -> ExpiredRows:
        """Return the expired messages after `seq`.

        Raises:
            Moved: rows were moved during the scan; try again.
        """
        state, blocks = self._state, self._layered.row_index
        last = state.meta.last_seq
        low = max(seq, state.gone, state.meta.floor) + 1
        over = BitMap64()
        seen_ms = 0
        for _ in range(limits.OUTLIVED_CHUNKS_MAX):
            located = blocks.after(state.id, low, last)
            if located is None:
                return ExpiredRows(over, last, None)
            low, seen_ms = max(low, located[0]), located[1].time_ms
            high = min(low + chunk.ROWS - 1, last)
            live = chunk.span(low, high) - self._layered.marks.hidden(state, Reader(), low, high)
            if live:
                for candidate in blocks.between(state.id, live.min(), high):
                    end = self._take(candidate, live, over)
                    if end is not None:
                        return ExpiredRows(over, *end)
            low = high + 1
        return ExpiredRows(over, low - 1, seen_ms)

    def _take(self, located: Located, live: BitMap64, over: BitMap64) -> tuple[int, int] | None:
        """Add the expired rows at this location to `over`.

        Returns None if the scan goes on, else the last seq that it covers and the time of the next
        row. `live` are all live rows of the chunk.
        """
        first, location = located
        seq = next(live.iter_equal_or_larger(first), None)
        end = first + location.span - 1
        if seq is None or seq > end:
            return None
        if location.time_ms >= self._before_ms:
            return seq - 1, location.time_ms
        following: tuple[int, int] | None = None
        if location.last_ms >= self._before_ms:
            try:
                following = self._next_at(located, live)
            except Corrupt:
                # These rows cannot be delivered: they may expire together, with the last one.
                return seq - 1, location.last_ms
            if following is not None:
                end = following[0] - 1
        part = live & chunk.span(seq, end)
        room = self._limit - len(over)
        if len(part) > room:
            over.update(part[:room])
            return part[room] - 1, location.time_ms
        over.update(part)
        return None if following is None else (following[0] - 1, following[1])

    def _next_at(self, located: Located, live: BitMap64) -> tuple[int, int] | None:
        """Return seq and time of the first live row at this location that is not expired."""
        first, location = located
        decoded = self._row_reader.decoded(location, self._shard, first)
        times = decoded.times or [location.time_ms] * decoded.block.count
        at = bisect_left(times, self._before_ms)
        for index in range(at, len(times)):
            seq = int(decoded.seqs[index]) if decoded.seqs is not None else first + index
            if seq in live:
                return seq, times[index]
        return None
