"""The file of a WAL segment, the sizes of a log, and the holds of readers.

Rule 1: a `Segment` object stands for one generation of a recycled file; the next generation is
another object, so that no reader of the old one takes new bytes for old ones.
Rule 2: releasing a hold takes no lock, because the garbage collector may do it at any moment.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from millrace import errors, limits
from millrace.wal.disk import File
from millrace.wal.record import LogPosition, SegmentHeader


@dataclass(frozen=True, slots=True)
class LogShape:
    """Number and size of the segments of a log."""

    segment_bytes: int = limits.SEGMENT_BYTES
    segments_max: int = limits.LOG_SEGMENTS_MAX
    segments_free: int = limits.LOG_SEGMENTS_FREE
    """Segments kept ready ahead of need, in addition to the reserve."""
    segments_reserve: int = limits.LOG_SEGMENTS_RESERVE
    """Segments kept for appends with `reserve=True`, except one, which is for the next open."""
    held_bytes_max: int = limits.HELD_BYTES_MAX

    def __post_init__(self) -> None:
        sector = limits.SECTOR_BYTES
        if self.segment_bytes % sector or self.segment_bytes < 2 * sector:
            raise errors.Invalid(
                f"segment_bytes must be a multiple of {sector}, and at least two of them",
                field="segment_bytes",
                limit=sector,
            )
        if not 0 <= self.segments_reserve < self.segments_max:
            raise errors.Invalid(
                "segments_max must be above segments_reserve", field="segments_max"
            )


class SegmentDamage(NamedTuple):
    """Damage of a segment, and the ranges of its records that are valid all the same."""

    error: errors.Corrupt
    valid_ranges: list[tuple[int, int]]
    """Begin and end offsets of valid records, ascending."""

    def check(self, position: LogPosition) -> None:
        """Raise the error unless the bytes lie in a valid record."""
        at = bisect_right(self.valid_ranges, (position.offset, sys.maxsize)) - 1
        if at < 0 or position.offset + position.length > self.valid_ranges[at][1]:
            raise self.error.again()


class Segment:
    """A segment file in its present generation."""

    __slots__ = ("_damage", "_verify", "_view", "end", "file", "header", "holds", "name", "size")

    def __init__(self, file: File, header: SegmentHeader | None, *, size: int, end: int) -> None:
        self.file = file
        self.name = file.name
        self.size = size
        self.header = header
        self.end = end
        """Offset of the next record, if it fits."""
        self.holds = 0
        self._view: memoryview | None = None
        self._verify: Callable[[], SegmentDamage | None] | None = None
        self._damage: SegmentDamage | None = None

    def verify_on_first_read(self, verify: Callable[[], SegmentDamage | None]) -> None:
        """Run `verify` before the first byte is read; it returns the damage, or None."""
        self._verify = verify

    @property
    def generation(self) -> int:
        return self.header.generation if self.header is not None else 0

    def at(self, position: LogPosition) -> memoryview:
        """Return bytes of one record, without a copy.

        Raises:
            Corrupt: the record lies before the start of the replay, and is damaged.
        """
        damage = self._verified()
        if damage is not None:
            damage.check(position)
        return self._map()[position.offset : position.offset + position.length]

    def view(self) -> memoryview:
        """Return the memory map of the file; it is created once and serves every later generation.

        Raises:
            Corrupt: the records before the start of the replay were not verified, and are damaged.
        """
        damage = self._verified()
        if damage is not None:
            raise damage.error.again()
        return self._map()

    def _verified(self) -> SegmentDamage | None:
        if self._verify is not None:
            self._damage, self._verify = self._verify(), None
        return self._damage

    def _map(self) -> memoryview:
        if self._view is None:
            self._view = self.file.map()
        return self._view

    def renewed(self, header: SegmentHeader) -> Segment:
        """Return the same file as the segment of another generation."""
        segment = Segment(self.file, header, size=self.size, end=limits.SECTOR_BYTES)
        segment._view = self._view
        return segment


class LiveSegment(NamedTuple):
    """A generation that the log keeps, as `WriteAheadLog.segments` lists it."""

    generation: int
    used_bytes: int
    """Bytes up to the end of its last record; the whole size before the start of the replay."""
    is_held: bool


class Hold:
    """A reference count of a reader on a segment, which is not overwritten until it is released.

    It is released by `release`, at the end of a `with` block, or with the last reference to it: an
    exported buffer can keep it as its base.
    """

    __slots__ = ("_returned", "_segment", "generation")

    def __init__(self, segment: Segment, returned: deque[Segment]) -> None:
        self.generation = segment.generation
        self._segment: Segment | None = segment
        self._returned = returned

    def buffer(self, position: LogPosition) -> memoryview:
        """Return the bytes at the position, without a copy, valid until the hold is released."""
        segment = self._segment
        if segment is None or segment.generation != position.generation:
            raise errors.Invalid(
                f"generation {position.generation} is not held here", field="position"
            )
        return segment.at(position)

    def segment(self) -> Segment:
        """Return the segment, which may be read until the hold is released."""
        if self._segment is None:
            raise errors.Invalid("it was given back", field="hold")
        return self._segment

    def release(self) -> None:
        """Release the segment; releasing twice changes nothing."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self._returned.append(segment)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class Loan(NamedTuple):
    """Bytes for a long-lived reader: a view with its hold, or a copy without one."""

    view: memoryview
    hold: Hold | None
