"""Maintenance of a folder's data: backup, restore, verification, repair and health."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from millrace.client.maintenance_results import Backup, Health, Repaired, Restored, Verified
from millrace.client.paths import validate_folder
from millrace.client.queue_repair import repair
from millrace.core import plain_types
from millrace.core.commands import ApplyTransaction, Publish
from millrace.core.format.block import Block
from millrace.core.model import (
    CATALOG,
    Headers,
    NewMessage,
    ShardId,
)
from millrace.engine.command_request import CommandRequest
from millrace.errors import Closed, Invalid
from millrace.event_loop import run_to_completion as done_to_the_end
from millrace.instruments import Gauges
from millrace.maintenance.backup import (
    BackupSource,
    BackupThrottle,
    ProgressCallback,
    back_up,
)
from millrace.maintenance.backup_repository import BackupRepository
from millrace.maintenance.file_copy import ProgressTally
from millrace.maintenance.manifest import Manifest
from millrace.maintenance.restore import (
    RestoreTarget,
    finish,
    plan_restore,
    write_folder,
)
from millrace.maintenance.verify import verify as look_at
from millrace.node import Node, real_ports
from millrace.settings import Settings
from millrace.wal.disk import RealDisk
from millrace.wal.io_thread import IoThread

__all__ = [
    "Backup",
    "NodeMaintenance",
    "ProgressCallback",
    "Restored",
    "Verified",
    "restore",
    "verify",
]


OWNER = "who"
"""Header of a message that may use the reserve; its value says for whom."""

ENDS = "ends"
"""A second header: the message ends a process whose beginning another message announced."""


class NodeMaintenance:
    """Maintenance of the data of an embedded engine."""

    def __init__(self, node: Node, check_open: Callable[[], None]) -> None:
        self._node = node
        self._check_open = check_open
        self._working = asyncio.Lock()
        self._rests: BackupThrottle | None = None
        self.beside: Callable[[], Awaitable[list[str]]] | None = None
        """Returns the counters of other processes that serve the engine, if there are any."""
        self._kept: set[ShardId] = set()
        """Shards whose messages may use the reserve."""

    def keep_room(self, shards: Iterable[ShardId]) -> None:
        """See `Maintenance.keep_room`."""
        self._kept.update(shards)

    def may_use_reserve(self, request: CommandRequest) -> bool:
        """Return True if a publish may use the reserve while disk or memory is short."""
        command = request.command
        parts = (
            command.parts if isinstance(command, ApplyTransaction) else ((request.shard, command),)
        )
        owner: bytes | None = None
        is_end = False
        for at, part in parts:
            if at not in self._kept or not isinstance(part, Publish):
                return False
            for headers in _headers_of(part.rows):
                for name, value in headers:
                    owner = value if name == OWNER else owner
                    is_end = is_end or name == ENDS
        reserve = self._node.supervisor.watermarks.reserve
        if owner is None:
            return False
        return reserve.end(owner) if is_end else reserve.take(owner, request.size)

    async def backup(self, into: Path, told: ProgressCallback, *, follow: bool) -> Backup:
        """See `Millrace.backup`; it is completed or undone even if the caller is cancelled."""
        self._check_open()
        source = self._node.supervisor.source(self._node.checkpointer.pausing)
        vault = BackupRepository(_apart(source.path, into))
        async with self._working:
            rests = self._rests = self._node.supervisor.throttle(told)
            lane = self._node.supervisor.open_io_thread()
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
        self,
        source: BackupSource,
        vault: BackupRepository,
        lane: IoThread,
        rests: BackupThrottle,
        *,
        follow: bool,
    ) -> tuple[Path, Manifest]:
        if not follow:
            return await back_up(source, vault, lane, rests)
        await lane.submit(lambda: vault.prepare(source.identity))
        # Begin archiving first, so that commits during the backup are in the archive, too.
        before = await self._node.supervisor.follow(vault.path)
        try:
            return await back_up(source, vault, lane, rests)
        except BaseException:
            await self._node.supervisor.restore_following(before)
            raise

    async def backing_up(self) -> tuple[int, int]:
        """See `Maintenance.backing_up`."""
        self._check_open()
        rests = self._rests
        return (0, 0) if rests is None else (rests.done, max(rests.total, rests.done))

    async def unfollow(self) -> bool:
        """See `Millrace.unfollow`."""
        self._check_open()
        return await self._node.supervisor.unfollow()

    async def health(self) -> Health:
        """Return the current health of the engine.

        Raises:
            Closed, Fatal: the engine has ended.
        """
        self._check_open()
        self._node.commit_loop_of(CATALOG).check_alive()
        supervisor = self._node.supervisor
        refusal, ended_ms = supervisor.watermarks.refusal, supervisor.scrubber.ended_ms
        follower = supervisor.archiver
        following = follower.state if follower is not None else None
        archive_error = follower.error if follower is not None else None
        return Health(
            refuses=refusal.message if refusal is not None else None,
            disk_free_bytes=supervisor.free_bytes(),
            scrubbed=_time(ended_ms) if ended_ms else None,
            damaged=tuple(supervisor.damaged()),
            archive=Path(following.vault) if following is not None else None,
            archive_behind_bytes=follower.behind() if follower is not None else 0,
            archive_gap=following is not None and following.gap > 0,
            archive_error=str(archive_error) if archive_error is not None else None,
        )

    async def gauges(self) -> Gauges:
        """Return the engine's counters since it was opened, and its sizes."""
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
            node.supervisor.free_bytes(),
            node.supervisor.watermarks.refusal is not None,
            len(node.supervisor.damaged()),
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
        """Abort a running backup, whose files are removed."""
        if self._rests is not None:
            self._rests.stopped = Closed("the engine was closed; the backup was not finished")
        async with self._working:
            pass


