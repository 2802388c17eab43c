"""The store's answers: keys, marks and single rows, from all layers and the index.

Everything is answered as of the last folded batch, on the engine's thread; scans have their own
module.
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
from millrace.core.commands import Outlived, RowFacts, StageFacts
from millrace.core.fold import Reader
from millrace.core.group_list import group_numbers
from millrace.core.model import Row
from millrace.store.blocks import Found
from millrace.store.cells import Table
from millrace.store.dead_rows import (
    ASIDE,
    DEAD,
    DELETE,
    ENDED,
    KEPT,
    ShardState,
)
from millrace.store.expired_scan import Outliving
from millrace.store.layered import Layered
from millrace.store.overlay import Rows, parts_of
from millrace.store.reading import Decoded, Reading
from millrace.store.scanning import Scanning, lost
from millrace.store.sealed import Moved
from millrace.store.tables import number_bytes
from millrace.store.unreadable import Unreadable

T = TypeVar("T")

_NO_SEQ = bytes(8)


class _Last:
    """Where rows of a shard were found lately, by which layers."""

    __slots__ = ("firsts", "found", "is_ahead_known", "newest", "places", "walk")

    def __init__(self, newest: Rows | None) -> None:
        self.newest = newest
        """What the newest layer says of the shard; the others do not change."""
        self.firsts: list[int] = []
        self.places: list[Found] = []
        self.found: Found | None = None
        self.is_ahead_known = False
        """Whether what follows it was read."""
        self.walk: tuple[list[int], dict[int, Found]] = ([], {})
        """Seqs that were looked for last, and by the place of a seq among them where it is."""

    def add_all(self, found: Iterable[Found]) -> None:
        """Remember those of these that are not remembered yet."""
        for one in found:
            if self.look(one[0]) is None:
                self.add(one)

    def walked(self, wanted: list[int]) -> dict[int, Found]:
        """By the place of a seq among those wanted where it is, as far as that was looked for."""
        seqs, known = self.walk
        return known if seqs == wanted else {}

    def add(self, found: Found) -> None:
        """Remember one more, which is the last one from now on."""
        if len(self.firsts) >= limits.PLACES_NEAR_MAX:
            self.firsts.clear()
            self.places.clear()
        at = bisect_right(self.firsts, found[0])
        self.firsts.insert(at, found[0])
        self.places.insert(at, found)
        self.found = found
        self.is_ahead_known = False

    def look(self, seq: int) -> Found | None:
        """The place whose rows span `seq`, if it is remembered."""
        found = self.found
        if found is not None and found[0] <= seq < found[0] + found[1].span:
            return found
        at = bisect_right(self.firsts, seq) - 1
        if at < 0 or seq >= self.firsts[at] + self.places[at][1].span:
            return None
        self.found = self.places[at]
        self.is_ahead_known = False
        return self.found


class Cut:
    """Ends a list of rows before it has more than so many bytes; the first row always fits."""

    def __init__(self, size: int) -> None:
        self._room = size
        self._counted = 0
        self._length = 0
        """What the rows that were not counted have together at most."""

    def ends(self, rows: list[Row], length: int) -> bool:
        """Rows were added, of `length` bytes at most: cut them off where they are too many.

        A row is looked at only where they might be, and once.
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


