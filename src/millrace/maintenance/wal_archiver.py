"""Archives the WAL in the repository of its backups before segments are recycled.

The file `follow` in an archived folder names the repository and the oldest generation that is not
completely archived. Every engine that opens the folder resumes there, so that no record is missed
between two engines.

Rule 1: everything that `archive/reached.json` declares archived was synced before, with its file
name.
Rule 2: a generation that is not archived is not recycled, up to `follow_held_bytes`. Beyond it the
engine takes precedence: the log goes on, the archive has a gap, and the health report says so. A
new backup begins a new stretch.
Rule 3: an unwritable repository is retried for ever, and blocks nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from copy import copy
from pathlib import Path

import msgspec

from millrace import limits
from millrace.errors import Exists, MillraceError, NotFound, detached
from millrace.maintenance import checksummed_json
from millrace.maintenance.archived_log import PROGRESS_FILE, ArchiveProgress, read_progress
from millrace.maintenance.backup_repository import ARCHIVE, ARCHIVED, BackupRepository
from millrace.maintenance.file_copy import replace_file
from millrace.maintenance.manifest import log_name
from millrace.wal.disk import Disk, File
from millrace.wal.io_thread import IoThread
from millrace.wal.record import LogMark, decode_segment_header
from millrace.wal.segment import Hold
from millrace.wal.write_ahead_log import WriteAheadLog

STATE_FILE = "follow"

_logger = logging.getLogger("millrace")


class ArchiveState(msgspec.Struct, frozen=True):
    """Archive state in the folder of queues."""

    vault: str
    generation: int
    """The oldest generation that is not completely archived."""
    gap: int = 0
    """The generation before which records are missing; 0 without a gap."""


def read_archive_state(disk: Disk) -> ArchiveState | None:
    """Read the archive state of a folder; None if it is not archived.

    Raises:
        Corrupt: the file is damaged.
    """
    if not disk.exists(STATE_FILE):
        return None
    hint = "remove the file, and begin a new backup with follow"
    return checksummed_json.read(disk, STATE_FILE, ArchiveState, hint=hint)


def merge_archive_states(before: ArchiveState, since: ArchiveState) -> ArchiveState:
    """Merge the previous state with that of a newer archive whose first backup has failed."""
    if before.vault != since.vault:
        return before
    # A gap in either state is one in the result; it could not be detected later.
    generation = min(before.generation, since.generation)
    return ArchiveState(before.vault, generation, since.gap or before.gap)


class WalArchiver:
    """Archives the WAL of an engine on its own I/O thread."""

    def __init__(
        self,
        disk: Disk,
        log: WriteAheadLog,
        io_thread: IoThread,
        now_ms: Callable[[], int],
        identity: str,
        held_bytes_max: int,
        state: ArchiveState,
    ) -> None:
        self._disk = disk
        self._log = log
        self._io_thread = io_thread
        self._now_ms = now_ms
        self._identity = identity
        self._held_bytes_max = held_bytes_max
        self._loop = asyncio.get_running_loop()
        self._repository = BackupRepository(Path(state.vault))
        self._state = state
        self._progress: ArchiveProgress | None = None
        self._archived: LogMark | None = None
        self._task: asyncio.Task[None] | None = None
        self._look_at = 0.0
        self.error: MillraceError | OSError | None = None
        """The error of the last attempt; None if it succeeded."""

    @property
    def state(self) -> ArchiveState:
        return self._state

    def behind(self) -> int:
        """Return the approximate number of bytes of the log that are not archived yet."""
        mark, progress = self._log.mark(), self._archived
        if mark == progress:
            return 0
        since = progress.generation if progress is not None else self._state.generation
        archived_offset = progress.offset if progress is not None else 0
        live = [
            segment.used_bytes for segment in self._log.segments() if segment.generation >= since
        ]
        return max(sum(live) - archived_offset, 1)

    async def oldest_needed(self, needed: int) -> int:
        """Return the oldest generation to retain in the log, given the oldest that the store needs.

        If too much is retained, a working archive is awaited once; only a failing one gets a gap.
        """
        if self._held(needed) > self._held_bytes_max and self.error is None:
            await self._end_task()
            self._task = self._loop.create_task(self._catch_up())
            await self._end_task()
        is_bearable = 0 < self._held(needed) <= self._held_bytes_max
        return self._state.generation if is_bearable else needed

    def _held(self, needed: int) -> int:
        """Return the bytes of segments that only the archive needs."""
        oldest = self._state.generation
        count = sum(oldest <= live.generation < needed for live in self._log.segments())
        return count * (self._log.record_bytes_max + limits.SECTOR_BYTES)

    def poll(self) -> None:
        """Start archiving new records if it is due; called in each round, and cheap."""
        now, mark, archived = self._loop.time(), self._log.mark(), self._archived
        is_full = archived is not None and archived.generation != mark.generation
        is_due = now >= self._look_at or (is_full and self.error is None)
        if self._task is None and is_due and mark != archived:
            self._look_at = now + limits.FOLLOW_SECONDS
            self._task = self._loop.create_task(self._catch_up())

    async def catch_up(self) -> None:
        """Archive everything that is in the log by now.

        Raises:
            MillraceError: the archive could not be written.
        """
        await self._end_task()
        self._task = self._loop.create_task(self._catch_up())
        await self._end_task()
        if isinstance(self.error, MillraceError):
            raise self.error.again()
        if self.error is not None:
            # A copy: raising the stored error would keep the frames of the caller alive with it.
            raise copy(self.error)

    async def stop(self) -> None:
        """Archive the rest of the log if possible, and stop."""
        await self._end_task()
        self._task = self._loop.create_task(self._catch_up())
        await self._end_task()
        self._io_thread.close()

    def abort(self) -> None:
        """Stop without an event loop: the thread finishes the step that it has begun."""
        self._io_thread.close()

    async def _end_task(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _catch_up(self) -> None:
        mark, time_ms = self._log.mark(), self._now_ms()
        try:
            self._state = await self._io_thread.submit(lambda: self._step(mark, time_ms))
            self._archived = mark
            self.error = None
        except (MillraceError, OSError) as error:
            if self.error is None:
                _logger.error("the log cannot be archived in %s: %s", self._repository.path, error)
            self.error = detached(error)
            # Read the progress file again: the repository may come back in another state.
            self._progress = None
            self._look_at = self._loop.time() + limits.FOLLOW_RETRY_SECONDS
        finally:
            self._task = None

    # --- On the I/O thread ------------------------------------------------------------------------

    def _step(self, mark: LogMark, time_ms: int) -> ArchiveState:
        state = self._state
        if self._progress is None:
            self._progress = self._begin()
        progress = self._progress
        for live in self._log.segments():
            if not state.generation <= live.generation <= mark.generation:
                continue
            if progress is not None and live.generation < progress.generation:
                continue
            hold = self._log.hold(live.generation)
            if hold is None:
                continue
            with hold:
                is_newest = live.generation == mark.generation
                size = mark.offset if is_newest else live.used_bytes
                if self._is_gap(hold, progress):
                    # Before later records are archived: the gap could not be detected afterwards.
                    state = self._note_gap(state, live.generation)
                self._copy(hold, progress, size)
            serial = mark.serial if is_newest else self._serial_after(live.generation, mark)
            progress = ArchiveProgress(live.generation, size, serial, time_ms)
        if progress is not None and progress != self._progress:
            self._repository.disk.sync_folder(ARCHIVED)
            replace_file(
                self._repository.disk,
                PROGRESS_FILE,
                checksummed_json.encode(progress),
                folder=ARCHIVE,
            )
            self._progress = progress
        reaching = max(state.generation, mark.generation)
        if reaching != state.generation:
            state = msgspec.structs.replace(state, generation=reaching)
            write_archive_state(self._disk, state)
        return state

    def _note_gap(self, state: ArchiveState, generation: int) -> ArchiveState:
        noted = msgspec.structs.replace(state, gap=generation)
        write_archive_state(self._disk, noted)
        _logger.error(
            "the archive in %s has a gap before generation %d of the log, which no restore can "
            "cross. Make a new backup with follow",
            state.vault,
            generation,
        )
        return noted

    def _begin(self) -> ArchiveProgress | None:
        """Read the progress of the archive."""
        vault = self._repository
        if not vault.disk.exists(ARCHIVED):
            # The archive folder is created when archiving begins. If it is missing, the disk is not
            # mounted, or the archive was lost.
            raise NotFound(
                f"{vault.path / ARCHIVED} is not there; is it mounted? If it is lost, make a new "
                "backup with follow",
                field="vault",
            )
        vault.check_folder(self._identity)
        return read_progress(vault.disk) if vault.disk.exists(PROGRESS_FILE) else None

    def _is_gap(self, hold: Hold, progress: ArchiveProgress | None) -> bool:
        header = hold.segment().header
        assert header is not None, "a generation in use has a header"
        return (
            progress is not None
            and header.generation > progress.generation
            and header.first_serial > progress.serial
        )

    def _serial_after(self, generation: int, mark: LogMark) -> int:
        """Return the number of the first record after a full generation."""
        later = min(
            live.generation for live in self._log.segments() if live.generation > generation
        )
        hold = self._log.hold(later)
        if hold is None:
            return mark.serial
        with hold:
            header = hold.segment().header
            assert header is not None, "a generation in use has a header"
            return header.first_serial

    def _copy(self, hold: Hold, progress: ArchiveProgress | None, size: int) -> None:
        """Extend the archived file of a generation to `size`, from the part that is known to be
        durable."""
        disk, name = self._repository.disk, f"{ARCHIVE}/{log_name(hold.generation)}"
        source = hold.segment().file
        done = 0
        if progress is not None and progress.generation == hold.generation:
            done = progress.offset
        is_there = disk.exists(name)
        if done and not is_there:
            raise NotFound(f"{name} is gone; make a new backup with follow", field="vault")
        target = disk.open(name) if is_there else disk.create(name)
        try:
            _check_same(source, target, name, done)
            unsynced = 0
            for offset in range(done, size, limits.CARE_STEP_BYTES):
                data = source.read(min(limits.CARE_STEP_BYTES, size - offset), offset)
                target.write([data], offset)
                unsynced += len(data)
                if unsynced >= limits.SEAL_SYNC_BYTES:
                    target.sync()
                    unsynced = 0
            target.sync_all()
        finally:
            target.close()


def _check_same(source: File, target: File, name: str, done: int) -> None:
    """Check that the archived file is of the same life of the generation."""
    if done and decode_segment_header(target.read(limits.SECTOR_BYTES, 0)) != decode_segment_header(
        source.read(limits.SECTOR_BYTES, 0)
    ):
        raise Exists(f"{name} is of another folder's log; use another vault", field="vault")


def write_archive_state(disk: Disk, state: ArchiveState) -> None:
    """Save durably that the folder is archived."""
    replace_file(disk, STATE_FILE, checksummed_json.encode(state))


def remove_archive_state(disk: Disk) -> None:
    """Save durably that the folder is no longer archived; the archive itself is kept."""
    if disk.exists(STATE_FILE):
        disk.remove(STATE_FILE)
        disk.sync_folder("")
