"""Care of the data as programs see it: backups, restores, and what they come to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from millrace.client.backup import Backup, Restored, Verified
from millrace.client.finish import finish as done_to_the_end
from millrace.client.health import Health
from millrace.client.paths import folder_of
from millrace.client.repaired import Repaired
from millrace.client.repairing import repair
from millrace.core import exact
from millrace.core.block import Block
from millrace.core.commands import Publish, Transaction
from millrace.core.model import CATALOG, Headers, Message, ShardId
from millrace.engine.request import Request
from millrace.errors import Closed, Invalid
from millrace.maintenance.backup import (
    Rests,
    Source,
    Told,
    back_up,
)
from millrace.maintenance.backup_repository import BackupRepository
from millrace.maintenance.file_copy import Tally
from millrace.maintenance.manifest import Manifest
from millrace.maintenance.restore import (
    Target,
    find_plan,
    finish,
    lay_out,
)
from millrace.maintenance.verify import verify as look_at
from millrace.meter import Gauges
from millrace.node import Node, real_ports
from millrace.settings import Settings
from millrace.wal.files import RealDisk
from millrace.wal.io_thread import IoThread

__all__ = ["Backup", "FolderCare", "Restored", "Told", "Verified", "restore", "verify"]


OWNER = "who"
"""The header of a message for which the reserve may be used: it says for whom."""

ENDS = "ends"
"""A header beside it: the message says how that ended of which another one had said it begins."""


class FolderCare:
    """What an engine does for its own data, on request."""

    def __init__(self, node: Node, check_open: Callable[[], None]) -> None:
        self._node = node
        self._check_open = check_open
        self._working = asyncio.Lock()
        self._rests: Rests | None = None
        self.beside: Callable[[], Awaitable[list[str]]] | None = None
        """What other processes have counted that speak for the engine, if there are any."""
        self._kept: set[ShardId] = set()
        """Shards of which some room is kept."""

    def keep_room(self, shards: Iterable[ShardId]) -> None:
        """See `Care.keep_room`."""
        self._kept.update(shards)

    def may_use_reserve(self, request: Request) -> bool:
        """Whether a publish, while there is too little room, may use what is kept for it."""
        command = request.command
        parts = command.parts if isinstance(command, Transaction) else ((request.shard, command),)
        owner: bytes | None = None
        is_end = False
        for at, part in parts:
            if at not in self._kept or not isinstance(part, Publish):
                return False
            for headers in _headers_of(part.rows):
                for name, value in headers:
                    owner = value if name == OWNER else owner
                    is_end = is_end or name == ENDS
        reserve = self._node.warden.watermarks.reserve
        if owner is None:
            return False
        return reserve.end(owner) if is_end else reserve.take(owner, request.size)

    async def backup(self, into: Path, told: Told, *, follow: bool) -> Backup:
        """See `Millrace.backup`; done to the end, or undone, whoever is cancelled meanwhile."""
        self._check_open()
        source = self._node.warden.source(self._node.keeper.pausing)
        vault = BackupRepository(_apart(source.path, into))
        async with self._working:
            rests = self._rests = self._node.warden.rests(told)
            lane = self._node.warden.care_lane()
            try:
                task = asyncio.ensure_future(self._make(source, vault, lane, rests, follow=follow))
                path, made = await done_to_the_end(task)
            finally:
                self._rests = None
                lane.close()
        return Backup(
            into / path.name,
            made.start.index,
            made.end.index,
            _time(made.end.time_ms),
            made.size,
        )

    async def _make(
        self, source: Source, vault: BackupRepository, lane: IoThread, rests: Rests, *, follow: bool
    ) -> tuple[Path, Manifest]:
        if not follow:
            return await back_up(source, vault, lane, rests)
        await lane.submit(lambda: vault.prepare(source.identity))
        # First of all: what is committed during the backup is in the archive, too.
        before = await self._node.warden.follow(vault.path)
        try:
            return await back_up(source, vault, lane, rests)
        except BaseException:
            await self._node.warden.follow_again(before)
            raise

    async def backing_up(self) -> tuple[int, int]:
        """See `Care.backing_up`."""
        self._check_open()
        rests = self._rests
        return (0, 0) if rests is None else (rests.done, max(rests.total, rests.done))

    async def unfollow(self) -> bool:
        """See `Millrace.unfollow`."""
        self._check_open()
        return await self._node.warden.unfollow()

    async def health(self) -> Health:
        """How the engine is, now.

        Raises:
            Closed, Fatal: it is not any more.
        """
        self._check_open()
        self._node.host_of(CATALOG).check_alive()
        warden = self._node.warden
        refusal, ended_ms = warden.watermarks.refusal, warden.scrubber.ended_ms
        follower = warden.follower
        following = follower.following if follower is not None else None
        error = follower.error if follower is not None else None
        return Health(
            refuses=refusal.message if refusal is not None else None,
            disk_free_bytes=warden.free_bytes(),
            scrubbed=_time(ended_ms) if ended_ms else None,
            damaged=tuple(warden.damaged()),
            archive=Path(following.vault) if following is not None else None,
            archive_behind_bytes=follower.behind() if follower is not None else 0,
            archive_gap=following is not None and following.gap > 0,
            archive_error=str(error) if error is not None else None,
        )

    async def gauges(self) -> Gauges:
        """What the engine has counted since it was opened, and how large it is."""
        self._check_open()
        beside = () if self.beside is None else tuple(await self.beside())
        self._check_open()
        node, commits = self._node, self._node.writer.commits
        live, dead = node.store.sealed_bytes()
        return Gauges(
            commits.seconds.spread(),
            commits.bytes.spread(),
            commits.entries.spread(),
            node.log.sync_times.spread(),
            live,
            dead,
            sum(segment.used_bytes for segment in node.log.segments()),
            node.warden.free_bytes(),
            node.warden.watermarks.refusal is not None,
            len(node.warden.damaged()),
            beside,
        )

    async def repair(
        self, shards: Sequence[ShardId], export: Path | None, *, drop: bool
    ) -> Repaired:
        """See `Millrace.repair`."""
        self._check_open()
        async with self._working:
            return await repair(self._node, shards, export, drop=drop)

    async def stop(self) -> None:
        """End what is under way; what it has made is removed."""
        if self._rests is not None:
            self._rests.stopped = Closed("the engine was closed; the backup was not finished")
        async with self._working:
            pass


def _headers_of(rows: Block | tuple[Message, ...]) -> Iterable[Headers]:
    if isinstance(rows, Block):
        return map(rows.headers_of, range(rows.count))
    return (message.headers for message in rows)


async def restore(
    backup: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    index: int | None = None,
    time: datetime | None = None,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Restored:
    """Make the folder `into` of a backup: its end, or as it was after an entry or at a time.

    `backup` is the folder that backups were made in, or one of those in it. With an archive
    (`follow`), every point from the oldest backup on can be reached. The restored folder has an
    identity and a history of its own: what the source did after the point means nothing to it.
    `progress` is told, on another thread, how many bytes were read, and of how many.

    Raises:
        Refused: the point cannot be reached; the error says what can be.
        Exists: `into` is not empty.
        Corrupt: the backup is damaged; the error names the file.
    """
    source, target = folder_of(backup, "backup"), folder_of(into, "into")
    wanted = Target(_index(index), _millis(time))
    if wanted.index is not None and wanted.time_ms is not None:
        raise Invalid("index and time cannot both be given; leave one out", field="index")
    pause = Tally(progress or _unheard)
    plan = await asyncio.to_thread(find_plan, source, wanted)
    if _lies_in(target, plan.folder) or (source != plan.folder and _lies_in(target, source)):
        raise Invalid(f"{into} lies among the backups; name another place", field="into")
    pause.expect(plan.work())
    await asyncio.to_thread(lay_out, plan, target, pause=pause)
    chosen = settings or Settings(segment_bytes=plan.pieces[-1].header.size)
    node = await Node.open(real_ports(target), _forked(chosen), is_restoring=True)
    await node.close()
    finish(target)
    point = plan.cut.point
    return Restored(target, plan.folder, point.index, _time(point.time_ms))


async def verify(
    backup: str | os.PathLike[str],
    *,
    against: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Read everything of a backup, and see that it opens; nothing of it is changed.

    With `against`, it must hold the same as that folder, which must not be open, at the folder's
    last entry; the folder's own log leads there from the end of the backup. `progress` is told, on
    another thread, how many bytes were read, and of how many.

    Raises:
        Corrupt: it is damaged; the error names the file.
        Refused: the folder has moved on too far to be compared.
        InUse: the folder is open.
    """
    source = folder_of(backup, "backup")
    folder = None if against is None else folder_of(against, "against")
    pause = Tally(progress or _unheard)
    if folder is None:
        found = await asyncio.to_thread(look_at, source, pause=pause)
    else:
        lock = RealDisk(folder).lock("lock")
        try:
            found = await asyncio.to_thread(look_at, source, against=folder, pause=pause)
        finally:
            lock.release()
    return Verified(found.backup, found.index, found.shards, found.rows, tuple(found.differences))


def _apart(folder: Path, into: Path) -> Path:
    """The whole path, which must not lie in the folder itself."""
    if _lies_in(into, folder):
        raise Invalid(
            f"{into} lies in the folder that is backed up; name another place", field="into"
        )
    return into.absolute()


def _lies_in(path: Path, folder: Path) -> bool:
    """Whether it is the folder, or below it, whatever links lead there."""
    real, other = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return real == other or other in real.parents


def _forked(settings: Settings) -> Settings:
    return replace(settings, fork=True)


def _index(value: object) -> int | None:
    if value is None:
        return None
    number = exact.whole(value)
    if number is None or number < 0:
        raise Invalid("index must be a whole number from 0 on", field="index")
    return number


def _millis(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise Invalid("time must be a datetime", field="time")
    if value.tzinfo is None:
        raise Invalid("time is a datetime without a time zone; take one of UTC", field="time")
    return int(value.timestamp() * 1000)


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def _unheard(_: int, __: int) -> None:
    """Nobody wants to know how far it is."""