class Asking:
    """Answers the questions of a `Store`."""

    def __init__(self, layered: Layered, reading: Reading) -> None:
        self._layered = layered
        self._reading = reading
        self._layers = layered.layers
        self._last: dict[int, _Last] = {}
        self.scan = Scanning(layered, reading).visible

    # --- Keys and marks --------------------------------------------------------------------------

    def find(self, shard: int, keys: Sequence[bytes]) -> list[int]:
        state = self._layered.must(shard)
        known: list[dict[bytes, int]] = [
            part.keys for part in parts_of(self._layered.layers, state.id) if part.keys
        ]
        seqs: list[int | None] = list(map(known[0].get, keys)) if known else [None] * len(keys)
        if None in seqs:
            missing = [key for key, seq in zip(keys, seqs, strict=True) if seq is None]
            older = self._find_older(state.id, missing, known[1:])
            seqs = [older[key] if seq is None else seq for key, seq in zip(keys, seqs, strict=True)]
        floor = max(state.meta.floor, state.gone)
        found = [seq if seq is not None and seq > floor else 0 for seq in seqs]
        dead = self._layered.known.dead(state, found)
        return [0 if seq in dead else seq for seq in found] if dead else found

    def _find_older(
        self, number: int, keys: list[bytes], known: list[dict[bytes, int]]
    ) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for layer in known:
            found |= {key: layer[key] for key in keys if key in layer and key not in found}
        # In order, neighbours are found on the same page.
        rest = sorted([key for key in keys if key not in found] if found else keys)
        prefix = number_bytes(number)
        values = self._layered.cells.get(Table.KEYS, [prefix + key for key in rest])
        whole = b"".join([value or _NO_SEQ for value in values])
        found |= zip(rest, struct.unpack(f">{len(rest)}Q", whole), strict=True)
        return found

    def hidden(self, shard: int, low: int, high: int) -> BitMap64:
        state = self._layered.must(shard)
        high = min(high, state.meta.last_seq)
        return self._layered.known.unready(state, low, high) if low <= high else BitMap64()

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
        # Of a row that ended otherwise, or was settled and kept, a newer revision says nothing.
        known = seq > state.meta.floor and state.meta.keyed
        ended = bits(state, [0], ENDED, seq, seq) | bits(state, everyone, KEPT, seq, seq)
        if known and not live and seq not in ended:
            rows: list[Row] = []
            # Without its key nobody knows what came after it: then it has ended, and no more.
            with suppress(Unreadable):
                rows = self.rows(shard, BitMap64([seq]))
            if rows and rows[0].key is not None:
                [newer] = self.find(shard, [rows[0].key])
        return RowFacts(
            live=live,
            delete=seq in bits(state, [0], DELETE, seq, seq),
            kept=live and seq in bits(state, everyone, KEPT, seq, seq),
            superseded_by=newer if newer > seq else 0,
            aside=bool(state.uses & 1 << ASIDE) and seq in bits(state, [0], ASIDE, seq, seq),
        )

    def stage(self, shard: int, name: str, *, grouped: bool) -> StageFacts:
        number = self._layered.must(shard).id

        def look() -> StageFacts:
            keys: list[bytes | None] = []
            deletes: list[int] = []
            groups: list[int] = []
            for _, place in self._layered.blocks.staged(number, name):
                block = self._reading.decoded(place, shard, 0).block
                deletes += [len(keys) + at for at in block.deletes()]
                keys += block.key_list()
                if grouped:
                    groups += group_numbers(block)
            return StageFacts(keys, deletes, groups)

        return self._again(look, shard, 0)

    def seq_at(self, shard: int, time_ms: int) -> int:
        return self._again(lambda: self._seq_at(shard, time_ms), shard, 0)

    def _seq_at(self, shard: int, time_ms: int) -> int:
        found = self._place_at(shard, time_ms)
        if found is None:
            return self._layered.must(shard).meta.last_seq + 1
        first, place = found
        if place.time_ms >= time_ms:
            return first
        try:
            decoded = self._reading.decoded(place, shard, first)
        except Unreadable:
            # Retention takes it for newer than it may be: rows around it live no shorter.
            return first
        times = decoded.times or []
        at = int(np.searchsorted(np.array(times), time_ms))
        return int(decoded.seqs[at]) if decoded.seqs is not None else first + at

    def outlived(self, shard: int, after: int, before_ms: int, limit: int) -> Outlived:
        look = Outliving(self._layered, self._reading, shard, before_ms, limit)
        return self._again(lambda: look.after(after), shard, after)

    def _place_at(self, shard: int, time_ms: int) -> Found | None:
        """The first place with a row whose time is not before `time_ms`.

        Times never fall from seq to seq, so that it can be found by halving.
        """
        state = self._layered.must(shard)
        low, high = state.gone + 1, state.meta.last_seq + 1
        found: Found | None = None
        while low < high:
            middle = (low + high) // 2
            place = self._layered.blocks.after(state.id, middle, high - 1)
            if place is None:
                high = middle
            elif place[1].last_ms >= time_ms:
                found, high = place, min(middle, place[0])
            else:
                low = place[0] + place[1].span
        return found

    def warm_time(self, shard: int, time_ms: int) -> Callable[[], None] | None:
        def look() -> Callable[[], None] | None:
            found = self._place_at(shard, time_ms)
            if found is None or found[1].time_ms >= time_ms:
                return None
            return self._cold(shard, [found])

        return self._again(look, shard, 0)

    def warm_stages(self, shard: int, names: Sequence[str]) -> Callable[[], None] | None:
        number = self._layered.must(shard).id
        staged = self._layered.blocks.staged
        found = [(0, place) for name in names for _, place in staged(number, name)]
        return self._again(lambda: self._cold(shard, found), shard, 0)

    # --- Rows ------------------------------------------------------------------------------------

    def rows(self, shard: int, seqs: BitMap64, size: int = sys.maxsize) -> list[Row]:
        state = self._layered.must(shard)
        if len(seqs) == 1:
            # The way of a single message, which must cost little.
            seq = seqs.min()
            found = self._lately(state.id).look(seq)
            if found is not None:
                try:
                    return self._reading.decoded(found[1], shard, found[0]).row(found[0], seq)
                except Moved:
                    self._last.clear()
            one = self._at(state, seq)
            return one[1].row(one[0], seq) if one is not None else []
        out: list[Row] = []
        cut = Cut(size)
        wanted = list(seqs)
        last = self._lately(state.id)
        known = last.walked(wanted)
        at = moves = 0
        while at < len(wanted):
            found = known.get(at) or self._look(state.id, wanted, at, last)
            if found is None:
                at += 1
                continue
            first, place = found
            try:
                decoded = self._reading.decoded(place, shard, first)
            except Moved:
                moves += 1
                if moves == limits.LOOK_AGAIN_MAX:
                    raise lost(shard, wanted[at], found) from None
                self._last.clear()
                last, known = self._lately(state.id), {}
                continue
            end = _before(wanted, first + place.span, at)
            if end == at + 1:
                out += decoded.row(first, wanted[at])
            else:
                out += decoded.rows(first, wanted[at:end])
            if cut.ends(out, decoded.size):
                break
            at, moves = end, 0
        return out

    def row_at_hand(self, shard: int, seq: int) -> list[Row] | None:
        """As `rows`, if this process has written the row and it lies in the log still.

        The way of a single message, which must cost little. None: there is more to be looked at.
        """
        found = self._find(self._layered.must(shard).id, seq)
        if found is None or not self._reading.is_new(found[1]):
            return None
        try:
            return self._reading.decoded(found[1], shard, found[0]).row(found[0], seq)
        except Moved:
            self._last.clear()
            return None

    def _at(self, state: ShardState, seq: int) -> tuple[int, Decoded] | None:
        def look() -> tuple[int, Decoded] | None:
            found = self._find(state.id, seq)
            return found and (found[0], self._reading.decoded(found[1], state.shard, found[0]))

        return self._again(look, state.shard, seq)

    def _find(self, number: int, seq: int) -> Found | None:
        """The place whose rows span `seq`."""
        last = self._lately(number)
        return last.look(seq) or self._seek(number, seq, last)

    def _lately(self, number: int) -> _Last:
        """The places that were found lately: most often the one that is wanted is among them.

        While the layers are the same, and what each says of the shard, a place stays valid:
        checkpoints put into the index what a layer above it says already.
        """
        layers = self._layered.layers
        if layers is not self._layers or len(self._last) > limits.PLACES_KNOWN_MAX:
            self._last.clear()
            self._layers = layers
        part = layers[0].shards.get(number)
        newest = None if part is None else part.rows
        last = self._last.get(number)
        if last is None or last.newest is not newest:
            last = self._last[number] = _Last(newest)
        return last

    def _seek(self, number: int, seq: int, last: _Last) -> Found | None:
        found = self._layered.blocks.at(number, seq)
        if found is not None:
            last.add(found)
        return found

    def _look(self, number: int, wanted: list[int], at: int, last: _Last) -> Found | None:
        """Where one of the wanted rows is; where there are many, its neighbours are found too."""
        found = last.look(wanted[at])
        if found is not None:
            return found
        if len(wanted) >= limits.PLACES_NEAR_STEP:
            page, _ = self._layered.blocks.page(
                number, wanted[at], wanted[-1], limit=limits.PLACES_NEAR_STEP
            )
            last.add_all(page)
            return last.look(wanted[at])
        return self._seek(number, wanted[at], last)

    def hot(self, shard: int, seqs: BitMap64) -> bool:
        return self.newest(shard, seqs) or all(
            self._reading.is_hot(place) for _, place in self._places(shard, seqs)
        )

    def newest(self, shard: int, seqs: BitMap64) -> bool:
        """Whether all of them were written since the last checkpoint, which is quick to tell."""
        part = self._layered.new.shards.get(self._layered.must(shard).id)
        if part is None or not part.rows[0] or not seqs:
            return False
        # Places of rows that were moved come before those of all that is new.
        first = part.rows[0][0]
        return first <= seqs.min() and self._reading.is_new(part.rows[1][first])

    def _places(self, shard: int, seqs: BitMap64) -> Iterator[Found]:
        number = self._layered.must(shard).id
        last = self._lately(number)
        wanted = list(seqs)
        known: dict[int, Found] = {}
        last.walk = (wanted, known)
        at = 0
        while at < len(wanted):
            found = self._look(number, wanted, at, last)
            if found is None:
                at += 1
                continue
            known[at] = found
            yield found
            at = _before(wanted, found[0] + found[1].span, at)

    def warm(self, shard: int, seqs: BitMap64) -> Callable[[], None]:
        def look() -> Callable[[], None]:
            found = list(self._places(shard, seqs))
            if found:
                found += self._following(shard, found[-1])
            return self._cold(shard, found) or _nothing

        return self._again(look, shard, seqs.min() if seqs else 0)

    def ahead(self, shard: int, seqs: BitMap64) -> Callable[[], None] | None:
        """The call that reads what is likely to be asked for after these rows; None: nothing."""
        if self.newest(shard, seqs):
            return None
        number = self._layered.must(shard).id
        found = self._find(number, seqs.max()) if seqs else None
        if found is None or self._reading.is_new(found[1]) or self._last[number].is_ahead_known:
            return None
        self._last[number].is_ahead_known = True
        try:
            return self._cold(shard, self._following(shard, found))
        except Moved:
            return None

    def _following(self, shard: int, found: Found) -> list[Found]:
        """The places after this one, within what is read ahead."""
        state = self._layered.must(shard)
        after = found[0] + found[1].span
        if after > state.meta.last_seq:
            return []
        page, _ = self._layered.blocks.page(
            state.id, after, state.meta.last_seq, limit=limits.READ_AHEAD_PLACES_MAX
        )
        ends = accumulate(place.length for _, place in page)
        count = sum(end <= limits.READ_AHEAD_BYTES for end in ends)
        # However large it is, the next one is among them.
        return page[: max(count, 1)]

    def _cold(self, shard: int, found: list[Found]) -> Callable[[], None] | None:
        """The call that reads those of the places that are cold; None if all are hot."""
        cold = [one for one in found if not self._reading.is_hot(one[1])]
        return self._reading.toucher(shard, cold) if cold else None

    def _again(self, look: Callable[[], T], shard: int, seq: int) -> T:
        """Look, and look again where rows were moved meanwhile."""
        for _ in range(limits.LOOK_AGAIN_MAX):
            try:
                return look()
            except Moved:
                self._last.clear()
        raise lost(shard, seq, self._layered.blocks.at(self._layered.must(shard).id, seq))


def _before(wanted: list[int], end: int, at: int) -> int:
    """How many of the seqs, which rise, lie below `end`; those up to `at` do."""
    if wanted[-1] < end:
        return len(wanted)
    return bisect_left(wanted, end, at + 1)


def _nothing() -> None:
    """Everything is hot."""
