"""The only writer of a node's WAL: batches entries of all commit groups into records.

All queued entries, of every group, go into the next record: one write, one sync. While a record is
being synced, the deciders go on; their new entries are the next record.

Rule 1: one record in flight.
Rule 2: callbacks run after the record is synced, in the order of the log.
Rule 3: a failed write stops the writer for ever, and so does a callback that raises: entries that
are synced and not folded are for recovery. The failure callback of every group runs, whether the
group was writing or not.
Rule 4: a refusal before anything was written does not stop the writer. The groups in that record
lose all their entries in the writer, since later entries depend on earlier ones; others go on.
Rule 5: a group has one decider. Epochs only rise, and a decider of a lower epoch cannot write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import NamedTuple

from millrace import limits
from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import encode_entry
from millrace.core.format.column import Buffer
from millrace.core.model import Epoch, GroupId, Index
from millrace.errors import Closed, DiskFailed, Fatal, Full, MillraceError, TooLarge, detached
from millrace.instruments import CommitMetrics
from millrace.journal.uncommitted import UncommittedSuffixes
from millrace.wal.io_thread import IoThread
from millrace.wal.record import LogMark, LogPosition
from millrace.wal.write_ahead_log import WriteAheadLog


class LogWriter:
    """Gathers entries into records and writes them, on an I/O thread, or inline if small."""

    def __init__(
        self, log: WriteAheadLog, io_thread: IoThread, suffixes: UncommittedSuffixes | None = None
    ) -> None:
        self._log = log
        self._io_thread = io_thread
        self._loop = asyncio.get_running_loop()
        self._writing: list[PendingEntry] = []
        self._owners: dict[GroupId, tuple[Epoch, Failed]] = {}
        self._error: MillraceError | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._written_at = 0.0
        self._is_end_marked = True
        self._marking = False
        self._rolling: asyncio.Future[None] | None = None
        self._is_notifying = False
        self.commits = CommitMetrics()
        """Counters of the written records."""
        self._record_bytes_target = min(limits.RECORD_BYTES_TARGET, log.record_bytes_max)
        self.record_bytes_max = log.record_bytes_max - limits.RECORD_SLACK_BYTES
        self.suffix_bytes_max = min(limits.UNCOMMITTED_BYTES_MAX, log.record_bytes_max)
        """Limit of uncommitted bytes in the log for a group that commits late."""
        self.suffixes = UncommittedSuffixes() if suffixes is None else suffixes
        """Uncommitted entries in the log of groups that commit late, and every group's facts."""
        self._queue = WriteQueue(
            self.suffixes, bytes_target=self._record_bytes_target, bytes_max=log.record_bytes_max
        )
        self.mark: LogMark = log.mark()
        """The mark after the last record whose callbacks have all run."""

    # --- Who writes -----------------------------------------------------------------------------

    def own(self, group: GroupId, epoch: Epoch, failed: Failed) -> None:
        """Fence the group: from now on only the decider of this epoch may write for it.

        `failed` is called when the writer stops, whatever it is doing for the group then.

        Raises:
            Fatal: the group has a decider of this or a higher epoch, or its last one has not
                finished; two would write one index.
        """
        owner = self._owners.get(group)
        if owner is not None and owner[0] >= epoch:
            raise Fatal(f"group {group} has a decider of epoch {owner[0]}; {epoch} is too late")
        if any(job.entry.group == group and job.moves_index() for job in self._jobs()):
            raise Fatal(f"group {group} is still being written by its last decider")
        self._owners[group] = (epoch, failed)

    def check_owner(self, group: GroupId, epoch: Epoch) -> None:
        """Raise `Closed` if the group was handed over to a decider of a higher epoch."""
        if self._owners[group][0] != epoch:
            raise Closed("the queue was handed over before this was accepted; ask again")

    def submit(
        self, entry: Entry, synced: Synced, failed: Failed, *, alone: bool, reserve: bool
    ) -> None:
        """Queue the entry for the next record; `synced` or `failed` may run before this returns.

        Raises:
            TooLarge: no record could hold it.
            Full: the group has too much that is not committed; nothing was accepted (L7).
            Closed, Fatal: the writer has ended.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        # Encode now, while the previous record is synced; the offset in the record comes later.
        buffers = encode_entry(entry, 0)
        size = buffers_size(buffers)
        self._check_size(entry, size)
        self._queue.add(PendingEntry(entry, buffers, size, synced, failed, reserve))
        if not self.busy:
            self._write(alone=alone)

    def _jobs(self) -> chain[PendingEntry]:
        """Iterate over all entries that are being written or queued, in order."""
        return chain(self._writing, self._queue)

    def _check_size(self, entry: Entry, size: int) -> None:
        commits_late = entry.kind is EntryKind.DATA and entry.group in self.suffixes
        limit = self.suffix_bytes_max if commits_late else self._log.record_bytes_max
        if size > limit:
            raise TooLarge(
                f"{size} bytes at once are more than a record of the log holds; "
                "publish in parts, or stage them",
                field="rows",
                limit=limit,
            )
        if commits_late and size + uncommitted_before(entry, self.suffixes, self._jobs()) > limit:
            raise Full(
                "too much of this queue is written and not committed; send again when its "
                "replicas are back",
                field="uncommitted",
                limit=limit,
            )

    def rewrite_suffix(self, group: GroupId) -> asyncio.Future[None]:
        """Append the group's whole uncommitted suffix once more, in one record (L7).

        When the future is done, replay needs no older record for the group. The suffix is written
        before all queued entries: only then is it all that the log holds of the group.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        future = self._queue.add_rewrite(group)
        self._write_next()
        return future

    @property
    def busy(self) -> bool:
        """True while a record or an end mark is being written, or its callbacks run."""
        return bool(self._writing) or self._marking or self._is_notifying

    @property
    def error(self) -> MillraceError | None:
        """The error that stopped the writer, or None."""
        return self._error

    # --- Writing --------------------------------------------------------------------------------

    def _write(self, *, alone: bool) -> None:
        is_tight = self._log.room(reserve=False) < 2 * self._record_bytes_target
        jobs = self._queue.take(is_tight=is_tight)
        if not jobs:
            return
        self._writing = jobs
        buffers: list[Buffer] = []
        length = 0
        for job in jobs:
            job.place(length)
            buffers.extend(job.buffers)
            length += job.size
        reserve = all(job.reserve for job in jobs)

        def append() -> tuple[LogPosition, LogMark]:
            position = self._log.append(buffers, reserve=reserve)
            return position, self._log.mark()

        began = self._loop.time()
        if (
            not alone
            or length > limits.INLINE_RECORD_BYTES_MAX
            or self._log.sync_seconds >= limits.INLINE_SYNC_SECONDS_MAX
        ):
            future = self._io_thread.submit(append)
            future.add_done_callback(lambda future: self._finish(future, began, length))
            return
        try:
            result = append()
        except MillraceError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(_unexpected(error))
            raise
        else:
            self._note_commit(self._loop.time() - began, length)
            self._done(*result)

    def _finish(
        self, future: asyncio.Future[tuple[LogPosition, LogMark]], began: float, size: int
    ) -> None:
        error = future.exception()
        if error is not None:
            self._fail(error if isinstance(error, MillraceError) else _unexpected(error))
            return
        self._note_commit(self._loop.time() - began, size)
        self._done(*future.result())

    def _note_commit(self, seconds: float, size: int) -> None:
        self.commits.note(seconds, size, len(self._writing))

    def _done(self, position: LogPosition, mark: LogMark) -> None:
        jobs, self._writing = deque(self._writing), []
        self._is_end_marked = False
        self._written_at = self._loop.time()
        # A callback may submit again: that waits until all callbacks of this record have run.
        self._is_notifying = True
        try:
            while jobs:
                job = jobs[0]
                self.suffixes.synced(job.entry, position, job.size)
                job.synced(job.entry, position)
                jobs.popleft()
        except BaseException as error:
            self._queue.put_back(jobs)
            self._end(error if isinstance(error, Fatal) else _unexpected(error))
            raise
        finally:
            self._is_notifying = False
        self.mark = mark
        self._write_next()
        if not self.busy and self._error is None and self._idle_timer is None:
            self._idle_timer = self._loop.call_later(limits.END_MARK_SECONDS, self._mark_end)

    def _write_next(self) -> None:
        if self.busy or self._error is not None:
            return
        if self._rolling is not None:
            self._marking = True
            self._io_thread.submit(self._roll).add_done_callback(self._rolled)
        elif self._queue:
            self._write(alone=False)

    # --- Failing --------------------------------------------------------------------------------

    def _fail(self, error: MillraceError) -> None:
        if isinstance(error, Fatal):
            self._end(error)
        else:
            self._refuse(error)

    def _end(self, error: Fatal) -> None:
        """Stop for ever, as the outcome of the record is unknown; call every failure callback."""
        self._error = error = detached(error.again())
        if self._rolling is not None and not self._rolling.done():
            self._rolling.set_exception(error)
        callbacks = [job.failed for job in self._writing] + self._queue.clear()
        self._writing = []
        self._notify([*callbacks, *(failed for _, failed in self._owners.values())], error)

    def _refuse(self, error: MillraceError) -> None:
        """Fail the groups of a record of which nothing was written; the other groups go on."""
        jobs, self._writing = self._writing, []
        again = [job for job in jobs if job.is_rewrite]
        if again:
            # The suffix is still in the log at its old position: a failed rewrite changes nothing,
            # and the other entries may fit without it.
            self._queue.put_back(deque(job.alone() for job in jobs if not job.is_rewrite))
            jobs = again
        else:
            jobs += self._queue.remove_groups({job.entry.group for job in jobs})
        self._notify([job.failed for job in jobs], error)
        self._write_next()

    def _notify(self, callbacks: Iterable[Failed], error: MillraceError) -> None:
        """Call each callback once, even if one of them raises."""
        was_notifying, self._is_notifying = self._is_notifying, True
        try:
            with ExitStack() as stack:
                for failed in reversed(dict.fromkeys(callbacks)):
                    stack.callback(failed, error)
        finally:
            self._is_notifying = was_notifying

    # --- The end of the log ---------------------------------------------------------------------

    def _mark_end(self) -> None:
        """Write an end mark if nothing was written for `END_MARK_SECONDS`, else try again later."""
        self._idle_timer = None
        if self._error is not None or self._is_end_marked:
            return
        rest = self._written_at + limits.END_MARK_SECONDS - self._loop.time()
        if self.busy or rest > 0.001:
            delay = max(rest, limits.END_MARK_SECONDS / 10)
            self._idle_timer = self._loop.call_later(delay, self._mark_end)
            return
        self._is_end_marked = self._marking = True
        future = self._io_thread.submit(self._log.mark_end)
        future.add_done_callback(self._end_marked)

    def _end_marked(self, future: asyncio.Future[None]) -> None:
        self._marking = False
        error = future.exception()
        if error is not None:
            self._fail(error if isinstance(error, MillraceError) else _unexpected(error))
        else:
            self._write_next()

    def roll(self) -> asyncio.Future[None]:
        """Begin a new generation of the log; the future is done when it has begun."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._rolling is None:
            self._rolling = self._loop.create_future()
            self._write_next()
        return self._rolling

    def _roll(self) -> LogMark:
        self._log.roll()
        return self._log.mark()

    def _rolled(self, future: asyncio.Future[LogMark]) -> None:
        self._marking = False
        waiting, self._rolling = self._rolling, None
        error = future.exception()
        if error is not None:
            self._fail(error if isinstance(error, MillraceError) else _unexpected(error))
        else:
            self.mark = future.result()
            self._write_next()
        if waiting is not None and not waiting.done():
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)

    def close(self) -> None:
        """Refuse queued and new entries. The write in flight must have ended."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._error is None:
            self._error = Closed("the engine was closed; open it again")
            if self._rolling is not None and not self._rolling.done():
                self._rolling.set_exception(self._error)
            self._notify(self._queue.clear(), self._error)

    # --- Space ----------------------------------------------------------------------------------

    def room(self, *, reserve: bool) -> int:
        """Return the bytes that may be appended now."""
        return self._log.room(reserve=reserve)

    def replay_mark(self) -> LogMark:
        """Return the mark at which a checkpoint of the folded entries lets replay begin (C1).

        It is that of the oldest entry of any group that is not folded, or the end of the log.
        """
        oldest = self.suffixes.oldest()
        if oldest is None:
            return self.mark
        mark = self._log.mark_of(oldest)
        if mark is None:
            raise Fatal(f"generation {oldest.generation} was recycled, and a group still needs it")
        return min(mark, self.mark)


