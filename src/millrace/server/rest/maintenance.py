"""Maintenance of the data: backups, the archive, health."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from millrace import limits
from millrace.client.maintenance_results import Backup
from millrace.errors import Invalid
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route_table import ROUTES
from millrace.server.web.background_jobs import BackgroundJob, State
from millrace.server.web.problem import Problem, problem_of
from millrace.server.web.route import Nothing, RequestContext

_PLACE = ("backups",)


class BackupProgress:
    """The progress of a backup; another thread updates it."""

    def __init__(self) -> None:
        self.copied = 0
        self.total = 0

    def note(self, copied: int, total: int) -> None:
        self.copied, self.total = copied, total


class BackupAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The target of a backup, and whether to archive the log there afterwards."""

    into: str
    """Absolute path of a folder on the server's machine; backups in the same folder share their
    common data.
    """
    follow: bool = False
    """Archive the log there from now on, so that every later point in time can be restored too."""
    wait: float = 0
    """Seconds to wait for the backup to finish before the response is sent."""


class BackupOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state and progress of a backup."""

    id: str
    state: State
    bytes_copied: int
    bytes_total: int
    path: str | None = None
    """The backup's own folder, once it is finished."""
    first_index: int | None = None
    """The first entry that it can restore…"""
    last_index: int | None = None
    """…and the last one; later ones need an archive."""
    time: str | None = None
    """The time of the last entry."""
    problem: Problem | None = None
    """The error, if the backup has failed."""


class Backups(msgspec.Struct, frozen=True):
    """Running backups, and recently finished ones."""

    backups: list[BackupOut]


def _out(job: BackgroundJob) -> BackupOut:
    progress, made = job.subject, job.result
    assert isinstance(progress, BackupProgress)
    problem = None if job.error is None else problem_of(job.error)
    found = BackupOut(job.id, job.state, progress.copied, progress.total, problem=problem)
    if not isinstance(made, Backup):
        return found
    return msgspec.structs.replace(
        found,
        path=str(made.path),
        first_index=made.first_index,
        last_index=made.last_index,
        time=made.time.isoformat(),
    )


@ROUTES.json("POST", "/v1/backups", "admin", BackupAsk, BackupOut, status=202, tag="care")
async def start_backup(ask: RequestContext, params: BackupAsk) -> BackupOut:
    """Start a backup of all data, which continues after the response; the server keeps working."""
    if not PurePosixPath(params.into).is_absolute() or "\0" in params.into:
        raise Invalid("into is no whole path; it begins with a slash", field="into")
    progress = BackupProgress()
    millrace = ask.desk.millrace
    job = ask.server.jobs.begin(
        ask.principal,
        _PLACE,
        progress,
        lambda: millrace.backup(params.into, follow=params.follow, progress=progress.note),
        is_care=True,
    )
    if params.wait > 0:
        await ask.until(lambda: job.wait(min(params.wait, limits.LEASE_WAIT_MS_MAX / 1000)))
    return _out(job)


@ROUTES.json("GET", "/v1/backups", "admin", Nothing, Backups, tag="care")
async def list_backups(ask: RequestContext, _: Nothing) -> Backups:
    """List the backups that this process runs or has recently finished."""
    return Backups([_out(job) for job in ask.server.jobs.of(_PLACE)])


@ROUTES.json("GET", "/v1/backups/{job}", "admin", Nothing, BackupOut, tag="care")
async def describe_backup(ask: RequestContext, _: Nothing) -> BackupOut:
    """Return a backup's state and progress."""
    return _out(ask.server.jobs.get(_PLACE, ask.params["job"]))


@ROUTES.json("POST", "/v1/unfollow", "admin", Nothing, WasThere, tag="care")
async def unfollow(ask: RequestContext, _: Nothing) -> WasThere:
    """Stop archiving the log; the archive is kept."""
    return WasThere(await ask.desk.millrace.unfollow())


class HealthOut(msgspec.Struct, frozen=True):
    """The engine's state as of now."""

    refuses: str | None
    """The reason why publishing is refused at present: shortage of disk or memory."""
    disk_free_bytes: int
    scrubbed: str | None
    """The end of the last scrub, which reads all data on the disk and verifies its checksums."""
    damaged: list[str]
    """Damaged files; requests for their rows are refused."""
    archive: str | None
    """The target of the log archive, if there is one."""
    archive_behind_bytes: int
    """Approximate size of the log that is not archived yet."""
    archive_gap: bool
    """True if the archive has a gap: make a new backup with `follow`."""
    archive_error: str | None
    """The reason why the archive cannot be written at present."""


@ROUTES.json("GET", "/v1/health", "admin", Nothing, HealthOut, tag="care")
async def health(ask: RequestContext, _: Nothing) -> HealthOut:
    """Return the state of the engine, its disk and its archive."""
    found = await ask.desk.millrace.health()
    return HealthOut(
        found.refuses,
        found.disk_free_bytes,
        None if found.scrubbed is None else found.scrubbed.isoformat(),
        list(found.damaged),
        None if found.archive is None else str(found.archive),
        found.archive_behind_bytes,
        found.archive_gap,
        found.archive_error,
    )
