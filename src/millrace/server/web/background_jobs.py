"""Background jobs: operations that continue after the response, until they end or are cancelled.

They do not survive the process. The completed part of an interrupted job stays done and the rest
stays undone; starting another job continues it. With several front ends, each has its own jobs, and
the id contains the number of the front end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from millrace import limits
from millrace.errors import Fatal, MillraceError, NotFound, detached
from millrace.server.auth.access import Principal
from millrace.server.quota.quotas import Quotas
from millrace.server.web.slots import Slots

State = Literal["running", "done", "failed", "cancelled"]

_logger = logging.getLogger("millrace.server")


class BackgroundJob:
    """One job with its state and result."""

    def __init__(self, id: str, place: tuple[str, ...], subject: object) -> None:
        self.id = id
        self.place = place
        """The job's subject: a queue by space and name, or the whole server."""
        self.subject = subject
        """The object that reports the job's progress."""
        self.state: State = "running"
        self.error: MillraceError | None = None
        self.result: object = None
        self.task: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run the job, and record its result or error."""
        try:
            self.result = await work()
            self.state = "done"
        except MillraceError as error:
            self.error, self.state = detached(error), "failed"
        except asyncio.CancelledError:
            self.state = "cancelled"
        except Exception:
            _logger.exception("a job of %s ended in an error", "/".join(self.place))
            self.error, self.state = Fatal("the server made a mistake; its log has more"), "failed"

    async def wait(self, seconds: float) -> None:
        """Wait until the job has ended, for at most `seconds`."""
        if self.task is not None and seconds > 0:
            await asyncio.wait([self.task], timeout=seconds)

    async def cancel(self) -> bool:
        """Cancel the job; return True if it was still running."""
        if self.task is None or self.task.done():
            return False
        self.task.cancel()
        await asyncio.wait([self.task])
        return True


class BackgroundJobs:
    """The running jobs, and those that ended recently."""

    def __init__(self, quotas: Quotas | None = None, frontend: int | None = None) -> None:
        """`frontend` is the number of this process, if it is one of several."""
        self._quotas = Quotas() if quotas is None else quotas
        self._slots = Slots("jobs", limits.JOBS_RUNNING_MAX, "jobs running")
        self._care = Slots("backups", limits.BACKUPS_RUNNING_MAX, "backups running")
        self._jobs: dict[str, BackgroundJob] = {}
        self._last = 0
        self._begin = "" if frontend is None else f"{frontend}-"

    def begin(
        self,
        principal: Principal,
        place: tuple[str, ...],
        subject: object,
        work: Callable[[], Awaitable[object]],
        *,
        is_care: bool = False,
    ) -> BackgroundJob:
        """Start a job for a principal. `is_care` is for backups, which have slots of their own that
        redrives cannot occupy.

        Raises:
            Exhausted: the principal has as many jobs as its quota allows.
            Full: too many jobs are running.
        """
        slots = self._care if is_care else self._slots
        slots.take(principal.name, 0 if is_care else self._quotas.share(principal, "jobs"))
        while len(self._jobs) >= limits.JOBS_REMEMBERED_MAX:
            ended = next(job for job in self._jobs.values() if job.state != "running")
            del self._jobs[ended.id]
        self._last += 1
        job = BackgroundJob(f"{self._begin}{self._last}", place, subject)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(job.run(work))
        job.task.add_done_callback(lambda _: slots.give_back(principal.name))
        return job

    def of(self, place: tuple[str, ...]) -> list[BackgroundJob]:
        """Return the jobs of a subject, oldest first."""
        return [job for job in self._jobs.values() if job.place == place]

    def get(self, place: tuple[str, ...], id: str) -> BackgroundJob:
        """Return a job by its id.

        Raises:
            NotFound: there is no such job, or it ended too long ago.
        """
        job = self._jobs.get(id)
        if self._begin and not id.startswith(self._begin):
            raise NotFound(
                f"the job {id[:40]!r} is not of this front end, which is {self._begin[:-1]}; ask "
                "on the connection on which it was begun",
                field="job",
            )
        if job is None or job.place != place:
            raise NotFound(f"there is no job {id[:40]!r} here, or it ended long ago", field="job")
        return job

    def stop(self) -> None:
        """Cancel all jobs."""
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()