def _unexpected(error: BaseException) -> DiskFailed:
    return DiskFailed(f"writing the log failed: {error!r}")


# --- Write queue -----------------------------------------------------------------------------
#
# Rule 6: entries are written in the order of their submission, so that each group's are.
# Rule 7: a suffix that is rewritten goes before all queued entries, and as a whole: at that moment
# it is all that the log holds of its group, and the queued entries come after it.
# Rule 8: near the end of the log, entries that may use the reserve do not share a record with
# entries that may not.

Synced = Callable[[Entry, LogPosition], None]

Failed = Callable[[MillraceError], None]
"""Callback: the group's entries in the writer will not be synced.

After `Fatal` the outcome is unknown, and the writer has ended; otherwise nothing was written.
"""


class PendingEntry(NamedTuple):
    """An entry on its way to the log, encoded as if it stood alone in its record."""

    entry: Entry
    buffers: list[Buffer]
    size: int
    synced: Synced
    failed: Failed
    reserve: bool
    is_rewrite: bool = False
    """True if the entry is in the log already, and is written once more."""

    def place(self, offset: int) -> None:
        """Shift the blocks of the entry to its offset in the record."""
        if offset:
            for batch in self.entry.batches:
                batch.places = [(start + offset, length) for start, length in batch.places]

    def alone(self) -> PendingEntry:
        """Return the entry encoded anew, for another record."""
        return self._replace(buffers=encode_entry(self.entry, 0))

    def moves_index(self) -> bool:
        """Return True if the entry changes the next index of its group."""
        return not self.is_rewrite and self.entry.kind in (EntryKind.DATA, EntryKind.VOID)


