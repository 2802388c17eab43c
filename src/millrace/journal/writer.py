"""The one writer of a node's log.

Everything that waits, of every group, goes into the next record: one write, one sync. While a
record is being synced, the deciders go on; what they decide meanwhile is the next record.

Rule 1: one record in flight.
Rule 2: nobody is told before the record is synced, and then in the order of the log.
Rule 3: a failed write ends the writer for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from millrace import limits
from millrace.core.block import Buffer
from millrace.core.changes import Entry
from millrace.core.codec import encode_entry
from millrace.errors import Closed, DiskFailed, Fatal, MillraceError
from millrace.log.lane import Lane
from millrace.log.record import Mark, Position
from millrace.log.segments import Log

Synced = Callable[[Entry, Position], None]
Failed = Callable[[MillraceError], None]


class _Job(NamedTuple):
    entry: Entry
    synced: Synced
    failed: Failed
    reserve: bool


class LogWriter:
    """Gathers entries into records and writes them, on a lane or at once."""

    def __init__(self, log: Log, lane: Lane) -> None:
        self._log = log
        self._lane = lane
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Job] = deque()
        self._writing: list[_Job] = []
        self._error: MillraceError | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self._written_at = 0.0
        self._marked = True
        self._marking = False
        self._sync_seconds = 0.0
        self.record_bytes_max = log.record_bytes_max - limits.RECORD_SLACK_BYTES
        self.mark: Mark = log.mark()
        """The place after the last record whose entries were all told of."""

    def submit(
        self, entry: Entry, synced: Synced, failed: Failed, *, alone: bool, reserve: bool
    ) -> None:
        """Write the entry with the next record.

        Raises:
            Fatal: the writer has ended.
            Closed: it was closed.
        """
        if self._error is not None:
            raise self._error
        self._waiting.append(_Job(entry, synced, failed, reserve))
        if not self.busy:
            self._write(alone=alone)

    @property
    def busy(self) -> bool:
        """Whether a record or an end mark is being written."""
        return bool(self._writing) or self._marking

    @property
    def error(self) -> MillraceError | None:
        """What ended the writer."""
        return self._error

    def _write(self, *, alone: bool) -> None:
        jobs: list[_Job] = []
        buffers: list[Buffer] = []
        length = 0
        while self._waiting:
            encoded = encode_entry(self._waiting[0].entry, length)
            size = sum(map(_length, encoded))
            if jobs and length + size > limits.RECORD_BYTES_TARGET:
                break
            jobs.append(self._waiting.popleft())
            buffers.extend(encoded)
            length += size
        self._writing = jobs
        reserve = all(job.reserve for job in jobs)

        def append() -> tuple[Position, Mark]:
            position = self._log.append(buffers, reserve=reserve)
            return position, self._log.mark()

        if (
            alone
            and length <= limits.INLINE_RECORD_BYTES_MAX
            and self._sync_seconds < limits.INLINE_SYNC_SECONDS_MAX
        ):
            began = self._loop.time()
            try:
                result = append()
            except MillraceError as error:
                self._fail(error)
                return
            self._note_sync(self._loop.time() - began)
            self._done(*result)
            return
        began = self._loop.time()
        future = self._lane.submit(append)
        future.add_done_callback(lambda future: self._finish(future, began))

    def _finish(self, future: asyncio.Future[tuple[Position, Mark]], began: float) -> None:
        error = future.exception()
        if error is not None:
            wrapped = error if isinstance(error, MillraceError) else _unexpected(error)
            self._fail(wrapped)
            return
        self._note_sync(self._loop.time() - began)
        self._done(*future.result())

    def _note_sync(self, seconds: float) -> None:
        # A running mean that forgets: a slow disk is noticed within some ten records.
        self._sync_seconds += (min(seconds, 0.1) - self._sync_seconds) / 8

    def _done(self, position: Position, mark: Mark) -> None:
        jobs, self._writing = self._writing, []
        self._marked = False
        self._written_at = self._loop.time()
        for job in jobs:
            job.synced(job.entry, position)
        self.mark = mark
        if self._waiting and not self._writing and self._error is None:
            self._write(alone=False)
        elif self._quiet is None:
            self._quiet = self._loop.call_later(limits.END_MARK_SECONDS, self._mark_end)

    def _fail(self, error: MillraceError) -> None:
        if isinstance(error, Fatal):
            self._error = error
        jobs = [*self._writing, *self._waiting]
        self._writing = []
        self._waiting.clear()
        for failed in dict.fromkeys(job.failed for job in jobs):
            failed(error)

    # --- The end of the log -------------------------------------------------------------------

    def _mark_end(self) -> None:
        """Write an end mark once nothing was written for a while, behind all that was."""
        self._quiet = None
        if self._error is not None or self._marked:
            return
        rest = self._written_at + limits.END_MARK_SECONDS - self._loop.time()
        if self.busy or rest > 0.001:
            delay = max(rest, limits.END_MARK_SECONDS / 10)
            self._quiet = self._loop.call_later(delay, self._mark_end)
            return
        self._marked = self._marking = True
        future = self._lane.submit(self._log.mark_end)
        future.add_done_callback(self._end_marked)

    def _end_marked(self, future: asyncio.Future[None]) -> None:
        self._marking = False
        error = future.exception()
        if error is not None:
            self._fail(error if isinstance(error, MillraceError) else _unexpected(error))
        elif self._waiting:
            self._write(alone=False)

    def close(self) -> None:
        """Take nothing more. What is being written must have ended."""
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if self._error is None:
            self._error = Closed("the engine was closed; open it again")

    def room(self, *, reserve: bool) -> int:
        """Bytes that may be appended now."""
        return self._log.room(reserve=reserve)


def _length(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _unexpected(error: BaseException) -> DiskFailed:
    return DiskFailed(f"writing the log failed: {error!r}")
