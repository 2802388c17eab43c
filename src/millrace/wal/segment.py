"""A segment's file, the shape of a log, and the claims of readers.

Rule 1: a `Segment` object stands for one life of a file; the next life is another object, so that
nobody who still has the old one takes new bytes for old.
Rule 2: giving a hold back takes no lock, because the garbage collector may do it at any moment.
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
from millrace.wal.files import File
from millrace.wal.record import Position, SegmentHeader


@dataclass(frozen=True, slots=True)
class LogShape:
    """How many segments a log has, and how large they are."""

    segment_bytes: int = limits.SEGMENT_BYTES
    segments_max: int = limits.LOG_SEGMENTS_MAX
    segments_free: int = limits.LOG_SEGMENTS_FREE
    """Kept ready ahead of need, beside the reserve."""
    segments_reserve: int = limits.LOG_SEGMENTS_RESERVE
    """Kept for appends with `reserve=True`, but for one: that is for the next open."""
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


class Damage(NamedTuple):
    """What is wrong with a segment, and which of its records are whole all the same."""

    error: errors.Corrupt
    whole: list[tuple[int, int]]
    """Where whole records begin and end, rising."""

    def check(self, position: Position) -> None:
        """Raise the error unless the bytes lie in a whole record."""
        at = bisect_right(self.whole, (position.offset, sys.maxsize)) - 1
        if at < 0 or position.offset + position.length > self.whole[at][1]:
            raise self.error.again()


class Segment:
    """One file, and what is known of it in its present life."""

    __slots__ = ("_damage", "_proof", "_view", "end", "file", "header", "holds", "name", "size")

    def __init__(self, file: File, header: SegmentHeader | None, *, size: int, end: int) -> None:
        self.file = file
        self.name = file.name
        self.size = size
        self.header = header
        self.end = end
        """Where the next record begins, if it fits."""
        self.holds = 0
        self._view: memoryview | None = None
        self._proof: Callable[[], Damage | None] | None = None
        self._damage: Damage | None = None

    def prove_first(self, proof: Callable[[], Damage | None]) -> None:
        """Have `proof` run before any byte is read; it says what is damaged."""
        self._proof = proof

    @property
    def generation(self) -> int:
        return self.header.generation if self.header is not None else 0

    def at(self, position: Position) -> memoryview:
        """Return bytes of one record, without a copy.

        Raises:
            Corrupt: the record lies before the start of the replay, and is damaged.
        """
        damage = self._proven()
        if damage is not None:
            damage.check(position)
        return self._map()[position.offset : position.offset + position.length]

    def view(self) -> memoryview:
        """Return the file's map; it is made once and serves every later life.

        Raises:
            Corrupt: what lies before the start of the replay was never summed, and is damaged.
        """
        damage = self._proven()
        if damage is not None:
            raise damage.error.again()
        return self._map()

    def _proven(self) -> Damage | None:
        if self._proof is not None:
            self._damage, self._proof = self._proof(), None
        return self._damage

    def _map(self) -> memoryview:
        if self._view is None:
            self._view = self.file.map()
        return self._view

    def renewed(self, header: SegmentHeader) -> Segment:
        """Return the same file at the beginning of another life."""
        segment = Segment(self.file, header, size=self.size, end=limits.SECTOR_BYTES)
        segment._view = self._view
        return segment


class LiveSegment(NamedTuple):
    """A generation that the log keeps, as `Log.segments` lists it."""

    generation: int
    used_bytes: int
    """Up to its last record; the whole size where it lies before the start of the replay."""
    is_held: bool


class Hold:
    """A reader's claim on a segment: what it holds does not change until it is released.

    It is released by `release`, at the end of a `with` block, or when the last reference goes: an
    exported buffer can keep it as its base.
    """

    __slots__ = ("_returned", "_segment", "generation")

    def __init__(self, segment: Segment, returned: deque[Segment]) -> None:
        self.generation = segment.generation
        self._segment: Segment | None = segment
        self._returned = returned

    def buffer(self, position: Position) -> memoryview:
        """Return the bytes at the position, without a copy, valid until the hold is released."""
        segment = self._segment
        if segment is None or segment.generation != position.generation:
            raise errors.Invalid(
                f"generation {position.generation} is not held here", field="position"
            )
        return segment.at(position)

    def segment(self) -> Segment:
        """Return what is held, to be read as long as it is."""
        if self._segment is None:
            raise errors.Invalid("it was given back", field="hold")
        return self._segment

    def release(self) -> None:
        """Give the segment back; twice changes nothing."""
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
    """Bytes for a reader that keeps them: a view with its hold, or a copy without one."""

    view: memoryview
    hold: Hold | None
