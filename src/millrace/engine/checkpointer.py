"""Checkpoints of the store, sealing, recycling of WAL segments, and the ticks of the commit loop.

It runs in rounds, concurrently with the commit loop, and never blocks it: long work is done on an
I/O thread. It keeps the order of F1: sync the files, commit the index, and only then recycle
segments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from millrace import limits
from millrace.core.model import GroupId
from millrace.engine.commit_loop import CommitLoop
from millrace.errors import Corrupt, DiskFailed, Fatal, Full, MillraceError, NotFound
from millrace.journal.log_writer import LogWriter
from millrace.maintenance.supervisor import Supervisor
from millrace.store.cells import Cells
from millrace.store.disk_store import DiskStore
from millrace.wal.io_thread import IoThread
from millrace.wal.replay import ORIGIN
from millrace.wal.write_ahead_log import WriteAheadLog


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """When to checkpoint and how many segments to leave unsealed."""

    checkpoint_seconds: float
    checkpoint_log_bytes: int
    segments_unsealed: int


class Checkpointer:
    """Maintains the WAL and store of one node: checkpoints, seals and recycles."""

    def __init__(
        self,
        log: WriteAheadLog,
        store: DiskStore,
        cells: Cells,
        writer: LogWriter,
        io_thread: IoThread,
        commit_loop: CommitLoop,
        facts: dict[GroupId, bytes],
        schedule: CheckpointSchedule,
        sleep: Callable[[float], None] = time.sleep,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._log = log
        self._store = store
        self._cells = cells
        self._writer = writer
        self._io_thread = io_thread
        self._commit_loop = commit_loop
        self._facts = facts
        self._schedule = schedule
        self._sleep = sleep
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._generation = writer.mark.generation
        self._unprepared = True
        # Replayed entries are not in the index yet: without a checkpoint their segments stay in
        # use, and if these are all segments, nothing could be written that would cause one.
        self._checkpoint_mark = store.replay_mark() or ORIGIN
        self._checkpoint_at = self._loop.time()
        self._tick_at = self._loop.time()
        self._working = asyncio.Lock()
        self._is_tight = False
        """True if publishers must wait until segments are released."""
        self._checkpoint_is_stuck = False
        self._seal_is_stuck = False
        """True if the last attempt found the disk full."""
        self._skips_log = False
        """True if the last pass had no room for the rows of a segment; dropping dead files may free
        it."""
        self._reported: set[int] = set()
        """Damaged files whose queues are quarantined."""
        self._seal_at = 0.0
        self._seal_wait = limits.KEEPER_SECONDS
        self._syncs = 0
        self._supervisor = supervisor
        self._pauses = 0
        self._may_commit = asyncio.Event()
        self._may_commit.set()
        self.rounds = 0
        """Number of rounds since the start."""
        self.error: MillraceError | None = None

    def start(self) -> None:
        """Start the rounds."""
        self._commit_loop.set_after_commit(self._after_commit)
        self._measure_room()
        if self._supervisor is not None:
            # An earlier engine may have been killed before it archived; so may this one be.
            self._supervisor.poll()
        if self._is_tight:
            # This open has used up a segment itself, and the process may be killed soon.
            self._wake.set()
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Finish the current work, write a last checkpoint, and end."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.error is None and self._writer.error is None:
            self._take_damaged()
            if self._supervisor is not None:
                with suppress(Full):
                    await self._supervisor.save_damage(self._io_thread)
            async with self._committing():
                self._measure_room()
                if self._is_tight or self._unsealed_segments() < self._schedule.segments_unsealed:
                    # The next open uses up a segment, and may be killed before it frees one.
                    await self._seal()
                await self._checkpoint()

    def _after_commit(self) -> None:
        """Wake the task if the last commit began a new segment; called after each commit, and
        cheap."""
        mark = self._writer.mark
        if mark.generation != self._generation:
            self._generation = mark.generation
            self._unprepared = True
            self._wake.set()

    async def _run(self) -> None:
        try:
            while not self._stopping:
                timer = self._loop.call_later(limits.KEEPER_SECONDS, self._wake.set)
                await self._wake.wait()
                timer.cancel()
                self._wake.clear()
                if self._writer.error is not None:
                    return
                async with self._working:
                    await self._round()
        except (MillraceError, OSError) as error:
            # An environment error, not a defect: a folder was removed, or a disk has failed.
            self._failed(error)
        except Exception as error:
            # A defect: without a checkpointer the log would fill up and all requests wait for ever.
            self.error = Fatal(f"looking after the store failed: {error!r}")
            self._commit_loop.fail(self.error)
            raise

    def _failed(self, error: MillraceError | OSError) -> None:
        fatal = error if isinstance(error, Fatal) else DiskFailed(_hint(error))
        self.error = fatal
        self._commit_loop.fail(fatal)

    async def _round(self) -> None:
        now = self._loop.time()
        # A group that cannot commit uses up segments, too, without any call after a commit.
        self._after_commit()
        if self._supervisor is not None:
            self._supervisor.poll(is_full=self._commit_loop.short_of_space)
        for unreadable in self._store.take_unreadable():
            self._commit_loop.quarantine(unreadable)
        self._take_damaged()
        await self._prepare()
        await self._move_suffixes()
        if not self._pauses:
            if self._checkpoint_due(now) or self._is_short_of_memory():
                await self._checkpoint()
            await self._seal()
            await self._scrub()
        if now - self._tick_at >= limits.TICK_SECONDS:
            self._tick_at = now
            self._cells.maintain()
            self._commit_loop.tick()
        else:
            self._commit_loop.check_waiting()
        self.rounds += 1

    async def _prepare(self) -> None:
        """Prepare segments ahead of need, and note if the disk is full."""
        # The space that the index gave back is for its own commits, which free space: no segment
        # may take it.
        full = self._cells.short_of_space
        if full:
            self._commit_loop.shortage = None
        if self._unprepared and not full:
            self._unprepared = False
            try:
                while not self._stopping and await self._io_thread.submit(self._log.prepare):
                    pass
            except Full as error:
                self._unprepared = full = True
                self._note(error)
        self._measure_room()
        is_stuck = self._checkpoint_is_stuck or self._seal_is_stuck
        self._commit_loop.short_of_space = full or (is_stuck and self._is_tight)

    def _note(self, error: Full) -> None:
        """Remember the reason to refuse with: not only the disk can be short."""
        self._commit_loop.shortage = error if error.field == "files" else None

    def _measure_room(self) -> None:
        room = self._log.room(reserve=False)
        self._is_tight = self._cells.short_of_space or room < self._log.record_bytes_max

    # --- Checkpoints ------------------------------------------------------------------------------

    def _checkpoint_due(self, now: float) -> bool:
        mark = self._writer.mark
        if mark == self._checkpoint_mark:
            return False
        return (
            now - self._checkpoint_at >= self._schedule.checkpoint_seconds
            or mark.generation != self._checkpoint_mark.generation
            or mark.offset - self._checkpoint_mark.offset >= self._schedule.checkpoint_log_bytes
        )

    def _is_short_of_memory(self) -> bool:
        """Return True if the overlay should be flushed early."""
        supervisor = self._supervisor
        is_short = supervisor is not None and supervisor.watermarks.is_short_of_memory
        return is_short and self._writer.mark != self._checkpoint_mark

    @asynccontextmanager
    async def _committing(self) -> AsyncIterator[None]:
        """Hold the lock for work that commits to the index, and wait for the end of a pause first.

        Rounds go on during the wait.
        """
        while True:
            await self._may_commit.wait()
            async with self._working:
                if not self._pauses:
                    yield
                    return

    async def checkpoint(self) -> None:
        """Bring the index up to date with the log; a restart then replays from here."""
        async with self._committing():
            await self._checkpoint()

    @asynccontextmanager
    async def pausing(self) -> AsyncIterator[None]:
        """Write a checkpoint and suspend further ones until the context ends: the index does not
        change.

        All other work goes on: segments are prepared, and ticks fire.
        """
        async with self._committing():
            await self._checkpoint()
            self._pauses += 1
            self._may_commit.clear()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._may_commit.set()

    async def _checkpoint(self) -> None:
        reached, mark = self._writer.mark, self._writer.replay_mark()
        frozen = self._store.freeze(mark, self._facts | self._writer.suffixes.facts)
        try:
            await self._io_thread.submit(lambda: self._store.write(frozen))
        except Full as error:
            self._note(error)
            # Nothing was written: the overlay stays as it is, and the next round retries.
            self._store.refreeze(frozen)
            self._commit_loop.short_of_space = self._checkpoint_is_stuck = True
            return
        self._store.thaw(frozen)
        self._checkpoint_is_stuck = False
        # A checkpoint that once found the disk full is written as of that time, and the next one is
        # due.
        self._checkpoint_mark = reached if frozen.mark == mark else frozen.mark
        self._checkpoint_at = self._loop.time()
        needed = self._store.needed_from()
        if self._supervisor is not None:
            needed = await self._supervisor.oldest_needed(needed)
        if await self._io_thread.submit(lambda: self._log.release_before(needed)):
            # A log with the maximum of segments can now replace the segments that are not reusable.
            self._unprepared = True

    async def _move_suffixes(self) -> None:
        """Append uncommitted entries again that lie in segments about to be recycled (L7)."""
        segments = self._log.segments()
        kept = 1 if self._is_tight else self._schedule.segments_unsealed + 1
        for group in self._writer.suffixes.before(segments[-kept:][0].generation):
            try:
                await self._writer.rewrite_suffix(group)
            except Full:
                # Nothing was written; the entries stay where they are until there is room.
                return

    # --- Sealing ----------------------------------------------------------------------------------

    async def _seal(self, *, everything: bool = False) -> bool:
        """Do one sealing step; return True if there was work."""
        if self._loop.time() < self._seal_at and not everything:
            return False
        unsealed = None
        if not self._skips_log:
            # If nothing else frees space, seal all full segments.
            unsealed = 0 if self._is_tight else self._unsealed_segments()
        plan = self._store.plan_seal(
            everything=everything, unsealed=unsealed, is_short=self._cells.short_of_space
        )
        if plan is None:
            self._back_off_sealing(is_sure=not self._skips_log)
            return False
        self._syncs = self._log.statistics().syncs
        try:
            result = await self._io_thread.submit(
                lambda: self._store.run_seal(plan, self._throttle_sealing)
            )
        except Full as error:
            self._note(error)
            # The pass left nothing behind; settling and purging make room for the next one.
            self._commit_loop.short_of_space = self._seal_is_stuck = True
            if self._skips_log or any(sealed for sealed, _ in plan.homes):
                self._back_off_sealing(is_sure=False)
            else:
                self._skips_log = True
            return False
        except Corrupt as error:
            if error not in self._store.damaged_files().values():
                raise
            # Work on other files goes on.
            await self._quarantine_files()
            return True
        for unreadable in result.unreadable:
            self._commit_loop.quarantine(unreadable)
        self._store.finish_seal(result)
        self._back_off_sealing(is_sure=True)
        await self._checkpoint()
        return True

    async def _scrub(self) -> None:
        """Do one step of scrubbing."""
        if self._supervisor is not None:
            # On a full disk the progress is not saved; the next round goes on.
            with suppress(Full):
                await self._supervisor.scrub(self._io_thread)
            await self._quarantine_files()

    def _take_damaged(self) -> None:
        """Record the damage that readers have found."""
        for number, error in self._commit_loop.take_damaged_files().items():
            if number in self._store.file_numbers():
                self._store.note_damage(number, error)

    async def _quarantine_files(self) -> None:
        """Quarantine queues with unreadable rows in files that were found damaged."""
        self._reported &= self._store.damaged_files().keys()
        for number in sorted(self._store.damaged_files().keys() - self._reported):
            self._reported.add(number)
            looking = self._store.find_unreadable(number)
            for unreadable in await self._io_thread.submit(looking):
                self._commit_loop.quarantine(unreadable)

    def _unsealed_segments(self) -> int:
        """Return how many full segments to leave unsealed.

        Segments that are nearly empty, because opening begins a new one, count up to
        `LOG_SEGMENTS_HOLLOW`.
        """
        solid = sum(
            not self._store.is_hollow(segment.generation) for segment in self._log.segments()[:-1]
        )
        return min(self._schedule.segments_unsealed, solid + limits.LOG_SEGMENTS_HOLLOW)

    def _back_off_sealing(self, *, is_sure: bool) -> None:
        """Retry sealing with exponential backoff if rows do not fit: each try reads the index."""
        self._skips_log = False
        if is_sure:
            self._seal_wait, self._seal_is_stuck = limits.KEEPER_SECONDS, False
            return
        self._seal_at = self._loop.time() + self._seal_wait
        self._seal_wait = min(2 * self._seal_wait, limits.SEAL_WAIT_SECONDS_MAX)

    def _throttle_sealing(self) -> None:
        """Sleep after a sync of a sealing pass, to leave the disk to the log while it is busy (F3).

        Runs on the I/O thread. Does not sleep while publishers wait for a segment.
        """
        log = self._log.statistics()
        is_idle, self._syncs = log.syncs == self._syncs, log.syncs
        if not is_idle and not self._is_tight:
            seconds = log.sync_seconds * limits.SEAL_REST_SYNCS
            self._sleep(min(seconds, limits.SEAL_REST_SECONDS_MAX))

    async def prepare(self) -> None:
        """Prepare all segments that are kept ahead of need."""
        async with self._working:
            self._unprepared = True
            await self._prepare()

    async def reclaim(self) -> bool:
        """Do one step of sealing, rewriting or dropping files, and of recycling the log."""
        async with self._committing():
            return await self._seal()

    async def seal_all(self) -> None:
        """Seal everything that is written by now; its live rows then lie in sealed files."""
        async with self._committing():
            self._unprepared = True
            await self._prepare()
            await self._writer.roll()
            # Only rows that the index knows can be sealed.
            await self._checkpoint()
            while await self._seal(everything=True):
                pass


def _hint(error: MillraceError | OSError) -> str:
    if isinstance(error, NotFound | FileNotFoundError):
        return f"looking after the store failed: {error}; was the folder removed or renamed?"
    return f"looking after the store failed: {error}"
