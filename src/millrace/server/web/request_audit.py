"""Audit entries and quota counts of requests that create, change or delete objects.

Rule 1: an administrative operation is recorded before it is executed, and its outcome before the
response; see `audit`. If it cannot be recorded, it is refused, and has changed nothing.
Rule 2: an object is counted towards a quota before it is created: after a crash in between, it is
counted without existing, and never the reverse. Creating it again adds nothing to the count, and
deleting it removes the count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.errors import MillraceError, NotFound
from millrace.server.auth.access import Principal
from millrace.server.auth.audit import (
    Act,
    Actor,
    CountedObject,
    Outcome,
    RunningOperation,
    carry_out,
    queue_made,
    subscription_made,
    topic_made,
)
from millrace.server.auth.store import UserStore
from millrace.server.http.response import Response
from millrace.server.quota.quotas import Quotas
from millrace.server.web.route import RequestContext, Route

T = TypeVar("T")


class RequestAudit:
    """Writes the audit and the quota counts of a server's requests."""

    def __init__(self, book: UserStore, quotas: Quotas) -> None:
        self._book = book
        self._quotas = quotas

    async def answer(
        self, ask: RequestContext, answer: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Serve a request with its audit entry and quota count."""
        made = made_by(ask.route, ask.params)
        route, who, is_new, is_there = ask.route, ask.principal, False, False
        begun: RunningOperation | None = None
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
            # The client has disconnected, and the progress of the operation is unknown.
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
            # For an operation that continues after the response, only its acceptance is recorded.
            detail = f"{response.status}" if not is_done or response.status == 202 else ""
            await begun.end(outcome, detail)
        return response

    async def begin(self, principal: Principal, act: Act, detail: str = "") -> RunningOperation:
        """Begin the audit entry of an operation; see `Audit.begin`."""
        return await self._book.audit.begin(actor_of(principal), act.name, act.target, detail)

    async def act(self, ask: RequestContext, act: Act, work: Callable[[], Awaitable[T]]) -> T:
        """Run an operation that the route does not name, with its audit entry and quota count.

        Raises:
            MillraceError: `work` was refused, or the quota is exhausted; or the audit entry could
                not be written, and `work` did not run.
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
        """Add an audit entry for a denied operation, at the rate that the audit allows."""
        self._book.audit.denied(actor_of(principal), name, target)

    async def close(self) -> None:
        """Flush the entries that are being written."""
        await self._book.audit.close()


def _outcome(ask: RequestContext, response: Response) -> Outcome:
    """Return the audited outcome of an operation with an error response."""
    if ask.outcome is not None:
        return ask.outcome
    return "refused" if response.status < 500 else "unknown"


def is_act(route: Route) -> bool:
    """Return True for administrative operations: they change objects or rights."""
    return route.verb in ("manage", "admin") and route.method not in ("GET", "HEAD")


def _tells_new(route: Route) -> bool:
    """Return True if a route creates an object, and changes nothing if it exists already."""
    return 201 in (route.status, *route.also_status)


def made_by(route: Route, params: dict[str, str]) -> CountedObject | None:
    """Return the counted object of a request that creates or deletes one, or None."""
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
        return CountedObject("cursors", f"{space}/{params['queue']}/{params['cursor']}")
    return None


async def _is_there(ask: RequestContext) -> bool:
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
    """Return the actor of audit entries for a principal."""
    return Actor(principal.name, principal.where)


def target_of(params: dict[str, str]) -> str:
    """Return the audited target from the parameters of a path."""
    return "/".join(params.values())
