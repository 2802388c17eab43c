"""Online backup of an open engine (B1).

- The index is copied as a file while checkpoints pause. LMDB's own copy is a long read transaction,
  which retains every page that is freed during the copy; reading cells in many short transactions
  would mix commits. Between two commits the file does not change, and it is small: it holds no
  bodies.
- Sealed files are immutable: they are hard-linked, or copied if that is not possible. None is
  removed until then.
- WAL segments are held and copied up to the end of the log; a link would be overwritten later. The
  backup contains everything that was acknowledged before it was requested.

The long parts run on an I/O thread. Publishing goes on, and the copying is throttled in its favour.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace import limits
from millrace.core.cells import Kind
from millrace.errors import Corrupt, MillraceError, Retry
from millrace.journal.local import LOCAL
from millrace.maintenance import (
    archived_log,
    checksummed_json,
    manifest,
)
from millrace.maintenance.backup_repository import BackupRepository
from millrace.maintenance.file_copy import (
    FileChecksum,
    copy,
    link,
    replace_file,
)
from millrace.maintenance.manifest import (
    LogPart,
    Manifest,
    Point,
    QuarantinePart,
    SealedPart,
)
from millrace.maintenance.sealed_checksums import check_rows
from millrace.store import unreadable
from millrace.store.disk_store import DiskStore
from millrace.store.read_only_store import ReadOnlyCells, ReadOnlyStore
from millrace.store.sealed import file_name, footer_checksum
from millrace.wal.disk import Disk, RealDisk
from millrace.wal.io_thread import IoThread
from millrace.wal.record import LogMark
from millrace.wal.segment import Hold
from millrace.wal.write_ahead_log import WriteAheadLog

INDEX = "index/data.mdb"

ProgressCallback = Callable[[int, int], None]
"""Called on the I/O thread with the number of bytes copied and the total."""


CheckpointPause = Callable[[], AbstractAsyncContextManager[None]]
"""Returns a context that writes a checkpoint first and suspends further ones."""


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The engine that is backed up."""

    path: Path
    disk: Disk
    log: WriteAheadLog
    store: DiskStore
    identity: str
    now_ms: Callable[[], int]
    pausing: CheckpointPause


class BackupThrottle:
    """Step callback of a backup that reports progress, and sleeps while the WAL is busy."""

    def __init__(
        self, log: WriteAheadLog, sleep: Callable[[float], None], on_progress: ProgressCallback
    ) -> None:
        self._log = log
        self._sleep = sleep
        self._on_progress = on_progress
        self._syncs = log.statistics().syncs
        self._began = time.perf_counter()
        self.done = 0
        """Number of bytes copied."""
        self.total = 0
        """Total number of bytes, as far as it is known."""
        self.stopped: MillraceError | None = None
        """The error with which the work must end; None to go on."""

    def __call__(self, count: int) -> None:
        if self.stopped is not None:
            raise self.stopped.again()
        self.done += count
        self._on_progress(self.done, max(self.total, self.done))
        log = self._log.statistics()
        is_idle, self._syncs = log.syncs == self._syncs, log.syncs
        # Sleeping would not help publishers that wait for a segment.
        is_tight = self._log.room() < self._log.record_bytes_max
        if not is_idle and not is_tight:
            took = time.perf_counter() - self._began
            seconds = max(took * limits.BACKUP_REST_SHARE, log.sync_seconds)
            self._sleep(min(seconds, limits.BACKUP_REST_SECONDS_MAX))
        self._began = time.perf_counter()


@dataclass(slots=True)
class _LogSnapshot:
    """The log as of the backup."""

    end: LogMark
    time_ms: int
    parts: list[tuple[Hold, int]]
    """Generations with their sizes, oldest first."""
    index: FileChecksum | None = None


async def back_up(
    source: BackupSource, repository: BackupRepository, io_thread: IoThread, pause: BackupThrottle
) -> tuple[Path, Manifest]:
    """Make a backup in the repository; when this returns, it is complete and durable.

    Raises:
        Exists: the repository has backups of another folder.
        Full: the disk has no room; the unfinished backup is removed.
    """
    draft = await io_thread.submit(lambda: repository.begin(source.identity))
    try:
        async with _holding(source, draft.path, io_thread, pause) as held:
            copying = _BackupCopier(source, repository, draft.path, held, pause)
            made = await io_thread.submit(copying.run)
    except BaseException:
        await io_thread.submit(draft.abort)
        raise
    return await io_thread.submit(draft.finish), made


@asynccontextmanager
async def _holding(
    source: BackupSource, folder: Path, io_thread: IoThread, pause: BackupThrottle
) -> AsyncIterator[_LogSnapshot]:
    """Copy the index, and hold the files that it refers to until the context ends."""
    with ExitStack() as stack:
        stack.enter_context(source.store.keeping_files())
        async with source.pausing():
            held = _hold(source, stack)
            pause.total += sum(size for _, size in held.parts)
            held.index = await io_thread.submit(lambda: _copy_index(source, folder, pause))
        yield held


def _hold(source: BackupSource, stack: ExitStack) -> _LogSnapshot:
    log = source.log
    end, time_ms = log.mark(), source.now_ms()
    held = _LogSnapshot(end, time_ms, [])
    needed = source.store.needed_from()
    for live in log.segments():
        if not needed <= live.generation <= end.generation:
            continue
        hold = log.hold(live.generation)
        if hold is None:
            raise Retry("the log was recycled while the backup began; try again", field="log")
        stack.callback(hold.release)
        is_newest = live.generation == end.generation
        held.parts.append((hold, end.offset if is_newest else live.used_bytes))
    return held


