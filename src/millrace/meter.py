"""Counting what happens: cheap enough to be done always."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Upper bounds of times: from a fast disk's sync to what somebody would complain about."""

BYTES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """A histogram at a moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """As of `Histogram`."""
    sum: float


class Gauges(msgspec.Struct, frozen=True, array_like=True):
    """What an engine has counted since it was opened, and how large it is."""

    commit_seconds: Spread
    commit_bytes: Spread
    commit_entries: Spread
    sync_seconds: Spread
    sealed_live_bytes: int
    sealed_dead_bytes: int
    """About; what is dead goes when there is enough of it."""
    log_bytes: int
    """Of the log, as far as it is kept."""
    disk_free_bytes: int
    is_refusing: bool
    """To publish is refused: the disk or the memory is short."""
    damaged: int
    """Files that were found damaged."""
    beside: tuple[str, ...] = ()
    """What each process that speaks for the engine has counted, in its own words."""


class Histogram:
    """How many values were at most as large as each bound, how many there were, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of the values above the bound before, up to each bound; the last place: above all."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def spread(self) -> Spread:
        """As it is now."""
        return Spread(tuple(self.bounds), tuple(self.counts), self.sum)

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


class Commits:
    """The records of a log."""

    __slots__ = ("bytes", "entries", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        """From the write to the end of its sync."""
        self.bytes = Histogram(BYTES)
        self.entries = Histogram(COUNTS)
        """Batches of commands that were written together."""

    def note(self, seconds: float, size: int, entries: int) -> None:
        """A record was written and synced."""
        self.seconds.add(seconds)
        self.bytes.add(size)
        self.entries.add(entries)
