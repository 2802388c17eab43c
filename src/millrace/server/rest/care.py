"""Care of the data: backups, the archive, health."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from millrace import limits
from millrace.client.backup import Backup
from millrace.errors import Invalid
from millrace.server.rest.jobs import Job, State
from millrace.server.rest.problem import Problem, problem_of
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route import Ask, Nothing
from millrace.server.rest.table import ROUTES

_PLACE = ("backups",)


class Progress:
    """How far a backup is, as it is told on another thread."""

    def __init__(self) -> None:
        self.copied = 0
        self.total = 0

    def note(self, copied: int, total: int) -> None:
        self.copied, self.total = copied, total


class BackupAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to, and whether to go on."""

    into: str
    """A folder of the server's machine, as a whole path; backups in one folder share what they have
    in common."""
    follow: bool = False
    """Archive the log there from now on, so that every later point can be restored, too."""
    wait: float = 0
    """Answer when it is done, or after so many seconds."""


class BackupOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far it has come."""

    id: str
    state: State
    bytes_copied: int
    bytes_total: int
    path: str | None = None
    """Its own folder, when it is done."""
    first_index: int | None = None
    """It can be restored from this entry on..."""
    last_index: int | None = None
    """...to this one, or later with an archive."""
    time: str | None = None
    """As of when."""
    problem: Problem | None = None
    """Why it has failed."""


class Backups(msgspec.Struct, frozen=True):
    """Those that are being made, and those that were made lately."""

    backups: list[BackupOut]


def _out(job: Job) -> BackupOut:
    progress, made = job.subject, job.result
    assert isinstance(progress, Progress)
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
async def start_backup(ask: Ask, told: BackupAsk) -> BackupOut:
    """Make a backup of everything while all else goes on; also after this was answered."""
    if not PurePosixPath(told.into).is_absolute() or "\0" in told.into:
        raise Invalid("into is no whole path; it begins with a slash", field="into")
    progress = Progress()
    millrace = ask.desk.millrace
    job = ask.server.jobs.begin(
        ask.principal,
        _PLACE,
        progress,
        lambda: millrace.backup(told.into, follow=told.follow, progress=progress.note),
        is_care=True,
    )
    if told.wait > 0:
        await ask.until(lambda: job.wait(min(told.wait, limits.LEASE_WAIT_MS_MAX / 1000)))
    return _out(job)


@ROUTES.json("GET", "/v1/backups", "admin", Nothing, Backups, tag="care")
async def list_backups(ask: Ask, _: Nothing) -> Backups:
    """The backups that this process makes, or made lately."""
    return Backups([_out(job) for job in ask.server.jobs.of(_PLACE)])


@ROUTES.json("GET", "/v1/backups/{job}", "admin", Nothing, BackupOut, tag="care")
async def describe_backup(ask: Ask, _: Nothing) -> BackupOut:
    """How far a backup has come."""
    return _out(ask.server.jobs.get(_PLACE, ask.params["job"]))


@ROUTES.json("POST", "/v1/unfollow", "admin", Nothing, WasThere, tag="care")
async def unfollow(ask: Ask, _: Nothing) -> WasThere:
    """Archive the log no more; what was archived stays."""
    return WasThere(await ask.desk.millrace.unfollow())


class HealthOut(msgspec.Struct, frozen=True):
    """What the engine knows of its own state."""

    refuses: str | None
    """Why publishing is refused at the moment: the disk or the memory is short."""
    disk_free_bytes: int
    scrubbed: str | None
    """When everything on the disk was last read again and compared with its sums."""
    damaged: list[str]
    """What was found damaged; the rows in it are refused."""
    archive: str | None
    """Where the log is archived, if it is followed."""
    archive_behind_bytes: int
    """About how much of the log is not archived yet."""
    archive_gap: bool
    """Something is missing from the archive: make a new backup with `follow`."""
    archive_error: str | None
    """Why it cannot be written to, at the moment."""


@ROUTES.json("GET", "/v1/health", "admin", Nothing, HealthOut, tag="care")
async def health(ask: Ask, _: Nothing) -> HealthOut:
    """How the engine is."""
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
