"""Histograms and gauges of the engine, cheap enough to be always on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Bucket bounds for durations: from the sync of a fast disk to what a user would notice as slow."""

BYTES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class HistogramSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """Values of a histogram at one moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Count per bucket, as in `Histogram`."""
    sum: float


class Gauges(msgspec.Struct, frozen=True, array_like=True):
    """Metrics of an engine since it was opened, and its sizes."""

    commit_seconds: HistogramSnapshot
    commit_bytes: HistogramSnapshot
    commit_entries: HistogramSnapshot
    sync_seconds: HistogramSnapshot
    sealed_live_bytes: int
    sealed_dead_bytes: int
    """Approximate; dead rows are removed once there are enough of them."""
    log_bytes: int
    """Size of the retained log."""
    disk_free_bytes: int
    is_refusing: bool
    """True if publishing is refused because disk or memory is short."""
    damaged: int
    """Number of files that were found damaged."""
    beside: tuple[str, ...] = ()
    """Metrics of each front-end process, as text."""


class Histogram:
    """Counts of values per bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values above the previous bound up to each bound; the last bucket has no upper bound."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def spread(self) -> HistogramSnapshot:
        """Return a snapshot of the histogram."""
        return HistogramSnapshot(tuple(self.bounds), tuple(self.counts), self.sum)

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


class CommitMetrics:
    """Metrics of the WAL's records."""

    __slots__ = ("bytes", "entries", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        """Seconds from the write to the end of its sync."""
        self.bytes = Histogram(BYTES)
        self.entries = Histogram(COUNTS)
        """Number of entries per record."""

    def note(self, seconds: float, size: int, entries: int) -> None:
        """Count a record that was written and synced."""
        self.seconds.add(seconds)
        self.bytes.add(size)
        self.entries.add(entries)
