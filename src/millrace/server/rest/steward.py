"""What is written down of requests besides what they do: acts in the audit, and what was made.

Rule 1: an act of whoever manages is noted before it is answered, also if it was refused.
Rule 2: what is counted against a quota is counted before it is made: a crash in between leaves one
that is counted and not there, never one that is there and not counted. To make it again counts
nothing more, and to delete it ends the count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace import limits
from millrace.errors import MillraceError, NotFound
from millrace.server.access import Principal
from millrace.server.audit import Actor, Outcome
from millrace.server.book import Book
from millrace.server.http.response import Response
from millrace.server.quota import Quotas
from millrace.server.rest.act import Act, Made, queue_made, topic_made
from millrace.server.rest.route import Ask, Route

T = TypeVar("T")


class Steward:
    """Keeps the audit and the counts of a server."""

    def __init__(self, book: Book, quotas: Quotas) -> None:
        self._book = book
        self._quotas = quotas
        self._notes: set[asyncio.Task[None]] = set()

    async def answer(self, ask: Ask, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Have a request answered, and write down what there is to write."""
        made = made_by(ask.route, ask.params)
        is_new = False
        if made is not None and ask.route.method == "PUT":
            try:
                is_new = await self._claim(ask, made)
            except MillraceError as error:
                return ask.server.answer_error(ask, error)
        response = await answer()
        is_done = response.status < 400
        try:
            if made is not None and (
                (is_new and not is_done) or (is_done and ask.route.method == "DELETE")
            ):
                await self._book.unclaim(made.kind, made.name)
            if is_act(ask.route) and not _was_so(ask.route, response):
                await self._note(ask, "done" if is_done else "failed", f"{response.status}")
        except MillraceError as error:
            # It was done, perhaps, but what must be written of it was not: nobody may think that
            # all is well.
            return ask.server.answer_error(ask, error)
        return response

    async def act(self, ask: Ask, act: Act, work: Callable[[], Awaitable[T]]) -> T:
        """Have something done that the route does not tell of, and write down what there is to
        write.

        Raises:
            MillraceError: what `work` was refused with, or the quota; or it was done, but could not
                be written down.
        """
        principal, is_new = ask.principal, False
        try:
            if act.makes is not None:
                quota = self._quotas.of(principal)
                is_new = await self._book.claim(principal, quota, *act.makes)
            found = await work()
        except MillraceError as error:
            if is_new and act.makes is not None:
                await self._book.unclaim(*act.makes)
            await self._note_act(principal, act, "failed", error.code)
            raise
        if act.ends is not None:
            await self._book.unclaim(*act.ends)
        await self._note_act(principal, act, "done", "")
        return found

    async def _note_act(self, principal: Principal, act: Act, outcome: Outcome, why: str) -> None:
        await self._book.audit.note(
            actor_of(principal), act.name, act.target, outcome=outcome, detail=why
        )

    async def _claim(self, ask: Ask, made: Made) -> bool:
        """Count what is about to be made, unless it is there."""
        if await _is_there(ask):
            return False
        principal = ask.principal
        return await self._book.claim(principal, self._quotas.of(principal), *made)

    async def _note(self, ask: Ask, outcome: Outcome, detail: str) -> None:
        await self._book.audit.note(
            actor_of(ask.principal),
            ask.route.name,
            target_of(ask.params),
            outcome=outcome,
            detail="" if outcome == "done" else detail,
        )

    def denied(self, route: Route, principal: Principal, params: dict[str, str]) -> None:
        """Note an act that was denied at its head; so often as the audit has room for it."""
        if not is_act(route) or len(self._notes) >= limits.AUDIT_DENIED_PER_SECOND:
            return
        note = self._book.audit.note(
            actor_of(principal), route.name, target_of(params), outcome="denied"
        )
        task = asyncio.get_running_loop().create_task(self._finish(note))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _finish(self, note: Awaitable[None]) -> None:
        try:
            await note
        except MillraceError:
            # Nothing was done; whether that could be noted changes nothing for who asked.
            return

    async def close(self) -> None:
        """Have what is being noted noted."""
        await asyncio.gather(*self._notes)


def is_act(route: Route) -> bool:
    """Whether it is one of an administrator: it changes what there is, or who may do what."""
    return route.verb in ("manage", "admin") and route.method not in ("GET", "HEAD")


def _was_so(route: Route, response: Response) -> bool:
    """Whether it was to make something that was there already, and is so where it is told apart."""
    is_told = 201 in (route.status, *route.also_status)
    return route.method == "PUT" and response.status == 200 and is_told


def made_by(route: Route, params: dict[str, str]) -> Made | None:
    """What is counted of a request that makes or ends something."""
    if route.method not in ("PUT", "DELETE"):
        return None
    last = route.path.rpartition("/")[2]
    space = params.get("space", "")
    if last == "{queue}":
        return queue_made(space, params["queue"])
    if last == "{topic}":
        return topic_made(space, params["topic"])
    if last == "{cursor}":
        return Made("cursors", f"{space}/{params['queue']}/{params['cursor']}")
    return None


async def _is_there(ask: Ask) -> bool:
    params, millrace = ask.params, ask.desk.millrace
    space = params["space"]
    try:
        if "topic" in params:
            await millrace.find_topic(params["topic"], space=space)
            return True
        queue = await millrace.find(params["queue"], space=space)
    except NotFound:
        return False
    return "cursor" not in params or params["cursor"] in await queue.cursors()


def actor_of(principal: Principal) -> Actor:
    """Who asks, as the audit has it."""
    return Actor(principal.name, principal.where)


def target_of(params: dict[str, str]) -> str:
    """What an address names."""
    return "/".join(params.values())
