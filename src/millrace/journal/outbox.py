"""What waits for the log, and how it is gathered into records.

Rule 1: entries are written in the order of their submission, so that each group's are.
Rule 2: a suffix that is written again comes before everything that waits, and whole: it is all that
the log holds of its group at that moment, and what waits comes after it.
Rule 3: near the end of the log, what may use the reserve does not share a record with what may not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from millrace.core.changes import Entry, EntryKind
from millrace.core.codec import encode_entry
from millrace.core.column import Buffer
from millrace.core.model import GroupId, Index
from millrace.errors import MillraceError
from millrace.journal.suffix import Suffixes
from millrace.wal.record import Position

Synced = Callable[[Entry, Position], None]

Failed = Callable[[MillraceError], None]
"""Told that what a group has in the writer will not be synced.

After `Fatal` the outcome is unknown, and the writer has ended; otherwise nothing was written.
"""


class Job(NamedTuple):
    """An entry on its way to the log, encoded as if it stood alone in its record."""

    entry: Entry
    buffers: list[Buffer]
    size: int
    synced: Synced
    failed: Failed
    reserve: bool
    is_again: bool = False
    """It is in the log already, and is written once more."""

    def place(self, offset: int) -> None:
        """It begins at this byte of its record."""
        if offset:
            for batch in self.entry.batches:
                batch.places = [(start + offset, length) for start, length in batch.places]

    def alone(self) -> Job:
        """The same job, whose place in a record is not known any more."""
        return self._replace(buffers=encode_entry(self.entry, 0))

    def moves_index(self) -> bool:
        """Whether it changes which index of its group comes next."""
        return not self.is_again and self.entry.kind in (EntryKind.DATA, EntryKind.VOID)


class Outbox:
    """Entries that wait, and suffixes that are to be written again."""

    def __init__(self, suffixes: Suffixes, *, bytes_target: int, bytes_max: int) -> None:
        self._suffixes = suffixes
        self._bytes_target = bytes_target
        self._bytes_max = bytes_max
        self._waiting: deque[Job] = deque()
        self._again: dict[GroupId, asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._again)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._waiting)

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def add_first(self, jobs: deque[Job]) -> None:
        """Put back what was taken."""
        self._waiting.extendleft(reversed(jobs))

    def add_again(self, group: GroupId) -> asyncio.Future[None]:
        """Write the group's suffix again; the future is done when that is synced."""
        future = self._again.get(group)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            if group in self._suffixes:
                self._again[group] = future
            else:
                future.set_result(None)
        return future

    def take(self, *, is_tight: bool) -> list[Job]:
        """The next record."""
        jobs, length = self._take_again()
        while self._waiting:
            job = self._waiting[0]
            if jobs and (
                length + job.size > self._bytes_target
                or (is_tight and job.reserve != jobs[0].reserve)
            ):
                break
            jobs.append(self._waiting.popleft())
            length += job.size
        return jobs

    def _take_again(self) -> tuple[list[Job], int]:
        jobs: list[Job] = []
        length = 0
        for group, future in list(self._again.items()):
            if jobs and length + self._suffixes.size(group) > self._bytes_max:
                break
            del self._again[group]
            again = self._jobs_again(group, future)
            length += sum(job.size for job in again)
            jobs += again
        return jobs, length

    def _jobs_again(self, group: GroupId, future: asyncio.Future[None]) -> list[Job]:
        copies = self._suffixes.copies(group)

        def synced(entry: Entry, position: Position) -> None:
            if entry is copies[-1] and not future.done():
                future.set_result(None)

        if not copies and not future.done():
            future.set_result(None)
        jobs: list[Job] = []
        for copy in copies:
            buffers = encode_entry(copy, 0)
            size = size_of(buffers)
            jobs.append(
                Job(copy, buffers, size, synced, _tells(future), reserve=True, is_again=True)
            )
        return jobs

    def take_groups(self, groups: set[GroupId]) -> list[Job]:
        """Everything that these groups have here; the rest stays, in order."""
        jobs = [job for job in self._waiting if job.entry.group in groups]
        self._waiting = deque(job for job in self._waiting if job.entry.group not in groups)
        return jobs

    def take_all(self) -> list[Failed]:
        """Empty it; who must be told is returned."""
        told = [job.failed for job in self._waiting]
        told += [_tells(future) for future in self._again.values()]
        self._waiting.clear()
        self._again.clear()
        return told


def uncommitted_before(entry: Entry, suffixes: Suffixes, jobs: Iterator[Job]) -> int:
    """Bytes of the group's suffix when the entry gets there: before it, and not replaced."""
    low, size = entry.index, 0
    for job in jobs:
        other = job.entry
        if other.group != entry.group or not job.moves_index():
            continue
        if other.kind is EntryKind.VOID:
            low = min(low, Index(other.index + 1))
        else:
            low = min(low, other.index)
            size += job.size if other.index < entry.index else 0
    return size + suffixes.size(entry.group, low)


def size_of(buffers: list[Buffer]) -> int:
    return sum(
        buffer.nbytes if isinstance(buffer, memoryview) else len(buffer) for buffer in buffers
    )


def _tells(future: asyncio.Future[None]) -> Failed:
    def failed(error: MillraceError) -> None:
        if not future.done():
            future.set_exception(error)

    return failed
