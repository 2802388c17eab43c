"""The keys of a growing table in order, for those who ask for the first ones from somewhere on.

Rule 1: nobody pays for the order who does not ask for it: new keys are sorted when one does.
Rule 2: a key is sorted a few times, however often it is asked: each run of sorted keys is less than
half as long as the one before it, so that there are few of them.
Rule 3: no key is ever taken out of the table.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Generic, TypeVar

V = TypeVar("V")


class KeyOrder(Generic[V]):
    """The keys of one table, in order."""

    __slots__ = ("_runs", "_table")

    def __init__(self, table: dict[bytes, V]) -> None:
        self._table = table
        self._runs: tuple[list[bytes], ...] = ()
        """Replaced whole, so that any thread may ask for a table that no longer grows."""

    def between(self, low: bytes, high: bytes, most: int | None = None) -> list[bytes]:
        """The first keys within [low, high), up to so many."""
        found: list[bytes] = []
        for run in self._sorted():
            first = bisect_left(run, low)
            last = bisect_left(run, high, first)
            found += run[first : last if most is None else min(last, first + most)]
        found.sort()
        return found[:most]

    def last_before(self, high: bytes) -> bytes | None:
        """The last key below `high`."""
        ends = [(run, bisect_left(run, high)) for run in self._sorted()]
        return max((run[end - 1] for run, end in ends if end), default=None)

    def _sorted(self) -> tuple[list[bytes], ...]:
        runs = self._runs
        new = len(self._table) - sum(map(len, runs))
        if new:
            # A table keeps the order in which its keys came: the new ones are its last.
            newest = sorted(islice(reversed(self._table), new))
            known = list(runs)
            while known and len(known[-1]) <= 2 * len(newest):
                newest = sorted(known.pop() + newest)
            self._runs = runs = (*known, newest)
        return runs
