"""The warden of an engine's data: archive, scrubbing and watermarks, under one roof.

The keeper of log and store goes round, and asks the warden on its way; nothing here has a timer of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace.errors import Refused
from millrace.maintenance import bounds
from millrace.maintenance.backup import (
    Pausing,
    Rests,
    Source,
    Told,
)
from millrace.maintenance.scrub import Pace, Scrubber
from millrace.maintenance.wal_archiver import (
    Following,
    WalArchiver,
    end_following,
    joined,
    write_following,
)
from millrace.maintenance.watermarks import Watermarks, give_back
from millrace.store.disk import DiskStore
from millrace.store.sealed import file_name
from millrace.wal.files import Disk
from millrace.wal.io_thread import IoThread
from millrace.wal.write_ahead_log import Log


@dataclass(frozen=True, slots=True)
class Duties:
    """What may be chosen."""

    disk_low: int | None
    memory_high: int | None
    follow_held_bytes: int
    scrub: Pace


@dataclass(frozen=True, slots=True)
class Means:
    """What a warden reaches the world through."""

    disk: Disk
    folder: Path | None
    """Where the disk's root lies on this machine."""
    lane: Callable[[str], IoThread]
    now_ms: Callable[[], int]
    memory_used: Callable[[], int]
    sleep: Callable[[float], None]


class Supervisor:
    """Looks after the data of one engine."""

    def __init__(
        self, means: Means, log: Log, store: DiskStore, identity: str, duties: Duties
    ) -> None:
        self._means = means
        self._log = log
        self._store = store
        self._identity = identity
        self._held_bytes_max = duties.follow_held_bytes
        self.follower: WalArchiver | None = None
        """Who archives the log, if it is followed."""
        disk_low = duties.disk_low
        if disk_low is None:
            disk_low = bounds.DISK_LOW_BYTES if means.folder is not None else 0
        self.watermarks = Watermarks(
            disk_low=disk_low,
            memory_high=duties.memory_high,
            free_bytes=means.disk.free_bytes,
            used_bytes=means.memory_used,
            trim=give_back,
        )
        self.watermarks.look()
        self.scrubber = Scrubber(means.disk, store, log, means.now_ms, duties.scrub)

    def look(self, *, is_full: bool = False) -> None:
        """What is cheap, and done in every round; `is_full` as of `Watermarks.look`."""
        self.watermarks.look(is_full=is_full)
        if self.follower is not None:
            self.follower.look()

    async def floor(self, needed: int) -> int:
        """The oldest generation that must stay in the log, if the store needs this one."""
        return needed if self.follower is None else await self.follower.floor(needed)

    async def scrub(self, lane: IoThread) -> None:
        """Read a little of what lies on the disk again."""
        await self.learn(lane)
        count = self.scrubber.ask()
        if count:
            await lane.submit(lambda: self.scrubber.step(count))
            self.scrubber.settle()

    async def learn(self, lane: IoThread) -> None:
        """Write down which files were found damaged, for the next engine."""
        if self.scrubber.learn():
            await lane.submit(self.scrubber.write_down)

    async def stop(self) -> None:
        """Archive what is there, and end."""
        if self.follower is not None:
            await self.follower.stop()

    def give_up(self) -> None:
        """End as a crash would: the event loop is closed. The next engine archives the rest."""
        if self.follower is not None:
            self.follower.give_up()

    # --- On request -----------------------------------------------------------------------------

    def begin(self, following: Following) -> None:
        """Go on with the archive where an earlier engine has left it."""
        self.follower = WalArchiver(
            self._means.disk,
            self._log,
            self._means.lane("millrace-archive"),
            self._means.now_ms,
            self._identity,
            self._held_bytes_max,
            following,
        )

    async def follow(self, vault: Path) -> Following | None:
        """Archive the log in the vault from now on, and in every later engine of the folder.

        The vault's path is absolute: others go on from elsewhere. Returns what was followed until
        now, for `follow_again`; there is no moment in which the folder is not followed.
        """
        before = await self._end_follower()
        self._switch(Following(str(vault), self._log.mark().generation))
        return before

    async def follow_again(self, before: Following | None) -> None:
        """The backup that should begin an archive came to nothing: go back to what was before."""
        if before is None:
            await self.unfollow()
            return
        since = await self._end_follower()
        if since is not None:
            self._switch(joined(before, since))

    def _switch(self, following: Following) -> None:
        write_following(self._means.disk, following)
        self.begin(following)

    async def _end_follower(self) -> Following | None:
        """End the follower, not the following; until then it holds the log."""
        follower = self.follower
        if follower is None:
            return None
        await follower.stop()
        self.follower = None
        return follower.following

    async def unfollow(self) -> bool:
        """Archive no more; returns whether the log was archived. What was archived stays."""
        follower, self.follower = self.follower, None
        if follower is not None:
            await follower.stop()
            end_following(self._means.disk)
        return follower is not None

    def source(self, pausing: Pausing) -> Source:
        """What a backup is made of.

        Raises:
            Refused: the folder does not lie on a disk of this machine.
        """
        means = self._means
        if means.folder is None:
            raise Refused("only a folder on this machine can be backed up", field="path")
        return Source(
            means.folder,
            means.disk,
            self._log,
            self._store,
            self._identity,
            means.now_ms,
            pausing,
        )

    def care_lane(self) -> IoThread:
        """A lane of its own for long work; whoever asks for it closes it."""
        return self._means.lane("millrace-backup")

    def rests(self, told: Told) -> Rests:
        """The pause of long work beside the engine."""
        return Rests(self._log, self._means.sleep, told)

    def free_bytes(self) -> int:
        """How much may still be written to the disk."""
        return self._means.disk.free_bytes()

    def damaged(self) -> list[str]:
        """What was found damaged, by scrubbing or by sealing."""
        sealed = {file_name(number) for number in self._store.damaged_files()}
        return sorted(sealed | set(self.scrubber.damaged))
