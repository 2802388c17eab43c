"""Redrives of dead letters, as background jobs with progress and cancellation."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.dead_letter_headers import source_of
from millrace.client.queue import Queue
from millrace.client.redrive import Redrive, permit, target_of
from millrace.core.model import Row
from millrace.errors import MillraceError
from millrace.server.auth.audit import Act, carry_out, outcome_of
from millrace.server.auth.store import CurrentRights
from millrace.server.rest.route_table import QUEUE, ROUTES
from millrace.server.web.background_jobs import BackgroundJob, State
from millrace.server.web.problem import Problem, problem_of
from millrace.server.web.route import Nothing, RequestContext

REDRIVE = f"{QUEUE}/redrives/{{job}}"

Pattern = Annotated[str, msgspec.Meta(max_length=limits.REDRIVE_PATTERN_CHARS_MAX)]


class RedriveAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages to redrive, their target, and the rate."""

    to: str | None = None
    """The target queue, as name or space/name; null returns each message to its source. A message
    whose source the caller may not publish to is kept.
    """
    key: Pattern | None = None
    """Move only messages whose key matches: `*` matches any text, `?` one character."""
    headers: Annotated[dict[str, Pattern], msgspec.Meta(max_length=limits.HEADERS_MAX)] = {}
    """Move only messages that have all of these headers with matching values."""
    rate: float | None = None
    """The maximum rate in messages per second."""
    dry_run: bool = False
    """Count the messages without moving them."""
    wait: float = 0
    """Seconds to wait for the job to finish before the response is sent."""


class RedriveOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state and progress of a redrive."""

    id: str
    state: State
    total: int
    """Number of messages to move, as of its start."""
    moved: int
    kept: int
    """Number of messages that were left in place."""
    problem: Problem | None = None
    """The error, if the redrive has failed."""
    aimless: int = 0
    """Number of kept messages without the name of a queue to which they may return."""
    reason: str = ""
    """The reason why nothing was moved, once the job has ended."""


class Redrives(msgspec.Struct, frozen=True):
    """Running redrives, and recently ended ones."""

    redrives: list[RedriveOut]


def _place(ask: RequestContext) -> tuple[str, str]:
    return (ask.params["space"], ask.params["queue"])


def _out(job: BackgroundJob) -> RedriveOut:
    assert isinstance(job.subject, Redrive)
    stats = job.subject.stats
    problem = None if job.error is None else problem_of(job.error)
    counts = (stats.total, stats.moved, stats.kept)
    return RedriveOut(job.id, job.state, *counts, problem, stats.aimless, stats.reason)


@ROUTES.json("POST", f"{QUEUE}/redrives", "work", RedriveAsk, RedriveOut, status=202, tag="redrive")
async def start_redrive(ask: RequestContext, params: RedriveAsk) -> RedriveOut:
    """Start moving dead letters back; the job continues after the response."""
    space = ask.params["space"]
    if params.to is not None:
        ask.check("publish", *target_of(space, params.to))

    rights = CurrentRights(ask.principal, ask.server.book)

    def still(target: str, name: str) -> None:
        rights.check("work", *_place(ask))
        rights.check("publish", target, name)

    async def use(queue: Queue) -> Redrive:
        # Notices a queue that was deleted since it was cached.
        await queue.spec()
        return queue.redrive(
            to=params.to,
            where=lambda row: _fits(rights, params, space, row),
            rate=params.rate,
            dry_run=params.dry_run,
        )

    redrive = await ask.queue(use)
    permit(redrive, still)
    begun = None
    if not params.dry_run:
        act = Act("redrive", "/".join(_place(ask)))
        begun = await ask.server.begin_act(ask, act, f"to {params.to or 'where each came from'}")
    try:
        job = ask.server.jobs.begin(
            ask.principal,
            _place(ask),
            redrive,
            partial(
                carry_out,
                begun,
                redrive.run,
                lambda: f"{redrive.stats.moved} moved",
                is_cancelled="done",
            ),
        )
    except MillraceError as error:
        if begun is not None:
            await begun.end(outcome_of(error), error.code)
        raise
    if params.wait > 0:
        await ask.until(lambda: job.wait(min(params.wait, limits.LEASE_WAIT_MS_MAX / 1000)))
    return _out(job)


def _fits(rights: CurrentRights, params: RedriveAsk, space: str, row: Row) -> bool:
    if params.to is None:
        # The source is named by headers, which any publisher can set: check the right.
        source = source_of(row.headers, space)
        if source is None or not rights.may("publish", *source):
            return False
    if params.key is not None and not fnmatchcase(_text(row.key or b""), params.key):
        return False
    return all(
        any(name == found and fnmatchcase(_text(value), pattern) for found, value in row.headers)
        for name, pattern in params.headers.items()
    )


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


@ROUTES.json("GET", f"{QUEUE}/redrives", "work", Nothing, Redrives, tag="redrive")
async def list_redrives(ask: RequestContext, _: Nothing) -> Redrives:
    """List the redrives of a queue."""
    return Redrives([_out(job) for job in ask.server.jobs.of(_place(ask))])


@ROUTES.json("GET", REDRIVE, "work", Nothing, RedriveOut, tag="redrive")
async def describe_redrive(ask: RequestContext, _: Nothing) -> RedriveOut:
    """Return a redrive's state and progress."""
    return _out(ask.server.jobs.get(_place(ask), ask.params["job"]))


@ROUTES.json("DELETE", REDRIVE, "work", Nothing, RedriveOut, tag="redrive")
async def cancel_redrive(ask: RequestContext, _: Nothing) -> RedriveOut:
    """Cancel a redrive: moved messages stay at their target, all others stay in the queue."""
    job = ask.server.jobs.get(_place(ask), ask.params["job"])
    await job.cancel()
    return _out(job)
