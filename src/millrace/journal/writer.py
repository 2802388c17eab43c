"""The one writer of a node's log.

Everything that waits, of every group, goes into the next record: one write, one sync. While a
record is being synced, the deciders go on; what they decide meanwhile is the next record.

Rule 1: one record in flight.
Rule 2: nobody is told before the record is synced, and then in the order of the log.
Rule 3: a failed write ends the writer for ever, and so does whoever is told and raises: what is
synced and not folded is for recovery. Every group is told, whether it was writing or not.
Rule 4: what was refused before anything was written ends nothing. The groups in that record lose
what they had in the writer, since their later entries cannot do without the earlier ones; the
others go on.
Rule 5: a group has one decider. Epochs only rise, and who has a lower one writes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain

from millrace import limits
from millrace.core.changes import Entry, EntryKind
from millrace.core.codec import encode_entry
from millrace.core.column import Buffer
from millrace.core.model import Epoch, GroupId
from millrace.errors import Closed, DiskFailed, Fatal, Full, MillraceError, TooLarge, detached
from millrace.journal.outbox import Failed, Job, Outbox, Synced, size_of, uncommitted_before
from millrace.journal.suffix import Suffixes
from millrace.meter import Commits
from millrace.wal.io_thread import IoThread
from millrace.wal.record import Mark, Position
from millrace.wal.write_ahead_log import Log


class LogWriter:
    """Gathers entries into records and writes them, on a lane or at once."""

    def __init__(self, log: Log, lane: IoThread, suffixes: Suffixes | None = None) -> None:
        self._log = log
        self._lane = lane
        self._loop = asyncio.get_running_loop()
        self._writing: list[Job] = []
        self._owners: dict[GroupId, tuple[Epoch, Failed]] = {}
        self._error: MillraceError | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self._written_at = 0.0
        self._marked = True
        self._marking = False
        self._rolling: asyncio.Future[None] | None = None
        self._telling = False
        self.commits = Commits()
        """What was written so far, counted."""
        self._record_bytes_target = min(limits.RECORD_BYTES_TARGET, log.record_bytes_max)
        self.record_bytes_max = log.record_bytes_max - limits.RECORD_SLACK_BYTES
        self.suffix_bytes_max = min(limits.UNCOMMITTED_BYTES_MAX, log.record_bytes_max)
        """What a group that commits late may have in the log and not committed."""
        self.suffixes = Suffixes() if suffixes is None else suffixes
        """What the log holds of groups that commit late, and every group's facts."""
        self._outbox = Outbox(
            self.suffixes, bytes_target=self._record_bytes_target, bytes_max=log.record_bytes_max
        )
        self.mark: Mark = log.mark()
        """The place after the last record whose entries were all told of."""

    # --- Who writes -----------------------------------------------------------------------------

    def own(self, group: GroupId, epoch: Epoch, failed: Failed) -> None:
        """Let the decider of this epoch write for the group, and none before it.

        `failed` is told when the writer ends, whatever it is doing for the group then.

        Raises:
            Fatal: the group has a decider of this or a higher epoch, or its last one has not
                finished; two would write one index.
        """
        known = self._owners.get(group)
        if known is not None and known[0] >= epoch:
            raise Fatal(f"group {group} has a decider of epoch {known[0]}; {epoch} is too late")
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
        """Write the entry with the next record; `synced` or `failed` may be told before this ends.

        Raises:
            TooLarge: no record could hold it.
            Full: the group has too much that is not committed; nothing was accepted (L7).
            Closed, Fatal: the writer has ended.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        # Encoded here, beside the sync of the record before; its place in the record comes later.
        buffers = encode_entry(entry, 0)
        size = size_of(buffers)
        self._check_size(entry, size)
        self._outbox.add(Job(entry, buffers, size, synced, failed, reserve))
        if not self.busy:
            self._write(alone=alone)

    def _jobs(self) -> chain[Job]:
        """All that is on its way to the log, in order."""
        return chain(self._writing, self._outbox)

    def _check_size(self, entry: Entry, size: int) -> None:
        late = entry.kind is EntryKind.DATA and entry.group in self.suffixes
        most = self.suffix_bytes_max if late else self._log.record_bytes_max
        if size > most:
            raise TooLarge(
                f"{size} bytes at once are more than a record of the log holds; "
                "publish in parts, or stage them",
                field="rows",
                limit=most,
            )
        if late and size + uncommitted_before(entry, self.suffixes, self._jobs()) > most:
            raise Full(
                "too much of this queue is written and not committed; send again when its "
                "replicas are back",
                field="uncommitted",
                limit=most,
            )

    def write_again(self, group: GroupId) -> asyncio.Future[None]:
        """Append the group's whole suffix once more, in one record (L7).

        When the future is done, replay needs nothing of the group from before that record. It is
        written before everything that waits: only then is it all that the log holds of the group.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        future = self._outbox.add_again(group)
        self._go_on()
        return future

    @property
    def busy(self) -> bool:
        """Whether a record or an end mark is being written, or told of."""
        return bool(self._writing) or self._marking or self._telling

    @property
    def error(self) -> MillraceError | None:
        """What ended the writer."""
        return self._error

    # --- Writing --------------------------------------------------------------------------------

    def _write(self, *, alone: bool) -> None:
        is_tight = self._log.room(reserve=False) < 2 * self._record_bytes_target
        jobs = self._outbox.take(is_tight=is_tight)
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

        def append() -> tuple[Position, Mark]:
            position = self._log.append(buffers, reserve=reserve)
            return position, self._log.mark()

        began = self._loop.time()
        if (
            not alone
            or length > limits.INLINE_RECORD_BYTES_MAX
            or self._log.sync_seconds >= limits.INLINE_SYNC_SECONDS_MAX
        ):
            future = self._lane.submit(append)
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
        self, future: asyncio.Future[tuple[Position, Mark]], began: float, size: int
    ) -> None:
        error = future.exception()
        if error is not None:
            self._fail(error if isinstance(error, MillraceError) else _unexpected(error))
            return
        self._note_commit(self._loop.time() - began, size)
        self._done(*future.result())

    def _note_commit(self, seconds: float, size: int) -> None:
        self.commits.note(seconds, size, len(self._writing))

    def _done(self, position: Position, mark: Mark) -> None:
        jobs, self._writing = deque(self._writing), []
        self._marked = False
        self._written_at = self._loop.time()
        # Who is told may submit again: that waits until all of this record was told of.
        self._telling = True
        try:
            while jobs:
                job = jobs[0]
                self.suffixes.synced(job.entry, position, job.size)
                job.synced(job.entry, position)
                jobs.popleft()
        except BaseException as error:
            self._outbox.add_first(jobs)
            self._end(error if isinstance(error, Fatal) else _unexpected(error))
            raise
        finally:
            self._telling = False
        self.mark = mark
        self._go_on()
        if not self.busy and self._error is None and self._quiet is None:
            self._quiet = self._loop.call_later(limits.END_MARK_SECONDS, self._mark_end)

    def _go_on(self) -> None:
        if self.busy or self._error is not None:
            return
        if self._rolling is not None:
            self._marking = True
            self._lane.submit(self._roll).add_done_callback(self._rolled)
        elif self._outbox:
            self._write(alone=False)

    # --- Failing --------------------------------------------------------------------------------

    def _fail(self, error: MillraceError) -> None:
        if isinstance(error, Fatal):
            self._end(error)
        else:
            self._refuse(error)

    def _end(self, error: Fatal) -> None:
        """What became of the record is unknown, and nothing more is written: all are told."""
        self._error = error = detached(error.again())
        if self._rolling is not None and not self._rolling.done():
            self._rolling.set_exception(error)
        told = [job.failed for job in self._writing] + self._outbox.take_all()
        self._writing = []
        self._tell([*told, *(failed for _, failed in self._owners.values())], error)

    def _refuse(self, error: MillraceError) -> None:
        """Nothing of the record was written: its groups are told, the others go on."""
        jobs, self._writing = self._writing, []
        again = [job for job in jobs if job.is_again]
        if again:
            # A suffix that was to be written again is still where it was: nothing follows from it,
            # and the others may fit without it.
            self._outbox.add_first(deque(job.alone() for job in jobs if not job.is_again))
            jobs = again
        else:
            jobs += self._outbox.take_groups({job.entry.group for job in jobs})
        self._tell([job.failed for job in jobs], error)
        self._go_on()

    def _tell(self, told: Iterable[Failed], error: MillraceError) -> None:
        """Tell each of them once, even if one of them raises."""
        was_telling, self._telling = self._telling, True
        try:
            with ExitStack() as stack:
                for failed in reversed(dict.fromkeys(told)):
                    stack.callback(failed, error)
        finally:
            self._telling = was_telling

    # --- The end of the log ---------------------------------------------------------------------

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
        else:
            self._go_on()

    def roll(self) -> asyncio.Future[None]:
        """Begin a new generation of the log; done when all that was written lies before it."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._rolling is None:
            self._rolling = self._loop.create_future()
            self._go_on()
        return self._rolling

    def _roll(self) -> Mark:
        self._log.roll()
        return self._log.mark()

    def _rolled(self, future: asyncio.Future[Mark]) -> None:
        self._marking = False
        waiting, self._rolling = self._rolling, None
        error = future.exception()
        if error is not None:
            self._fail(error if isinstance(error, MillraceError) else _unexpected(error))
        else:
            self.mark = future.result()
            self._go_on()
        if waiting is not None and not waiting.done():
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)

    def close(self) -> None:
        """Take nothing more. What is being written must have ended; what waits is refused."""
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if self._error is None:
            self._error = Closed("the engine was closed; open it again")
            if self._rolling is not None and not self._rolling.done():
                self._rolling.set_exception(self._error)
            self._tell(self._outbox.take_all(), self._error)

    # --- Space ----------------------------------------------------------------------------------

    def room(self, *, reserve: bool) -> int:
        """Bytes that may be appended now."""
        return self._log.room(reserve=reserve)

    def replay_mark(self) -> Mark:
        """Where a checkpoint of what is folded now lets replay begin: at the oldest entry that is
        not, of all groups, or behind the last record (C1)."""
        oldest = self.suffixes.oldest()
        if oldest is None:
            return self.mark
        mark = self._log.mark_of(oldest)
        if mark is None:
            raise Fatal(f"generation {oldest.generation} was recycled, and a group still needs it")
        return min(mark, self.mark)


def _unexpected(error: BaseException) -> DiskFailed:
    return DiskFailed(f"writing the log failed: {error!r}")
