"""Jobs: what goes on after its request was answered, until it is done or called off.

They live as long as the process does. Whatever a job has done by then is done, and what it had
begun is as it was: whoever wants the rest starts another. Where several processes serve, each knows
its own jobs, and the id says whose one is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from millrace import limits
from millrace.errors import Fatal, Full, MillraceError, NotFound

State = Literal["running", "done", "failed", "cancelled"]

_logger = logging.getLogger("millrace.server")


class Job:
    """Something that goes on."""

    def __init__(self, id: str, place: tuple[str, ...], subject: object) -> None:
        self.id = id
        self.place = place
        """What it is of: a queue, by space and name, or the whole server."""
        self.subject = subject
        """What tells how far it is."""
        self.state: State = "running"
        self.error: MillraceError | None = None
        self.result: object = None
        self.task: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do it, and take note of how it ends."""
        try:
            self.result = await work()
            self.state = "done"
        except MillraceError as error:
            self.error, self.state = error, "failed"
        except asyncio.CancelledError:
            self.state = "cancelled"
        except Exception:
            _logger.exception("a job of %s ended in an error", "/".join(self.place))
            self.error, self.state = Fatal("the server made a mistake; its log has more"), "failed"

    async def wait(self, seconds: float) -> None:
        """Until it has ended, but not for longer."""
        if self.task is not None and seconds > 0:
            await asyncio.wait([self.task], timeout=seconds)

    async def cancel(self) -> bool:
        """Call it off; whether it was still running."""
        if self.task is None or self.task.done():
            return False
        self.task.cancel()
        await asyncio.wait([self.task])
        return True


class Jobs:
    """Those that run, and those that ended lately."""

    def __init__(self, frontend: int | None = None) -> None:
        """`frontend` is the number of this process, if it is one of several."""
        self._jobs: dict[str, Job] = {}
        self._last = 0
        self._begin = "" if frontend is None else f"{frontend}-"

    def begin(
        self, place: tuple[str, ...], subject: object, work: Callable[[], Awaitable[object]]
    ) -> Job:
        """Have something done.

        Raises:
            Full: too much is being done already.
        """
        most = limits.JOBS_RUNNING_MAX
        if sum(job.state == "running" for job in self._jobs.values()) >= most:
            raise Full(
                f"{most} jobs are running; wait until one is done, or call one off",
                field="jobs",
                limit=most,
                after_ms=1000,
            )
        while len(self._jobs) >= limits.JOBS_REMEMBERED_MAX:
            ended = next(job for job in self._jobs.values() if job.state != "running")
            del self._jobs[ended.id]
        self._last += 1
        job = Job(f"{self._begin}{self._last}", place, subject)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(job.run(work))
        return job

    def of(self, place: tuple[str, ...]) -> list[Job]:
        """The jobs of a place, oldest first."""
        return [job for job in self._jobs.values() if job.place == place]

    def get(self, place: tuple[str, ...], id: str) -> Job:
        """One of them.

        Raises:
            NotFound: there is none, or it ended long ago.
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
        """Call all of them off."""
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()
