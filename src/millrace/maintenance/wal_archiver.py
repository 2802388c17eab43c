"""Following: the log is archived beside its backups before it is recycled.

A folder that is followed says so in the file `follow`: the vault, and the oldest generation of the
log that the archive does not have whole. Every engine that opens the folder goes on from there, so
that nothing is missed between two of them.

Rule 1: what `archive/reached.json` says is in the archive was synced before, in its file and under
its name.
Rule 2: a generation that the archive lacks is not recycled, up to `follow_held_bytes` of them.
Beyond it the engine counts for more: the log goes on, the archive has a gap, and whoever asks for
the health of the engine is told. A new backup begins a new stretch.
Rule 3: a vault that cannot be written to is tried again, for ever, and holds nobody up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from millrace import limits
from millrace.errors import Exists, MillraceError, NotFound, detached
from millrace.maintenance import bounds, checksummed_json
from millrace.maintenance.backup_repository import ARCHIVE, ARCHIVED, BackupRepository
from millrace.maintenance.file_copy import write_whole
from millrace.maintenance.manifest import log_name
from millrace.maintenance.wal_archive import REACHED, Reached, read_reached
from millrace.wal.files import Disk, File
from millrace.wal.io_thread import IoThread
from millrace.wal.record import Mark, decode_segment
from millrace.wal.segment import Hold
from millrace.wal.write_ahead_log import Log

FOLLOW = "follow"

_logger = logging.getLogger("millrace")


class Following(msgspec.Struct, frozen=True):
    """What a folder knows of its archive."""

    vault: str
    generation: int
    """The oldest one that the archive does not have whole."""
    gap: int = 0
    """The generation before which something is missing; 0 if nothing is."""


def read_following(disk: Disk) -> Following | None:
    """Whether the folder is followed.

    Raises:
        Corrupt: the file that says so is damaged.
    """
    if not disk.exists(FOLLOW):
        return None
    hint = "remove the file, and begin a new backup with follow"
    return checksummed_json.read(disk, FOLLOW, Following, hint=hint)


def joined(before: Following, since: Following) -> Following:
    """What a folder knows of an archive, if `since` was begun on top of it in vain."""
    if before.vault != since.vault:
        return before
    # A gap that either has seen is there; nobody could see it afterwards.
    generation = min(before.generation, since.generation)
    return Following(before.vault, generation, since.gap or before.gap)


class WalArchiver:
    """Archives the log of an engine, on a lane of its own."""

    def __init__(
        self,
        disk: Disk,
        log: Log,
        lane: IoThread,
        now_ms: Callable[[], int],
        identity: str,
        held_bytes_max: int,
        following: Following,
    ) -> None:
        self._disk = disk
        self._log = log
        self._lane = lane
        self._now_ms = now_ms
        self._identity = identity
        self._held_bytes_max = held_bytes_max
        self._loop = asyncio.get_running_loop()
        self._vault = BackupRepository(Path(following.vault))
        self._following = following
        self._reached: Reached | None = None
        self._archived: Mark | None = None
        self._task: asyncio.Task[None] | None = None
        self._look_at = 0.0
        self.error: MillraceError | OSError | None = None
        """Why the last attempt came to nothing."""

    @property
    def following(self) -> Following:
        return self._following

    def behind(self) -> int:
        """About how many bytes of the log are not archived yet."""
        mark, reached = self._log.mark(), self._archived
        if mark == reached:
            return 0
        since = reached.generation if reached is not None else self._following.generation
        known = reached.offset if reached is not None else 0
        live = [one.used_bytes for one in self._log.segments() if one.generation >= since]
        return max(sum(live) - known, 1)

    async def floor(self, needed: int) -> int:
        """The oldest generation that must stay in the log, if the store needs this one.

        Where too much is held, an archive that works is waited for once; a gap is for those that
        do not.
        """
        if self._held(needed) > self._held_bytes_max and self.error is None:
            await self._end_task()
            self._task = self._loop.create_task(self._catch_up())
            await self._end_task()
        is_bearable = 0 < self._held(needed) <= self._held_bytes_max
        return self._following.generation if is_bearable else needed

    def _held(self, needed: int) -> int:
        """Bytes of the segments that nobody but the archive needs."""
        oldest = self._following.generation
        count = sum(oldest <= live.generation < needed for live in self._log.segments())
        return count * (self._log.record_bytes_max + limits.SECTOR_BYTES)

    def look(self) -> None:
        """Now and then, and cheap: archive what is new."""
        now, mark, archived = self._loop.time(), self._log.mark(), self._archived
        is_full = archived is not None and archived.generation != mark.generation
        is_due = now >= self._look_at or (is_full and self.error is None)
        if self._task is None and is_due and mark != archived:
            self._look_at = now + bounds.FOLLOW_SECONDS
            self._task = self._loop.create_task(self._catch_up())

    async def catch_up(self) -> None:
        """Archive everything that is in the log by now.

        Raises:
            MillraceError: it could not be done.
        """
        await self._end_task()
        self._task = self._loop.create_task(self._catch_up())
        await self._end_task()
        if isinstance(self.error, MillraceError):
            raise self.error.again()
        if self.error is not None:
            raise self.error

    async def stop(self) -> None:
        """Archive what is there, if that can be done, and end."""
        await self._end_task()
        self._task = self._loop.create_task(self._catch_up())
        await self._end_task()
        self._lane.close()

    def give_up(self) -> None:
        """End without an event loop: what the lane has begun is done, and no more."""
        self._lane.close()

    async def _end_task(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _catch_up(self) -> None:
        mark, time_ms = self._log.mark(), self._now_ms()
        try:
            self._following = await self._lane.submit(lambda: self._step(mark, time_ms))
            self._archived = mark
            self.error = None
        except (MillraceError, OSError) as error:
            if self.error is None:
                _logger.error("the log cannot be archived in %s: %s", self._vault.path, error)
            self.error = detached(error)
            # Whatever comes back is looked at anew.
            self._reached = None
            self._look_at = self._loop.time() + bounds.FOLLOW_RETRY_SECONDS
        finally:
            self._task = None

    # --- On the lane ----------------------------------------------------------------------------

    def _step(self, mark: Mark, time_ms: int) -> Following:
        following = self._following
        if self._reached is None:
            self._reached = self._begin()
        reached = self._reached
        for live in self._log.segments():
            if not following.generation <= live.generation <= mark.generation:
                continue
            if reached is not None and live.generation < reached.generation:
                continue
            hold = self._log.hold(live.generation)
            if hold is None:
                continue
            with hold:
                is_newest = live.generation == mark.generation
                size = mark.offset if is_newest else live.used_bytes
                if self._is_gap(hold, reached):
                    # Before anything behind it is archived: nobody could see it afterwards.
                    following = self._note_gap(following, live.generation)
                self._copy(hold, reached, size)
            serial = mark.serial if is_newest else self._serial_after(live.generation, mark)
            reached = Reached(live.generation, size, serial, time_ms)
        if reached is not None and reached != self._reached:
            self._vault.disk.sync_folder(ARCHIVED)
            write_whole(self._vault.disk, REACHED, checksummed_json.encode(reached), folder=ARCHIVE)
            self._reached = reached
        reaching = max(following.generation, mark.generation)
        if reaching != following.generation:
            following = msgspec.structs.replace(following, generation=reaching)
            write_following(self._disk, following)
        return following

    def _note_gap(self, following: Following, generation: int) -> Following:
        noted = msgspec.structs.replace(following, gap=generation)
        write_following(self._disk, noted)
        _logger.error(
            "the archive in %s has a gap before generation %d of the log, which no restore can "
            "cross. Make a new backup with follow",
            following.vault,
            generation,
        )
        return noted

    def _begin(self) -> Reached | None:
        """Look what the archive has."""
        vault = self._vault
        if not vault.disk.exists(ARCHIVED):
            # It is made with the following: a folder without it is a place where nothing is
            # mounted, or has lost what was archived.
            raise NotFound(
                f"{vault.path / ARCHIVED} is not there; is it mounted? If it is lost, make a new "
                "backup with follow",
                field="vault",
            )
        vault.check_folder(self._identity)
        return read_reached(vault.disk) if vault.disk.exists(REACHED) else None

    def _is_gap(self, hold: Hold, reached: Reached | None) -> bool:
        header = hold.segment().header
        assert header is not None, "a generation in use has a header"
        return (
            reached is not None
            and header.generation > reached.generation
            and header.first_serial > reached.serial
        )

    def _serial_after(self, generation: int, mark: Mark) -> int:
        """The number of the first record behind a generation that is full."""
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

    def _copy(self, hold: Hold, reached: Reached | None, size: int) -> None:
        """Bring the generation's file up to `size`, from where it is known to be durable."""
        disk, name = self._vault.disk, f"{ARCHIVE}/{log_name(hold.generation)}"
        source = hold.segment().file
        done = 0
        if reached is not None and reached.generation == hold.generation:
            done = reached.offset
        is_there = disk.exists(name)
        if done and not is_there:
            raise NotFound(f"{name} is gone; make a new backup with follow", field="vault")
        target = disk.open(name) if is_there else disk.create(name)
        try:
            _check_same(source, target, name, done)
            unsynced = 0
            for offset in range(done, size, bounds.CARE_STEP_BYTES):
                data = source.read(min(bounds.CARE_STEP_BYTES, size - offset), offset)
                target.write([data], offset)
                unsynced += len(data)
                if unsynced >= limits.SEAL_SYNC_BYTES:
                    target.sync()
                    unsynced = 0
            target.sync_all()
        finally:
            target.close()


def _check_same(source: File, target: File, name: str, done: int) -> None:
    """Make sure that what is there is of the same life of the generation."""
    if done and decode_segment(target.read(limits.SECTOR_BYTES, 0)) != decode_segment(
        source.read(limits.SECTOR_BYTES, 0)
    ):
        raise Exists(f"{name} is of another folder's log; use another vault", field="vault")


def write_following(disk: Disk, following: Following) -> None:
    """Say durably that the folder is followed."""
    write_whole(disk, FOLLOW, checksummed_json.encode(following))


def end_following(disk: Disk) -> None:
    """Say durably that it is followed no more; what is archived stays."""
    if disk.exists(FOLLOW):
        disk.remove(FOLLOW)
        disk.sync_folder("")
