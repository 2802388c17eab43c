"""Which messages are older than a time, and still there: found by the times of their places.

Rows that have ended are passed over by their marks, a chunk at a time, and gaps by the place that
follows. Where the rows of one place are of several times, it is read; those of a damaged one count
by the last of them.
"""

from __future__ import annotations

from bisect import bisect_left

from pyroaring import BitMap64

from millrace import limits
from millrace.core.commands import Outlived
from millrace.core.fold import Reader
from millrace.errors import Corrupt
from millrace.store import chunk
from millrace.store.blocks import Found
from millrace.store.layered import Layered
from millrace.store.reading import Reading


class Outliving:
    """One question for messages of before `before_ms`, `limit` of them at most."""

    def __init__(
        self, layered: Layered, reading: Reading, shard: int, before_ms: int, limit: int
    ) -> None:
        self._layered = layered
        self._reading = reading
        self._shard = shard
        self._state = layered.must(shard)
        self._before_ms = before_ms
        self._limit = limit

    def after(self, seq: int) -> Outlived:
        """Those after `seq`.

        Raises:
            Moved: rows were moved meanwhile; look again.
        """
        state, blocks = self._state, self._layered.blocks
        last = state.meta.last_seq
        low = max(seq, state.gone, state.meta.floor) + 1
        over = BitMap64()
        seen_ms = 0
        for _ in range(limits.OUTLIVED_CHUNKS_MAX):
            found = blocks.after(state.id, low, last)
            if found is None:
                return Outlived(over, last, None)
            low, seen_ms = max(low, found[0]), found[1].time_ms
            high = min(low + chunk.ROWS - 1, last)
            live = chunk.span(low, high) - self._layered.marks.hidden(state, Reader(), low, high)
            if live:
                for one in blocks.between(state.id, live.min(), high):
                    end = self._take(one, live, over)
                    if end is not None:
                        return Outlived(over, *end)
            low = high + 1
        return Outlived(over, low - 1, seen_ms)

    def _take(self, found: Found, live: BitMap64, over: BitMap64) -> tuple[int, int] | None:
        """Add those at this place to `over`; if that is all, up to where, and the time of the next.

        `live` are those that are there of the chunk, with places before this one or not.
        """
        first, place = found
        seq = next(live.iter_equal_or_larger(first), None)
        end = first + place.span - 1
        if seq is None or seq > end:
            return None
        if place.time_ms >= self._before_ms:
            return seq - 1, place.time_ms
        left: tuple[int, int] | None = None
        if place.last_ms >= self._before_ms:
            try:
                left = self._next_at(found, live)
            except Corrupt:
                # Nobody can be given these, so that they may go together. Others go in their time.
                return seq - 1, place.last_ms
            if left is not None:
                end = left[0] - 1
        part = live & chunk.span(seq, end)
        room = self._limit - len(over)
        if len(part) > room:
            over.update(part[:room])
            return part[room] - 1, place.time_ms
        over.update(part)
        return None if left is None else (left[0] - 1, left[1])

    def _next_at(self, found: Found, live: BitMap64) -> tuple[int, int] | None:
        """The first of the rows at this place that is there and not too old, and its time."""
        first, place = found
        decoded = self._reading.decoded(place, self._shard, first)
        times = decoded.times or [place.time_ms] * decoded.block.count
        at = bisect_left(times, self._before_ms)
        for index in range(at, len(times)):
            seq = int(decoded.seqs[index]) if decoded.seqs is not None else first + index
            if seq in live:
                return seq, times[index]
        return None