def _headers_of(rows: Block | tuple[NewMessage, ...]) -> Iterable[Headers]:
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
    """Restore a backup into the folder `into`: its end, or the state after an entry or at a time.

    `backup` is the folder given to `Millrace.backup`, or one of the backups in it. With an archive
    (`follow`), every point since the oldest backup can be reached. The restored folder has a new
    identity and history: positions and receipts of the source from after that point are recognized
    as invalid. `progress(done, total)` is called on another thread with numbers of bytes.

    Raises:
        Refused: the point cannot be reached; the error says which can.
        Exists: `into` is not empty.
        Corrupt: the backup is damaged; the error names the file.
    """
    source, target = validate_folder(backup, "backup"), validate_folder(into, "into")
    wanted_point = RestoreTarget(_index(index), _millis(time))
    if wanted_point.index is not None and wanted_point.time_ms is not None:
        raise Invalid("index and time cannot both be given; leave one out", field="index")
    tally = ProgressTally(progress or _ignore_progress)
    plan = await asyncio.to_thread(plan_restore, source, wanted_point)
    if _lies_in(target, plan.folder) or (source != plan.folder and _lies_in(target, source)):
        raise Invalid(f"{into} lies among the backups; name another place", field="into")
    tally.expect(plan.work())
    await asyncio.to_thread(write_folder, plan, target, pause=tally)
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
    """Verify a backup: read all of it and check that it opens; it is not changed.

    With `against`, compare it with that folder, which must not be open, at the folder's last entry;
    the folder's log is replayed from the end of the backup. `progress(done, total)` is called on
    another thread with numbers of bytes.

    Raises:
        Corrupt: the backup is damaged; the error names the file.
        Refused: the folder has moved on too far to be compared.
        InUse: the folder is open.
    """
    source = validate_folder(backup, "backup")
    folder = None if against is None else validate_folder(against, "against")
    tally = ProgressTally(progress or _ignore_progress)
    if folder is None:
        result = await asyncio.to_thread(look_at, source, pause=tally)
    else:
        lock = RealDisk(folder).lock("lock")
        try:
            result = await asyncio.to_thread(look_at, source, against=folder, pause=tally)
        finally:
            lock.release()
    return Verified(
        result.backup, result.index, result.shards, result.rows, tuple(result.differences)
    )


def _apart(folder: Path, into: Path) -> Path:
    """Return the absolute path, which must lie outside of the folder itself."""
    if _lies_in(into, folder):
        raise Invalid(
            f"{into} lies in the folder that is backed up; name another place", field="into"
        )
    return into.absolute()


def _lies_in(path: Path, folder: Path) -> bool:
    """Return True if the path is the folder or below it, with links resolved."""
    real, other = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return real == other or other in real.parents


def _forked(settings: Settings) -> Settings:
    return replace(settings, fork=True)


def _index(value: object) -> int | None:
    if value is None:
        return None
    number = plain_types.whole(value)
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


def _ignore_progress(_: int, __: int) -> None:
    """Ignore the progress."""