class WriteQueue:
    """Queue of entries to write, and of suffixes to rewrite."""

    def __init__(self, suffixes: UncommittedSuffixes, *, bytes_target: int, bytes_max: int) -> None:
        self._suffixes = suffixes
        self._bytes_target = bytes_target
        self._bytes_max = bytes_max
        self._waiting: deque[PendingEntry] = deque()
        self._rewrites: dict[GroupId, asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._rewrites)

    def __iter__(self) -> Iterator[PendingEntry]:
        return iter(self._waiting)

    def add(self, job: PendingEntry) -> None:
        self._waiting.append(job)

    def put_back(self, jobs: deque[PendingEntry]) -> None:
        """Put entries back at the head of the queue."""
        self._waiting.extendleft(reversed(jobs))

    def add_rewrite(self, group: GroupId) -> asyncio.Future[None]:
        """Queue a rewrite of the group's suffix; the future is done when it is synced."""
        future = self._rewrites.get(group)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            if group in self._suffixes:
                self._rewrites[group] = future
            else:
                future.set_result(None)
        return future

    def take(self, *, is_tight: bool) -> list[PendingEntry]:
        """Remove and return the entries of the next record."""
        jobs, length = self._take_rewrites()
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

    def _take_rewrites(self) -> tuple[list[PendingEntry], int]:
        jobs: list[PendingEntry] = []
        length = 0
        for group, future in list(self._rewrites.items()):
            if jobs and length + self._suffixes.size(group) > self._bytes_max:
                break
            del self._rewrites[group]
            again = self._rewrite_jobs(group, future)
            length += sum(job.size for job in again)
            jobs += again
        return jobs, length

    def _rewrite_jobs(self, group: GroupId, future: asyncio.Future[None]) -> list[PendingEntry]:
        copies = self._suffixes.copies(group)

        def synced(entry: Entry, position: LogPosition) -> None:
            if entry is copies[-1] and not future.done():
                future.set_result(None)

        if not copies and not future.done():
            future.set_result(None)
        jobs: list[PendingEntry] = []
        for copy in copies:
            buffers = encode_entry(copy, 0)
            size = buffers_size(buffers)
            jobs.append(
                PendingEntry(
                    copy,
                    buffers,
                    size,
                    synced,
                    _failed_to_future(future),
                    reserve=True,
                    is_rewrite=True,
                )
            )
        return jobs

    def remove_groups(self, groups: set[GroupId]) -> list[PendingEntry]:
        """Remove and return all queued entries of these groups; the rest stays, in order."""
        jobs = [job for job in self._waiting if job.entry.group in groups]
        self._waiting = deque(job for job in self._waiting if job.entry.group not in groups)
        return jobs

    def clear(self) -> list[Failed]:
        """Empty the queue; return the failure callbacks."""
        callbacks = [job.failed for job in self._waiting]
        callbacks += [_failed_to_future(future) for future in self._rewrites.values()]
        self._waiting.clear()
        self._rewrites.clear()
        return callbacks


def uncommitted_before(
    entry: Entry, suffixes: UncommittedSuffixes, jobs: Iterator[PendingEntry]
) -> int:
    """Return the bytes of the group's suffix before the entry, once it is written.

    Entries that will have been replaced by then do not count.
    """
    low, size = entry.index, 0
    for job in jobs:
        other = job.entry
        if other.group != entry.group or not job.moves_index():
            continue
        if other.kind is EntryKind.VOID:
            if other.epoch >= entry.epoch:
                low = min(low, Index(other.index + 1))
        else:
            low = min(low, other.index)
            size += job.size if other.index < entry.index else 0
    return size + suffixes.size(entry.group, low)


def buffers_size(buffers: list[Buffer]) -> int:
    return sum(
        buffer.nbytes if isinstance(buffer, memoryview) else len(buffer) for buffer in buffers
    )


def _failed_to_future(future: asyncio.Future[None]) -> Failed:
    def failed(error: MillraceError) -> None:
        if not future.done():
            future.set_exception(error)

    return failed
