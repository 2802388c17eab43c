"""Retention scan: finds live messages that are older than a time, by the times of row locations.

Dead rows are skipped by their marks, a chunk at a time, and gaps by the next location. A location
whose rows have several times is read; the rows of a damaged one count as old as the last of them.
"""

from __future__ import annotations

from bisect import bisect_left

from pyroaring import BitMap64

from millrace import limits
from millrace.core.needs import ExpiredRows
from millrace.core.state.fold import Reader
from millrace.errors import Corrupt
from millrace.store import chunk
from millrace.store.layered_index import LayeredIndex
from millrace.store.row_index import Located
from millrace.store.row_reader import RowReader


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
