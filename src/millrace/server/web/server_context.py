"""The interface of the server for route handlers, and the shutdown of requests that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from millrace.errors import MillraceError
from millrace.server.auth.access import Principal
from millrace.server.auth.audit import Act, RunningOperation
from millrace.server.auth.store import UserStore
from millrace.server.counters import LeaseCounters
from millrace.server.http.response import Response
from millrace.server.quota.in_flight import InFlightQuota
from millrace.server.quota.quotas import Quotas
from millrace.server.rpc.call_session import RpcService
from millrace.server.web.api_protocol import ApiProtocol, FaceName
from millrace.server.web.background_jobs import BackgroundJobs
from millrace.server.web.http_sessions import HttpSessions
from millrace.server.web.slots import Streams

if TYPE_CHECKING:
    from millrace.server.web.route import RequestContext


T = TypeVar("T")


class ServerContext(Protocol):
    """The interface of the server for route handlers."""

    @property
    def stopping(self) -> Shutdown:
        """The requests that wait for events, to be answered when the server stops."""
        ...

    @property
    def sessions(self) -> HttpSessions:
        """Sessions over HTTP."""
        ...

    @property
    def streams(self) -> Streams:
        """The slots of event streams."""
        ...

    @property
    def jobs(self) -> BackgroundJobs:
        """The background jobs."""
        ...

    @property
    def is_stopping(self) -> bool:
        """True if the server takes no new requests."""
        ...

    @property
    def service(self) -> RpcService:
        """The service that executes batched calls of other programs."""
        ...

    @property
    def book(self) -> UserStore | None:
        """The store of users and rights; None if there is none."""
        ...

    @property
    def handed(self) -> LeaseCounters:
        """Counters of lease calls and their messages."""
        ...

    @property
    def holding(self) -> InFlightQuota:
        """The quota of messages in flight and pins."""
        ...

    @property
    def quotas(self) -> Quotas:
        """The quotas of users."""
        ...

    def face(self, name: FaceName) -> ApiProtocol:
        """Return the protocol of an API."""
        ...

    async def metrics(self, principal: Principal) -> bytes:
        """Return the metrics page for a principal."""
        ...

    async def begin_act(
        self, ask: RequestContext, act: Act, detail: str = ""
    ) -> RunningOperation | None:
        """Begin the audit entry of an operation that continues after the response; run it by
        `carry_out`. None if there is no audit.

        Raises:
            MillraceError: the entry could not be written, and the operation must not run.
        """
        ...

    def denied(self, principal: Principal, name: str, target: str) -> None:
        """Add an audit entry for a denied operation."""
        ...

    async def act(self, ask: RequestContext, act: Act, work: Callable[[], Awaitable[T]]) -> T:
        """Run an operation that the route does not name, with an audit entry."""
        ...

    def note(self, ask: RequestContext, response: Response, began: float) -> Response:
        """Count a response that is being sent."""
        ...

    def left(self, ask: RequestContext) -> None:
        """Count a request whose client disconnected before the response."""
        ...

    def answer_error(self, ask: RequestContext, error: MillraceError) -> Response:
        """Return the response for an error."""
        ...

    def again(self, ask: RequestContext) -> Awaitable[Response]:
        """Serve the request in a task, from the beginning."""
        ...

    def rest(
        self, ask: RequestContext, work: Awaitable[Response], began: float
    ) -> Awaitable[Response]:
        """Finish the request in a task; errors become responses."""
        ...


# --- Graceful shutdown of requests that wait for events ------------------------------------------

Answer = TypeVar("Answer")


class Waiter(Protocol):
    """A waiting request without a task."""

    def stop(self) -> None:
        """Stop waiting and respond."""
        ...


class Shutdown:
    """The waiting requests, so that a stop answers them immediately instead of cutting them off.

    Messages that a call leased at the moment of the stop are returned to the queue, as for any call
    whose client has disconnected.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: set[asyncio.Task[object]] = set()
        self._waiters: set[Waiter] = set()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting) + len(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """Add a waiting request until it is discarded."""
        self._waiters.add(waiter)

    def discard(self, waiter: Waiter) -> None:
        """Remove a waiting request."""
        self._waiters.discard(waiter)

    async def until(self, wait: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Run `wait` and return its result; None if the server stops first."""
        if self.is_set:
            return None
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            return await wait()
        except asyncio.CancelledError:
            # Swallow the cancellation only if `stop` is its single cause.
            if task in self._waiting or task.uncancel():
                raise
            return None
        finally:
            self._waiting.discard(task)

    def stop(self) -> None:
        """End all waits, present and future ones."""
        self.is_set = True
        waiting, self._waiting = self._waiting, set()
        for task in waiting:
            task.cancel()
        for waiter in list(self._waiters):
            waiter.stop()
