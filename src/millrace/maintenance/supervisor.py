"""Supervises the maintenance of one engine's data: WAL archive, scrubbing and watermarks.

It has no timer of its own: the checkpointer calls it in each of its rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace import limits
from millrace.errors import Refused
from millrace.maintenance.backup import (
    BackupSource,
    BackupThrottle,
    CheckpointPause,
    ProgressCallback,
)
from millrace.maintenance.scrub import Scrubber, ScrubSchedule
from millrace.maintenance.wal_archiver import (
    ArchiveState,
    WalArchiver,
    merge_archive_states,
    remove_archive_state,
    write_archive_state,
)
from millrace.maintenance.watermarks import Watermarks, trim_heap
from millrace.store.disk_store import DiskStore
from millrace.store.sealed import file_name
from millrace.wal.disk import Disk
from millrace.wal.io_thread import IoThread
from millrace.wal.write_ahead_log import WriteAheadLog


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """Settings of watermarks, archive and scrubbing."""

    disk_low: int | None
    memory_high: int | None
    follow_held_bytes: int
    scrub: ScrubSchedule


@dataclass(frozen=True, slots=True)
class MaintenancePorts:
    """The supervisor's access to disk, threads, clock and memory."""

    disk: Disk
    folder: Path | None
    """Path of the disk's root on this machine; None if it is elsewhere."""
    io_thread: Callable[[str], IoThread]
    now_ms: Callable[[], int]
    memory_used: Callable[[], int]
    sleep: Callable[[float], None]


class Supervisor:
    """Runs archive, scrubbing and watermarks of one engine."""

    def __init__(
        self,
        ports: MaintenancePorts,
        log: WriteAheadLog,
        store: DiskStore,
        identity: str,
        settings: MaintenanceSettings,
    ) -> None:
        self._ports = ports
        self._log = log
        self._store = store
        self._identity = identity
        self._held_bytes_max = settings.follow_held_bytes
        self.archiver: WalArchiver | None = None
        """The archiver of the WAL; None if it is not archived."""
        disk_low = settings.disk_low
        if disk_low is None:
            disk_low = limits.DISK_LOW_BYTES if ports.folder is not None else 0
        self.watermarks = Watermarks(
            disk_low=disk_low,
            memory_high=settings.memory_high,
            free_bytes=ports.disk.free_bytes,
            used_bytes=ports.memory_used,
            trim=trim_heap,
        )
        self.watermarks.measure()
        self.scrubber = Scrubber(ports.disk, store, log, ports.now_ms, settings.scrub)

    def poll(self, *, is_full: bool = False) -> None:
        """Do the cheap work of a round; `is_full` as in `Watermarks.measure`."""
        self.watermarks.measure(is_full=is_full)
        if self.archiver is not None:
            self.archiver.poll()

    async def oldest_needed(self, needed: int) -> int:
        """Return the oldest generation to retain in the log, given the oldest the store needs."""
        return needed if self.archiver is None else await self.archiver.oldest_needed(needed)

    async def scrub(self, io_thread: IoThread) -> None:
        """Do one step of scrubbing."""
        await self.save_damage(io_thread)
        count = self.scrubber.due_bytes()
        if count:
            await io_thread.submit(lambda: self.scrubber.step(count))
            self.scrubber.publish_findings()

    async def save_damage(self, io_thread: IoThread) -> None:
        """Save which files were found damaged, for the next engine."""
        if self.scrubber.merge_damage():
            await io_thread.submit(self.scrubber.save)

    async def stop(self) -> None:
        """Archive the rest of the log and stop."""
        if self.archiver is not None:
            await self.archiver.stop()

    def abort(self) -> None:
        """Stop as a crash would, without an event loop. The next engine archives the rest."""
        if self.archiver is not None:
            self.archiver.abort()

    # --- On request -------------------------------------------------------------------------------

    def begin(self, following: ArchiveState) -> None:
        """Resume the archive of an earlier engine."""
        self.archiver = WalArchiver(
            self._ports.disk,
            self._log,
            self._ports.io_thread("millrace-archive"),
            self._ports.now_ms,
            self._identity,
            self._held_bytes_max,
            following,
        )

    async def follow(self, repository: Path) -> ArchiveState | None:
        """Archive the WAL in the repository from now on, in this and every later engine of the
        folder.

        `repository` is absolute, because later engines may have another working directory. Returns
        the previous state for `restore_following`; there is no moment at which the folder is not
        archived.
        """
        before = await self._end_archiver()
        self._switch(ArchiveState(str(repository), self._log.mark().generation))
        return before

    async def restore_following(self, before: ArchiveState | None) -> None:
        """Go back to the previous archive: the backup that should begin the new one has failed."""
        if before is None:
            await self.unfollow()
            return
        since = await self._end_archiver()
        if since is not None:
            self._switch(merge_archive_states(before, since))

    def _switch(self, following: ArchiveState) -> None:
        write_archive_state(self._ports.disk, following)
        self.begin(following)

    async def _end_archiver(self) -> ArchiveState | None:
        """Stop the archiver, but keep the state; until it has stopped, it retains the log."""
        archiver = self.archiver
        if archiver is None:
            return None
        await archiver.stop()
        self.archiver = None
        return archiver.state

    async def unfollow(self) -> bool:
        """Stop archiving; return True if the log was archived. The archive itself is kept."""
        archiver, self.archiver = self.archiver, None
        if archiver is not None:
            await archiver.stop()
            remove_archive_state(self._ports.disk)
        return archiver is not None

    def source(self, pausing: CheckpointPause) -> BackupSource:
        """Return the source for a backup of this engine.

        Raises:
            Refused: the folder is not on a disk of this machine.
        """
        ports = self._ports
        if ports.folder is None:
            raise Refused("only a folder on this machine can be backed up", field="path")
        return BackupSource(
            ports.folder,
            ports.disk,
            self._log,
            self._store,
            self._identity,
            ports.now_ms,
            pausing,
        )

    def open_io_thread(self) -> IoThread:
        """Start an I/O thread for long work; the caller closes it."""
        return self._ports.io_thread("millrace-backup")

    def throttle(self, on_progress: ProgressCallback) -> BackupThrottle:
        """Return the step callback of a backup, which sleeps while the WAL is busy."""
        return BackupThrottle(self._log, self._ports.sleep, on_progress)

    def free_bytes(self) -> int:
        """Return the free space of the disk in bytes."""
        return self._ports.disk.free_bytes()

    def damaged(self) -> list[str]:
        """Return the names of files that scrubbing, sealing or readers found damaged."""
        sealed = {file_name(number) for number in self._store.damaged_files()}
        return sorted(sealed | set(self.scrubber.damaged))
