"""The pool of WAL segments: allocation, recycling, and holds of readers.

Rule 1: a segment is filled with zeros and synced, and so is its name, before it counts as ready.
Until then it has a temporary name, and is removed at the next open.
Rule 2: a segment that a reader holds is never overwritten. When the log no longer needs it, it is
unlinked instead, and a new one is created; the reader's map stays valid.
Rule 3: the lock guards the lists and is never held during I/O.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from millrace import errors, limits
from millrace.wal.disk import Disk
from millrace.wal.record import LogPosition
from millrace.wal.segment import (
    Hold,
    LiveSegment,
    Loan,
    LogShape,
    Segment,
)

SEGMENT_SUFFIX = ".seg"
UNFINISHED_SUFFIX = ".new"
"""Suffix of a segment that is being created; open removes nothing else."""


class SegmentPool:
    """All segments of one log."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        shape: LogShape,
        *,
        live: Iterable[Segment],
        free: Iterable[Segment],
        number: int,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._shape = shape
        self._number = number
        self._moving = 0
        """Number of segments that are in no list now: being created, or beginning a generation."""
        self._lock = threading.Lock()
        self._live = {segment.generation: segment for segment in live}
        self._unlinked: list[Segment] = []
        self._returned: deque[Segment] = deque()
        self.ready: deque[Segment] = deque()
        """Changed under the lock; its length may be read without it."""
        self.zeroed_bytes = 0
        unfit = self._recycle(free)
        self._drop(unfit, unlink=True)

    def take(self, *, spare: int) -> Segment | None:
        """Return a ready segment for its next generation, unless no more than `spare` are left."""
        with self._lock:
            if len(self.ready) <= spare:
                return None
            self._moving += 1
            return self.ready.popleft()

    def enter(self, segment: Segment) -> None:
        """Add the segment, whose header is durable, as the newest one in use."""
        with self._lock:
            self._moving -= 1
            self._live[segment.generation] = segment

    def live(self) -> list[LiveSegment]:
        """Return the generations in use, oldest first."""
        with self._lock:
            self._count_returned()
            return [
                LiveSegment(generation, segment.end, segment.holds > 0)
                for generation, segment in self._live.items()
            ]

    def find(self, generation: int) -> Segment | None:
        """Return the segment of the generation, or None if it was released."""
        with self._lock:
            return self._live.get(generation)

    def following(self, generation: int) -> Segment | None:
        """Return the segment of the next generation in use, if there is one."""
        with self._lock:
            later = min((other for other in self._live if other > generation), default=None)
            return self._live[later] if later is not None else None

    def hold(self, generation: int) -> Hold | None:
        """Hold the generation, or return None if the log no longer has it."""
        with self._lock:
            segment = self._live.get(generation)
            if segment is None:
                return None
            segment.holds += 1
        return Hold(segment, self._returned)

    def lend(self, position: LogPosition) -> Loan | None:
        """Return the bytes with a hold, or as a copy if readers hold too much already."""
        with self._lock:
            self._count_returned()
            segment = self._live.get(position.generation)
            if segment is None:
                return None
            held = sum(other.size for other in self._live.values() if other.holds)
            held += sum(other.size for other in self._unlinked)
            is_kept = segment.holds > 0 or held + segment.size <= self._shape.held_bytes_max
            segment.holds += 1
        hold = Hold(segment, self._returned)
        view = hold.buffer(position)
        if is_kept:
            return Loan(view, hold)
        with hold:
            return Loan(memoryview(bytes(view)), None)

    def unlinked_bytes(self) -> int:
        """Return the size of the segments that are no longer in the log but still held."""
        with self._lock:
            self._count_returned()
            return sum(segment.size for segment in self._unlinked if segment.holds)

    def release_before(self, generation: int) -> int:
        """Recycle the segments of older generations, but never the newest; return their number."""
        with self._lock:
            self._count_returned()
            newest = max(self._live, default=0)
            old = [number for number in self._live if number < min(generation, newest)]
            unfit = self._recycle(self._live.pop(number) for number in old)
            held = [segment for segment in unfit if segment.holds]
            self._unlinked += held
        self._drop([segment for segment in unfit if not segment.holds], unlink=True)
        for segment in held:
            self._disk.remove(segment.name)
        self.sweep()
        return len(old)

    def sweep(self) -> None:
        """Close the unlinked segments that readers have released, which frees their disk space."""
        with self._lock:
            self._count_returned()
            done = [segment for segment in self._unlinked if not segment.holds]
            self._unlinked = [segment for segment in self._unlinked if segment.holds]
        self._drop(done, unlink=False)

    def make(self, *, ready: int, is_urgent: bool = False) -> bool:
        """Create one more segment if fewer than `ready` are ready, and `segments_max` permits it.

        `is_urgent` ignores `segments_max`: an open must be able to begin its generation, or a
        process that is killed repeatedly before it can seal anything would leave a folder that
        cannot be opened.

        Returns True if a segment was created; it is durable and ready.

        Raises:
            Full: the disk has no room for it; nothing is left behind.
        """
        with self._lock:
            count = len(self._live) + len(self.ready) + self._moving
            if len(self.ready) >= ready or (count >= self._shape.segments_max and not is_urgent):
                return False
            self._moving += 1
            self._number += 1
            number = self._number
        try:
            segment = self._fill(f"{self._folder}/{number:08d}")
            with self._lock:
                self.ready.append(segment)
                self.zeroed_bytes += segment.size
        finally:
            with self._lock:
                self._moving -= 1
        return True

    def close(self) -> None:
        """Close every file. Maps that readers have stay valid."""
        with self._lock:
            segments = [*self._live.values(), *self.ready, *self._unlinked]
            self._live.clear()
            self.ready.clear()
            self._unlinked.clear()
        self._drop(segments, unlink=False)

    def _fill(self, stem: str) -> Segment:
        name, size = stem + UNFINISHED_SUFFIX, self._shape.segment_bytes
        file = self._disk.open(name, create_bytes=size)
        zeros = memoryview(bytes(min(size, limits.PREPARE_STEP_BYTES)))
        try:
            for offset in range(0, size, len(zeros)):
                if offset:
                    file.sync()
                file.write([zeros[: size - offset]], offset)
            file.sync_all()
            self._disk.rename(name, stem + SEGMENT_SUFFIX)
            name = stem + SEGMENT_SUFFIX
            self._disk.sync_folder(self._folder)
            ready = self._disk.open(name)
        except errors.Full:
            self._disk.remove(name)
            raise
        finally:
            file.close()
        return Segment(ready, None, size=size, end=limits.SECTOR_BYTES)

    def _recycle(self, segments: Iterable[Segment]) -> list[Segment]:
        """Make the segments ready for reuse; return the ones that are held or have another size."""
        unfit = []
        for segment in segments:
            if segment.holds or segment.size != self._shape.segment_bytes:
                unfit.append(segment)
            else:
                self.ready.append(segment)
        return unfit

    def _drop(self, segments: Iterable[Segment], *, unlink: bool) -> None:
        for segment in segments:
            segment.file.close()
            if unlink:
                self._disk.remove(segment.name)

    def _count_returned(self) -> None:
        """Decrement the counts of released holds; the caller has the lock."""
        while self._returned:
            self._returned.popleft().holds -= 1
