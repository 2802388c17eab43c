"""Redriving dead letters: a job that can be watched and called off."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.letter import source_of
from millrace.client.queue import Queue
from millrace.client.redrive import Redrive, permit, target_of
from millrace.core.model import Row
from millrace.errors import MillraceError
from millrace.server.audit import carry_out, outcome_of
from millrace.server.rest.act import Act
from millrace.server.rest.jobs import Job, State
from millrace.server.rest.problem import Problem, problem_of
from millrace.server.rest.route import Ask, Nothing
from millrace.server.rest.table import QUEUE, ROUTES
from millrace.server.rights import Rights

REDRIVE = f"{QUEUE}/redrives/{{job}}"

Pattern = Annotated[str, msgspec.Meta(max_length=limits.REDRIVE_PATTERN_CHARS_MAX)]


class RedriveAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages go where, and how fast."""

    to: str | None = None
    """A queue, as name or space/name; null: each goes to where it came from. One that the caller
    may not publish to stays."""
    key: Pattern | None = None
    """Only those whose key fits: * stands for any part of it, ? for one character."""
    headers: Annotated[dict[str, Pattern], msgspec.Meta(max_length=limits.HEADERS_MAX)] = {}
    """Only those that have all of these headers, with values that fit."""
    rate: float | None = None
    """So many a second at most."""
    dry_run: bool = False
    """Only count them."""
    wait: float = 0
    """Answer when it is done, or after so many seconds."""


class RedriveOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far it has come."""

    id: str
    state: State
    total: int
    """Messages that were to be moved when it began."""
    moved: int
    kept: int
    """Messages that were there, and are not to be moved."""
    problem: Problem | None = None
    """Why it has failed."""
    aimless: int = 0
    """Messages of the kept that name no queue which they may go back to."""
    reason: str = ""
    """Why nothing was moved, once it is done."""


class Redrives(msgspec.Struct, frozen=True):
    """Those that run, and those that ended lately."""

    redrives: list[RedriveOut]


def _place(ask: Ask) -> tuple[str, str]:
    return (ask.params["space"], ask.params["queue"])


def _out(job: Job) -> RedriveOut:
    assert isinstance(job.subject, Redrive)
    stats = job.subject.stats
    problem = None if job.error is None else problem_of(job.error)
    counts = (stats.total, stats.moved, stats.kept)
    return RedriveOut(job.id, job.state, *counts, problem, stats.aimless, stats.reason)


@ROUTES.json("POST", f"{QUEUE}/redrives", "work", RedriveAsk, RedriveOut, status=202, tag="redrive")
async def start_redrive(ask: Ask, told: RedriveAsk) -> RedriveOut:
    """Move dead letters back; it goes on after this was answered."""
    space = ask.params["space"]
    if told.to is not None:
        ask.check("publish", *target_of(space, told.to))

    rights = Rights(ask.principal, ask.server.book)

    def still(target: str, name: str) -> None:
        rights.check("work", *_place(ask))
        rights.check("publish", target, name)

    async def use(queue: Queue) -> Redrive:
        # One that was deleted is noticed here.
        await queue.spec()
        return queue.redrive(
            to=told.to,
            where=lambda row: _fits(rights, told, space, row),
            rate=told.rate,
            dry_run=told.dry_run,
        )

    redrive = await ask.queue(use)
    permit(redrive, still)
    begun = None
    if not told.dry_run:
        act = Act("redrive", "/".join(_place(ask)))
        begun = await ask.server.begin_act(ask, act, f"to {told.to or 'where each came from'}")
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
    if told.wait > 0:
        await ask.until(lambda: job.wait(min(told.wait, limits.LEASE_WAIT_MS_MAX / 1000)))
    return _out(job)


def _fits(rights: Rights, told: RedriveAsk, space: str, row: Row) -> bool:
    if told.to is None:
        # Headers say where it came from, and headers are whatever somebody has published.
        source = source_of(row.headers, space)
        if source is None or not rights.may("publish", *source):
            return False
    if told.key is not None and not fnmatchcase(_text(row.key or b""), told.key):
        return False
    return all(
        any(name == found and fnmatchcase(_text(value), pattern) for found, value in row.headers)
        for name, pattern in told.headers.items()
    )


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


@ROUTES.json("GET", f"{QUEUE}/redrives", "work", Nothing, Redrives, tag="redrive")
async def list_redrives(ask: Ask, _: Nothing) -> Redrives:
    """The redrives of a queue."""
    return Redrives([_out(job) for job in ask.server.jobs.of(_place(ask))])


@ROUTES.json("GET", REDRIVE, "work", Nothing, RedriveOut, tag="redrive")
async def describe_redrive(ask: Ask, _: Nothing) -> RedriveOut:
    """How far a redrive has come."""
    return _out(ask.server.jobs.get(_place(ask), ask.params["job"]))


@ROUTES.json("DELETE", REDRIVE, "work", Nothing, RedriveOut, tag="redrive")
async def cancel_redrive(ask: Ask, _: Nothing) -> RedriveOut:
    """Call a redrive off: what was moved is moved, everything else is where it was."""
    job = ask.server.jobs.get(_place(ask), ask.params["job"])
    await job.cancel()
    return _out(job)
