"""A backup of an open engine, while it goes on (B1).

- The index is copied while checkpoints wait. LMDB's own copy would be a long reader, which keeps
  every page that is freed meanwhile; and cells read in many short transactions would be of many
  commits. Between two commits the file stands still, and it is small: it has no bodies.
- Sealed files never change: they are linked, or copied where that cannot be. Until that is done,
  none is removed.
- Segments of the log are held and copied up to the end that the log had; a link would be
  overwritten later. What was acknowledged before the backup was asked for is in it.

What takes long is done on a lane; publishing goes on, and the copies rest for its sake.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.core.model import Kind
from millrace.errors import Corrupt, MillraceError, Retry
from millrace.journal.local import LOCAL
from millrace.maintenance import (
    archived_log,
    bounds,
    checksummed_json,
    manifest,
)
from millrace.maintenance.backup_repository import BackupRepository
from millrace.maintenance.file_copy import (
    Sum,
    copy,
    link,
    write_whole,
)
from millrace.maintenance.manifest import (
    AsidePart,
    LogPart,
    Manifest,
    Point,
    SealedPart,
)
from millrace.maintenance.sealed_checksums import check_rows
from millrace.store import unreadable
from millrace.store.disk import DiskStore
from millrace.store.inspect import Inspection, ReadOnlyCells
from millrace.store.sealed import file_name, tail_sum
from millrace.wal.files import Disk, RealDisk
from millrace.wal.io_thread import IoThread
from millrace.wal.record import Mark
from millrace.wal.segment import Hold
from millrace.wal.write_ahead_log import Log

INDEX = "index/data.mdb"

Told = Callable[[int, int], None]
"""Told on the lane how many bytes were copied, and of how many."""


Pausing = Callable[[], AbstractAsyncContextManager[None]]
"""While it lasts, no checkpoint begins; one was written just before."""


@dataclass(frozen=True, slots=True)
class Source:
    """The engine that a backup is made of."""

    path: Path
    disk: Disk
    log: Log
    store: DiskStore
    identity: str
    now_ms: Callable[[], int]
    pausing: Pausing


class Rests:
    """The pause of a backup: it rests as long as the log is being written, and counts."""

    def __init__(self, log: Log, sleep: Callable[[float], None], told: Told) -> None:
        self._log = log
        self._sleep = sleep
        self._told = told
        self._syncs = log.statistics().syncs
        self._began = time.perf_counter()
        self.done = 0
        """Bytes that were copied..."""
        self.total = 0
        """...of so many, as far as that is known."""
        self.stopped: MillraceError | None = None
        """Why the work is not to go on."""

    def __call__(self, count: int) -> None:
        if self.stopped is not None:
            raise self.stopped.again()
        self.done += count
        self._told(self.done, max(self.total, self.done))
        log = self._log.statistics()
        is_idle, self._syncs = log.syncs == self._syncs, log.syncs
        # Who waits for a segment is not helped by a backup that rests.
        is_tight = self._log.room() < self._log.record_bytes_max
        if not is_idle and not is_tight:
            took = time.perf_counter() - self._began
            seconds = max(took * bounds.BACKUP_REST_SHARE, log.sync_seconds)
            self._sleep(min(seconds, bounds.BACKUP_REST_SECONDS_MAX))
        self._began = time.perf_counter()


@dataclass(slots=True)
class _Held:
    """What the log had at the moment of the backup."""

    end: Mark
    time_ms: int
    parts: list[tuple[Hold, int]]
    """Generations and their sizes, oldest first."""
    index: Sum | None = None


async def back_up(
    source: Source, vault: BackupRepository, lane: IoThread, pause: Rests
) -> tuple[Path, Manifest]:
    """Make one more backup in the vault; when this returns, it is whole and durable.

    Raises:
        Exists: the vault has backups of another folder.
        Full: there is no room; what was begun is removed.
    """
    draft = await lane.submit(lambda: vault.begin(source.identity))
    try:
        async with _holding(source, draft.path, lane, pause) as held:
            copying = _Copy(source, vault, draft.path, held, pause)
            made = await lane.submit(copying.run)
    except BaseException:
        await lane.submit(draft.give_up)
        raise
    return await lane.submit(draft.finish), made


@asynccontextmanager
async def _holding(
    source: Source, folder: Path, lane: IoThread, pause: Rests
) -> AsyncIterator[_Held]:
    """Copy the index, and hold everything that it refers to."""
    with ExitStack() as stack:
        stack.enter_context(source.store.keeping_files())
        async with source.pausing():
            held = _hold(source, stack)
            pause.total += sum(size for _, size in held.parts)
            held.index = await lane.submit(lambda: _copy_index(source, folder, pause))
        yield held


def _hold(source: Source, stack: ExitStack) -> _Held:
    log = source.log
    end, time_ms = log.mark(), source.now_ms()
    held = _Held(end, time_ms, [])
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


def _copy_index(source: Source, folder: Path, pause: Rests) -> Sum:
    disk = RealDisk(folder)
    disk.make_folder("index")
    file = source.disk.open(INDEX)
    pause.total += file.size
    try:
        return copy(file, disk, INDEX, size=file.size, pause=pause)
    finally:
        file.close()


class _Copy:
    """The long part of a backup, on a lane."""

    def __init__(
        self, source: Source, vault: BackupRepository, folder: Path, held: _Held, pause: Rests
    ) -> None:
        self._source = source
        self._folder = folder
        self._disk = RealDisk(folder)
        self._held = held
        self._pause = pause
        self._vault = vault
        self._last: Path | None = None
        self._known_log: dict[int, LogPart] = {}
        self._known_files: dict[int, SealedPart] = {}

    def _know(self) -> None:
        """Look what the backup before has: that is shared, where it is still whole."""
        numbers = self._vault.numbers()
        if numbers:
            known = self._vault.manifest_of(numbers[-1])
            self._last = self._vault.folder_of(numbers[-1])
            self._known_log = {part.generation: part for part in known.log}
            self._known_files = {part.number: part for part in known.sealed}

    def run(self) -> Manifest:
        self._know()
        self._disk.make_folder("log")
        self._disk.make_folder("sealed")
        with_index = Inspection(self._disk, ReadOnlyCells(self._folder / "index", is_in_use=False))
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
        end = archived_log.last_index(self._disk, [part.name for part in log], mark, start)
        made = Manifest(
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
        write_whole(self._disk, manifest.MANIFEST, checksummed_json.encode(made))
        return made

    def _take_file(self, number: int, size: int, *, may_be_damaged: bool) -> SealedPart | None:
        """Take a sealed file, or None if it is missing, and the queues that need it know that."""
        name = file_name(number)
        if may_be_damaged and not self._source.disk.exists(name):
            return None
        known = self._known_files.get(number)
        is_known = known is not None and known.size == size
        if not (is_known and self._share(name, size)) and not link(
            self._source.path / name, self._folder / name
        ):
            file = self._source.disk.open(name)
            try:
                copy(file, self._disk, name, size=size, pause=self._pause)
            finally:
                file.close()
        is_damaged = may_be_damaged and self._is_damaged(number)
        return SealedPart(number, size, tail_sum(self._disk, number), is_damaged)

    def _is_damaged(self, number: int) -> bool:
        try:
            check_rows(self._disk, number, self._pause)
        except Corrupt:
            return True
        return False

    def _take_aside(self) -> list[AsidePart]:
        """Take the bytes of unreadable rows."""
        source, parts = self._source.disk, list[AsidePart]()
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
            parts.append(AsidePart(number, taken.size, taken.crc))
        return parts

    def _share(self, name: str, size: int) -> bool:
        """Link the file of the backup before; False if that has lost it, or part of it."""
        if self._last is None or not link(self._last / name, self._folder / name):
            return False
        if (self._folder / name).stat().st_size == size:
            return True
        self._disk.remove(name)
        return False

    def _take_log(self, hold: Hold, size: int) -> LogPart:
        known = self._known_log.get(hold.generation)
        if known is not None and known.size == size and self._share(known.name, size):
            hold.release()
            return known
        name = manifest.log_name(hold.generation)
        taken = copy(hold.segment().file, self._disk, name, size=size, pause=self._pause)
        hold.release()
        return LogPart(hold.generation, taken.size, taken.crc)
