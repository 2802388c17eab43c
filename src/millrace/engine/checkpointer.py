"""The keeper of log and store: checkpoints, sealing, recycling, and the passing of time.

It runs beside the host, in steps, and never holds it up: what takes long is done on a lane. The
order of F1 is kept here: files synced, index committed, and only then segments recycled.
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
from millrace.journal.writer import LogWriter
from millrace.maintenance.supervisor import Supervisor
from millrace.store.cells import Cells
from millrace.store.disk import DiskStore
from millrace.wal.io_thread import IoThread
from millrace.wal.replay import ORIGIN
from millrace.wal.write_ahead_log import Log


@dataclass(frozen=True, slots=True)
class Pace:
    """When the keeper does what."""

    checkpoint_seconds: float
    checkpoint_log_bytes: int
    segments_unsealed: int


class Checkpointer:
    """Looks after one node's log and store."""

    def __init__(
        self,
        log: Log,
        store: DiskStore,
        cells: Cells,
        writer: LogWriter,
        lane: IoThread,
        host: CommitLoop,
        facts: dict[GroupId, bytes],
        pace: Pace,
        sleep: Callable[[float], None] = time.sleep,
        warden: Supervisor | None = None,
    ) -> None:
        self._log = log
        self._store = store
        self._cells = cells
        self._writer = writer
        self._lane = lane
        self._host = host
        self._facts = facts
        self._pace = pace
        self._sleep = sleep
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._generation = writer.mark.generation
        self._unprepared = True
        # What was replayed is not in the index yet: without a checkpoint its segments stay in use,
        # and if they are all there are, nothing more could be written that would cause one.
        self._checkpoint_mark = store.replay_mark() or ORIGIN
        self._checkpoint_at = self._loop.time()
        self._tick_at = self._loop.time()
        self._working = asyncio.Lock()
        self._is_tight = False
        """Who publishes has to wait until segments are released."""
        self._checkpoint_is_stuck = False
        self._seal_is_stuck = False
        """The last one found the disk full."""
        self._skips_log = False
        """The last pass had no room for the rows of a segment; dead files may give it."""
        self._reported: set[int] = set()
        """Damaged files whose queues are quarantined."""
        self._seal_at = 0.0
        self._seal_wait = limits.KEEPER_SECONDS
        self._syncs = 0
        self._warden = warden
        self._pauses = 0
        self._may_commit = asyncio.Event()
        self._may_commit.set()
        self.rounds = 0
        """How often it has looked around."""
        self.error: MillraceError | None = None

    def start(self) -> None:
        """Begin to look around."""
        self._host.on_commit(self._look)
        self._look_tight()
        if self._warden is not None:
            # What an earlier engine has not archived, which was killed perhaps: so may this one be.
            self._warden.look()
        if self._is_tight:
            # This open has taken a segment itself, and the process may not live long.
            self._wake.set()
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Do what is begun, write a last checkpoint, and end."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.error is None and self._writer.error is None:
            self._take_damaged()
            if self._warden is not None:
                with suppress(Full):
                    await self._warden.learn(self._lane)
            async with self._committing():
                self._look_tight()
                if self._is_tight or self._left_alone() < self._pace.segments_unsealed:
                    # The next open takes a segment; it may not live long enough to free one.
                    await self._seal()
                await self._checkpoint()

    def _look(self) -> None:
        """After each commit, and cheap: is there something to do before the next round?"""
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
            # Of the world, not of the code: a folder that is gone, a disk that failed.
            self._failed(error)
        except Exception as error:
            # A defect: without a keeper the log would fill up and everyone wait for ever.
            self.error = Fatal(f"looking after the store failed: {error!r}")
            self._host.fail(self.error)
            raise

    def _failed(self, error: MillraceError | OSError) -> None:
        fatal = error if isinstance(error, Fatal) else DiskFailed(_hint(error))
        self.error = fatal
        self._host.fail(fatal)

    async def _round(self) -> None:
        now = self._loop.time()
        # A group that cannot commit uses up segments, too, and nobody is told of a commit.
        self._look()
        if self._warden is not None:
            self._warden.look(is_full=self._host.short_of_space)
        for unreadable in self._store.take_unreadable():
            self._host.quarantine(unreadable)
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
            self._cells.care()
            self._host.tick()
        else:
            self._host.look()
        self.rounds += 1

    async def _prepare(self) -> None:
        """Have segments ready ahead of need; on a full disk, those who wait for room are told."""
        # What the index gave back is for its own commits, which free space: no segment may take it.
        full = self._cells.short_of_space
        if full:
            self._host.shortage = None
        if self._unprepared and not full:
            self._unprepared = False
            try:
                while not self._stopping and await self._lane.submit(self._log.prepare):
                    pass
            except Full as error:
                self._unprepared = full = True
                self._note(error)
        self._look_tight()
        is_stuck = self._checkpoint_is_stuck or self._seal_is_stuck
        self._host.short_of_space = full or (is_stuck and self._is_tight)

    def _note(self, error: Full) -> None:
        """Let those who are refused know why: it need not be the disk."""
        self._host.shortage = error if error.field == "files" else None

    def _look_tight(self) -> None:
        room = self._log.room(reserve=False)
        self._is_tight = self._cells.short_of_space or room < self._log.record_bytes_max

    # --- Checkpoints ----------------------------------------------------------------------------

    def _checkpoint_due(self, now: float) -> bool:
        mark = self._writer.mark
        if mark == self._checkpoint_mark:
            return False
        return (
            now - self._checkpoint_at >= self._pace.checkpoint_seconds
            or mark.generation != self._checkpoint_mark.generation
            or mark.offset - self._checkpoint_mark.offset >= self._pace.checkpoint_log_bytes
        )

    def _is_short_of_memory(self) -> bool:
        """Whether the overlay should be written down before its time."""
        warden = self._warden
        is_short = warden is not None and warden.watermarks.is_short_of_memory
        return is_short and self._writer.mark != self._checkpoint_mark

    @asynccontextmanager
    async def _committing(self) -> AsyncIterator[None]:
        """Work that commits to the index; rounds go on while it waits for the end of a pause."""
        while True:
            await self._may_commit.wait()
            async with self._working:
                if not self._pauses:
                    yield
                    return

    async def checkpoint(self) -> None:
        """Bring the index up to the log; when this returns, a restart reads nothing before it."""
        async with self._committing():
            await self._checkpoint()

    @asynccontextmanager
    async def pausing(self) -> AsyncIterator[None]:
        """Write a checkpoint, and begin none until the end: the index stands still meanwhile.

        Everything else goes on: segments are prepared, time passes.
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
            await self._lane.submit(lambda: self._store.write(frozen))
        except Full as error:
            self._note(error)
            # Nothing was written: the overlay stays as it is and the next round tries again.
            self._store.refreeze(frozen)
            self._host.short_of_space = self._checkpoint_is_stuck = True
            return
        self._store.thaw(frozen)
        self._checkpoint_is_stuck = False
        # One that had found the disk full is written as it was then, and the next one is due.
        self._checkpoint_mark = reached if frozen.mark == mark else frozen.mark
        self._checkpoint_at = self._loop.time()
        needed = self._store.needed_from()
        if self._warden is not None:
            needed = await self._warden.floor(needed)
        if await self._lane.submit(lambda: self._log.release_before(needed)):
            # A log that had all the segments it may have has room for new ones in the place of
            # those that cannot serve again.
            self._unprepared = True

    async def _move_suffixes(self) -> None:
        """Append again what is not committed and lies where the log is to be recycled (L7)."""
        segments = self._log.segments()
        kept = 1 if self._is_tight else self._pace.segments_unsealed + 1
        for group in self._writer.suffixes.before(segments[-kept:][0].generation):
            try:
                await self._writer.write_again(group)
            except Full:
                # Nothing was written; it stays where it is until there is room.
                return

    # --- Sealing --------------------------------------------------------------------------------

    async def _seal(self, *, everything: bool = False) -> bool:
        """One step; returns whether there was something to do."""
        if self._loop.time() < self._seal_at and not everything:
            return False
        unsealed = None
        if not self._skips_log:
            # Where nothing else gives room, no segment is left alone.
            unsealed = 0 if self._is_tight else self._left_alone()
        plan = self._store.plan_seal(
            everything=everything, unsealed=unsealed, is_short=self._cells.short_of_space
        )
        if plan is None:
            self._found_room(is_sure=not self._skips_log)
            return False
        self._syncs = self._log.statistics().syncs
        try:
            result = await self._lane.submit(lambda: self._store.run_seal(plan, self._rest))
        except Full as error:
            self._note(error)
            # Nothing is left of the pass; settling and purging make room for the next one.
            self._host.short_of_space = self._seal_is_stuck = True
            if self._skips_log or any(sealed for sealed, _ in plan.homes):
                self._found_room(is_sure=False)
            else:
                self._skips_log = True
            return False
        except Corrupt as error:
            if error not in self._store.damaged_files().values():
                raise
            # Everything else goes on without that file.
            await self._quarantine_files()
            return True
        for unreadable in result.unreadable:
            self._host.quarantine(unreadable)
        self._store.finish_seal(result)
        self._found_room(is_sure=True)
        await self._checkpoint()
        return True

    async def _scrub(self) -> None:
        """Read a little of what lies on the disk again."""
        if self._warden is not None:
            # Where there is no room to note how far it is, the next round goes on.
            with suppress(Full):
                await self._warden.scrub(self._lane)
            await self._quarantine_files()

    def _take_damaged(self) -> None:
        """Note what readers have found damaged."""
        for number, error in self._host.take_damaged().items():
            if number in self._store.file_numbers():
                self._store.note_damage(number, error)

    async def _quarantine_files(self) -> None:
        """Quarantine the queues whose rows cannot be read in files that were found damaged."""
        self._reported &= self._store.damaged_files().keys()
        for number in sorted(self._store.damaged_files().keys() - self._reported):
            self._reported.add(number)
            looking = self._store.look_through(number)
            for unreadable in await self._lane.submit(looking):
                self._host.quarantine(unreadable)

    def _left_alone(self) -> int:
        """How many full segments are: fewer where openings have left them all but empty."""
        solid = sum(
            not self._store.is_hollow(segment.generation) for segment in self._log.segments()[:-1]
        )
        return min(self._pace.segments_unsealed, solid + limits.LOG_SEGMENTS_HOLLOW)

    def _found_room(self, *, is_sure: bool) -> None:
        """What does not fit is tried again, but less and less often: each try reads the index."""
        self._skips_log = False
        if is_sure:
            self._seal_wait, self._seal_is_stuck = limits.KEEPER_SECONDS, False
            return
        self._seal_at = self._loop.time() + self._seal_wait
        self._seal_wait = min(2 * self._seal_wait, limits.SEAL_WAIT_SECONDS_MAX)

    def _rest(self) -> None:
        """After each sync of a pass: leave the disk to the log, while that is written (F3).

        On the lane. Who waits for a segment is not helped by a pass that rests.
        """
        log = self._log.statistics()
        is_idle, self._syncs = log.syncs == self._syncs, log.syncs
        if not is_idle and not self._is_tight:
            seconds = log.sync_seconds * limits.SEAL_REST_SYNCS
            self._sleep(min(seconds, limits.SEAL_REST_SECONDS_MAX))

    async def prepare(self) -> None:
        """Have every segment ready that is kept ahead of need."""
        async with self._working:
            self._unprepared = True
            await self._prepare()

    async def reclaim(self) -> bool:
        """One step of sealing, rewriting or dropping files, and of recycling the log."""
        async with self._committing():
            return await self._seal()

    async def seal_all(self) -> None:
        """Seal everything that is written by now: what is alive of it then lies in files."""
        async with self._committing():
            self._unprepared = True
            await self._prepare()
            await self._writer.roll()
            # Only what the index knows of can be sealed.
            await self._checkpoint()
            while await self._seal(everything=True):
                pass


def _hint(error: MillraceError | OSError) -> str:
    if isinstance(error, NotFound | FileNotFoundError):
        return f"looking after the store failed: {error}; was the folder removed or renamed?"
    return f"looking after the store failed: {error}"