def _copy_index(source: BackupSource, folder: Path, pause: BackupThrottle) -> FileChecksum:
    disk = RealDisk(folder)
    disk.make_folder("index")
    file = source.disk.open(INDEX)
    pause.total += file.size
    try:
        return copy(file, disk, INDEX, size=file.size, pause=pause)
    finally:
        file.close()


class _BackupCopier:
    """The long part of a backup, on an I/O thread."""

    def __init__(
        self,
        source: BackupSource,
        repository: BackupRepository,
        folder: Path,
        held: _LogSnapshot,
        pause: BackupThrottle,
    ) -> None:
        self._source = source
        self._folder = folder
        self._disk = RealDisk(folder)
        self._held = held
        self._pause = pause
        self._repository = repository
        self._previous_path: Path | None = None
        self._previous_log: dict[int, LogPart] = {}
        self._previous_files: dict[int, SealedPart] = {}

    def _read_previous(self) -> None:
        """Read the manifest of the previous backup, whose files are shared if still whole."""
        numbers = self._repository.numbers()
        if numbers:
            previous = self._repository.manifest_of(numbers[-1])
            self._previous_path = self._repository.folder_of(numbers[-1])
            self._previous_log = {part.generation: part for part in previous.log}
            self._previous_files = {part.number: part for part in previous.sealed}

    def run(self) -> Manifest:
        self._read_previous()
        self._disk.make_folder("log")
        self._disk.make_folder("sealed")
        with_index = ReadOnlyStore(
            self._disk, ReadOnlyCells(self._folder / "index", is_in_use=False)
        )
        try:
            start, mark = with_index.applied(LOCAL), with_index.mark
            needed, files = with_index.needed, with_index.files()
            is_damaged = bool(self._source.store.damaged_files()) or any(
                with_index.cells_of(shard, Kind.QUARANTINE) for shard in with_index.layered.all()
            )
        finally:
            with_index.close()
        sealed = [
            part
            for number, facts in sorted(files.items())
            if not facts.dropping
            and (part := self._take_file(number, facts.size, may_be_damaged=is_damaged))
        ]
        aside = self._take_aside() if is_damaged else []
        log = [self._take_log(hold, size) for hold, size in self._held.parts]
        index = self._held.index
        assert index is not None, "the index is copied first"
        end = archived_log.read_last_index(self._disk, [part.name for part in log], mark, start)
        new_manifest = Manifest(
            format=manifest.FORMAT,
            folder=self._source.identity,
            log_id=self._source.log.id.hex(),
            start=Point(start, self._held.time_ms),
            end=Point(end, self._held.time_ms),
            mark=mark,
            needed=needed,
            index_size=index.size,
            index_crc=index.crc,
            log=log,
            sealed=sealed,
            quarantine=aside,
        )
        for name in ("index", "log", "sealed", *([unreadable.FOLDER] if aside else [])):
            self._disk.sync_folder(name)
        replace_file(self._disk, manifest.MANIFEST, checksummed_json.encode(new_manifest))
        return new_manifest

    def _take_file(self, number: int, size: int, *, may_be_damaged: bool) -> SealedPart | None:
        """Add a sealed file; return None if it is missing and the queues that need it are
        quarantined."""
        name = file_name(number)
        if may_be_damaged and not self._source.disk.exists(name):
            return None
        previous = self._previous_files.get(number)
        is_shared = previous is not None and previous.size == size
        if not (is_shared and self._link_previous(name, size)) and not link(
            self._source.path / name, self._folder / name
        ):
            file = self._source.disk.open(name)
            try:
                copy(file, self._disk, name, size=size, pause=self._pause)
            finally:
                file.close()
        is_damaged = may_be_damaged and self._is_damaged(number)
        return SealedPart(number, size, footer_checksum(self._disk, number), is_damaged)

    def _is_damaged(self, number: int) -> bool:
        try:
            check_rows(self._disk, number, self._pause)
        except Corrupt:
            return True
        return False

    def _take_aside(self) -> list[QuarantinePart]:
        """Copy the bytes of unreadable rows."""
        source, parts = self._source.disk, list[QuarantinePart]()
        for each in source.names(unreadable.FOLDER):
            number = unreadable.file_number(each)
            if number is None:
                continue
            if not parts:
                self._disk.make_folder(unreadable.FOLDER)
            name = unreadable.file_name(number)
            file = source.open(name)
            try:
                taken = copy(file, self._disk, name, size=file.size, pause=self._pause)
            finally:
                file.close()
            parts.append(QuarantinePart(number, taken.size, taken.crc))
        return parts

    def _link_previous(self, name: str, size: int) -> bool:
        """Hard-link a file of the previous backup; return False if it is missing or truncated
        there."""
        if self._previous_path is None or not link(self._previous_path / name, self._folder / name):
            return False
        if (self._folder / name).stat().st_size == size:
            return True
        self._disk.remove(name)
        return False

    def _take_log(self, hold: Hold, size: int) -> LogPart:
        previous = self._previous_log.get(hold.generation)
        if (
            previous is not None
            and previous.size == size
            and self._link_previous(previous.name, size)
        ):
            hold.release()
            return previous
        name = manifest.log_name(hold.generation)
        checksum = copy(hold.segment().file, self._disk, name, size=size, pause=self._pause)
        hold.release()
        return LogPart(hold.generation, checksum.size, checksum.crc)
