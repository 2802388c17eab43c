"""What is written down of requests besides what they do: acts in the audit, and what was made.

Rule 1: an act of whoever manages is noted before it is done, and how it ended before it is
answered; see `audit`. One that cannot be noted is refused, and has changed nothing.
Rule 2: what is counted against a quota is counted before it is made: a crash in between leaves one
that is counted and not there, never one that is there and not counted. To make it again counts
nothing more, and to delete it ends the count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.errors import MillraceError, NotFound
from millrace.server.access import Principal
from millrace.server.audit import Actor, Begun, Outcome, carry_out
from millrace.server.book import Book
from millrace.server.http.response import Response
from millrace.server.quota import Quotas
from millrace.server.rest.act import Act, Made, queue_made, subscription_made, topic_made
from millrace.server.rest.route import Ask, Route

T = TypeVar("T")


class Steward:
    """Keeps the audit and the counts of a server."""

    def __init__(self, book: Book, quotas: Quotas) -> None:
        self._book = book
        self._quotas = quotas

    async def answer(self, ask: Ask, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Have a request answered, and write down what there is to write."""
        made = made_by(ask.route, ask.params)
        route, who, is_new, is_there = ask.route, ask.principal, False, False
        begun: Begun | None = None
        try:
            if made is not None and route.method == "PUT":
                is_there = await _is_there(ask)
                if not is_there:
                    is_new = await self._book.claim(who, self._quotas.of(who), *made)
            if is_act(route) and not (is_there and _tells_new(route)):
                begun = await self.begin(who, Act(route.name, target_of(ask.params)))
        except MillraceError as error:
            if is_new and made is not None:
                await self._book.unclaim(who, *made)
            return ask.server.answer_error(ask, error)
        try:
            response = await answer()
        except BaseException:
            # Whoever asked has gone, and nobody knows how far it came.
            if begun is not None:
                begun.end_soon("unknown")
            raise
        is_done = response.status < 400
        if made is not None and (
            (is_new and not is_done) or (is_done and route.method == "DELETE")
        ):
            await self._book.unclaim(who, *made)
        if begun is not None:
            outcome = "done" if is_done else _outcome(ask, response)
            # Of what goes on after its answer no more is said than that it was taken in.
            detail = f"{response.status}" if not is_done or response.status == 202 else ""
            await begun.end(outcome, detail)
        return response

    async def begin(self, principal: Principal, act: Act, detail: str = "") -> Begun:
        """Note that an act is about to be done; see `Audit.begin`."""
        return await self._book.audit.begin(actor_of(principal), act.name, act.target, detail)

    async def act(self, ask: Ask, act: Act, work: Callable[[], Awaitable[T]]) -> T:
        """Have something done that the route does not tell of, and write down what there is to
        write.

        Raises:
            MillraceError: what `work` was refused with, or the quota; or it could not be noted, and
                was not done.
        """
        principal, is_new = ask.principal, False
        try:
            if act.makes is not None:
                quota = self._quotas.of(principal)
                is_new = await self._book.claim(principal, quota, *act.makes)
            found = await carry_out(await self.begin(principal, act), work)
        except MillraceError:
            if is_new and act.makes is not None:
                await self._book.unclaim(principal, *act.makes)
            raise
        if act.ends is not None:
            await self._book.unclaim(principal, *act.ends)
        return found

    def denied(self, principal: Principal, name: str, target: str) -> None:
        """Note an act that was denied; so often as the audit has room for it."""
        self._book.audit.denied(actor_of(principal), name, target)

    async def close(self) -> None:
        """Have what is being noted noted."""
        await self._book.audit.close()


def _outcome(ask: Ask, response: Response) -> Outcome:
    """What became of an act that was answered by an error."""
    if ask.outcome is not None:
        return ask.outcome
    return "refused" if response.status < 500 else "unknown"


def is_act(route: Route) -> bool:
    """Whether it is one of an administrator: it changes what there is, or who may do what."""
    return route.verb in ("manage", "admin") and route.method not in ("GET", "HEAD")


def _tells_new(route: Route) -> bool:
    """Whether it makes something, and changes nothing where that is there already."""
    return 201 in (route.status, *route.also_status)


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
    if last == "{subscription}":
        return subscription_made(space, params["topic"], params["subscription"])
    if last == "{cursor}":
        return Made("cursors", f"{space}/{params['queue']}/{params['cursor']}")
    return None


async def _is_there(ask: Ask) -> bool:
    params, millrace = ask.params, ask.desk.millrace
    space = params["space"]
    try:
        if "topic" in params:
            topic = await millrace.find_topic(params["topic"], space=space)
            name = params.get("subscription")
            return name is None or any(one.name == name for one in await topic.subscriptions())
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
