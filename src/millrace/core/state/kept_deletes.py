"""Live deletes (rows without a body), by the second of their publish, until they expire by age.

Rule 1: time never falls within a shard, so that seqs rise from second to second, and the second of
a seq is found by binary search. A queue that keeps its deletes for a day has up to 86,400 seconds,
and each row that ends is looked up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from pyroaring import BitMap64


class KeptDeletes:
    """The live deletes of a shard."""

    __slots__ = ("_ends", "_seconds", "_sets", "seqs")

    def __init__(self) -> None:
        self.seqs = BitMap64()
        """All of them. Read-only."""
        self._seconds: list[int] = []
        self._ends: list[int] = []
        """The last seq that each second ever had."""
        self._sets: dict[int, BitMap64] = {}

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def __iter__(self) -> Iterator[tuple[int, BitMap64]]:
        """Yield each second and its seqs, oldest first."""
        return ((second, self._sets[second]) for second in self._seconds)

    def add(self, second: int, seqs: BitMap64) -> None:
        """Add seqs above all others, of the latest second."""
        if not seqs:
            return
        if second in self._sets:
            self._sets[second] |= seqs
            self._ends[-1] = seqs.max()
        else:
            self._sets[second] = seqs.copy()
            self._seconds.append(second)
            self._ends.append(seqs.max())
        self.seqs |= seqs

    def discard(self, seqs: BitMap64) -> list[int]:
        """Remove those of `seqs` that are here; returns the changed seconds."""
        present = seqs & self.seqs
        if not present:
            return []
        self.seqs -= present
        changed: list[int] = []
        low = 0
        while present:
            at = bisect_left(self._ends, present.min(), low)
            end, second = self._ends[at], self._seconds[at]
            rest = self._sets[second] - present
            present.remove_range(0, end + 1)
            changed.append(second)
            if rest:
                self._sets[second] = rest
                low = at + 1
            else:
                del self._sets[second], self._seconds[at], self._ends[at]
                low = at
        return changed

    def get(self, second: int) -> BitMap64 | None:
        """Return the deletes of a second, or None if none is left."""
        return self._sets.get(second)

    def oldest(self) -> int | None:
        """Return the first second with any delete."""
        return self._seconds[0] if self._seconds else None
