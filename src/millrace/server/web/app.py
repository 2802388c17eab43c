"""Request processing from head to response: authentication, authorization, routing, counting.

Rule 1: a request is checked before its body is read: authentication, rights, quota, and room for a
body of its length.
Rule 2: unauthenticated callers do not learn which queues or addresses exist.
Rule 3: an unexpected error is logged in full, and the response contains none of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TypeVar

from millrace import limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import engine_of
from millrace.client.remote import RemoteEngine
from millrace.errors import (
    Closed,
    Denied,
    Exhausted,
    Fatal,
    Full,
    Invalid,
    MillraceError,
    NotFound,
    Unauthenticated,
    detached,
)
from millrace.server.auth.access import Principal, judge_whole
from millrace.server.auth.audit import Act, RunningOperation, outcome_of
from millrace.server.auth.authenticator import DELIVERY_MARK
from millrace.server.auth.store import UserStore
from millrace.server.clock import now_ms
from millrace.server.counters import (
    LeaseCounters,
    ProcessCounters,
    RequestCounters,
    among,
)
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.memory_limits import address_holder
from millrace.server.http.parser import BadRequest, Request
from millrace.server.http.response import CountedBody, Response
from millrace.server.quota.in_flight import InFlightQuota
from millrace.server.quota.quotas import Quotas
from millrace.server.rpc.call_audit import CallAudit
from millrace.server.rpc.call_session import RpcService
from millrace.server.web import problem
from millrace.server.web.api_protocol import (
    ApiProtocol,
    Authenticates,
    FaceName,
    NativeApi,
)
from millrace.server.web.background_jobs import BackgroundJobs
from millrace.server.web.http_sessions import HttpSessions
from millrace.server.web.metrics import gather, names_of
from millrace.server.web.pending_request import PendingRequest, mistake
from millrace.server.web.queue_cache import QueueCache
from millrace.server.web.request_audit import RequestAudit, is_act, target_of
from millrace.server.web.request_log import RequestLog
from millrace.server.web.route import RequestContext, Route, Routes, denied
from millrace.server.web.server_context import Shutdown
from millrace.server.web.slots import Streams

T = TypeVar("T")
_logger = logging.getLogger("millrace.server")

NOWHERE = "-"
"""The route of requests whose address does not exist, in counters and logs."""

LEFT = 499
"""The counted status of a request whose client disconnected before the response."""


class App:
    """Serves requests by the routes of a table."""

    def __init__(
        self,
        desk: QueueCache,
        guard: Authenticates,
        routes: Routes,
        *,
        quotas: Quotas | None = None,
        book: UserStore | None = None,
        body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX,
        frontend: int | None = None,
        faces: Mapping[FaceName, ApiProtocol] | None = None,
    ) -> None:
        """`frontend` is the number of this process, if it is one of several; `faces` are the
        protocols of APIs other than the native one.
        """
        self._desk = desk
        self._guard = guard
        self.version = guard.version
        """Returns a number that changes whenever callers may have lost rights."""
        self._own = NativeApi(guard)
        self._faces: dict[FaceName, ApiProtocol] = {**(faces or {}), "own": self._own}
        self._routes = routes.only(self._faces)
        self._traffic = RequestCounters()
        self._handed = LeaseCounters()
        self._watch: RequestLog | None = None
        self.stopping = Shutdown()
        self.quotas = Quotas() if quotas is None else quotas
        self.jobs = BackgroundJobs(self.quotas, frontend)
        self.sessions = HttpSessions(self.quotas)
        self.streams = Streams(self.quotas)
        self.book = book
        self._steward = None if book is None else RequestAudit(book, self.quotas)
        keeping = None if book is None else CallAudit(book, self.quotas, desk.changed)
        engine = engine_of(desk.millrace)
        self.holding = InFlightQuota(engine, self.quotas)
        self.service = RpcService(engine, keeping, self.holding, self._handed)
        self._quick = engine if isinstance(engine, EmbeddedEngine | RemoteEngine) else None
        if isinstance(engine, EmbeddedEngine):
            engine.is_served = True
        self.site = ListenerContext(
            self.admit,
            self.handle,
            self._complain,
            begin=self.begin,
            body_bytes_max=body_bytes_max,
            standing=self,
        )

    def use(self, watch: RequestLog | None) -> None:
        """Log or trace every request from now on; None turns that off, at no cost per request."""
        self._watch = watch
        self.site.handle = self.handle if watch is None else partial(self._seen, watch)
        self.site.begin = self.begin if watch is None else None

    async def _seen(self, watch: RequestLog, request: Request) -> Response:
        ask = request.context
        assert isinstance(ask, RequestContext)
        return await watch.answer(ask, partial(self.handle, request))

    def stop(self) -> None:
        """Answer waiting requests as having received nothing, and cancel background jobs.

        Call it before the listener's own `stop`, which waits for the responses.
        """
        self.stopping.stop()
        self.jobs.stop()
        self.sessions.stop()

    async def finish(self) -> None:
        """Flush the audit entries of requests that were answered."""
        if self._steward is not None:
            await self._steward.close()

    def admit(self, request: Request, length: int | None, peer: str) -> Response | None:
        """Check a request by its head; return the response that refuses it, or None if it is
        admitted.
        """
        if DELIVERY_MARK in request.headers:
            # SNS deliveries of a server to itself: they would come from this host, or from one that
            # is trusted for its address.
            error = Denied("a server is no endpoint of SNS: subscribe another", field="endpoint")
            return self._refuse(request, None, Principal("", (), peer), error)
        found = self._routes.find(request.path)
        if found is None:
            return self._nowhere(request, peer)
        routes, params = found
        route = routes.get("GET" if request.method == "HEAD" else request.method)
        if route is None or route.verb == "public":
            return self._admit_stranger(request, length, peer, found, route)
        face = self._faces[route.face]
        principal = face.admit(request, params, peer)
        if isinstance(principal, MillraceError):
            if isinstance(principal, Denied) and is_act(route):
                # A signed address: its account has signed fewer rights than the request needs.
                signer = Principal(params.get("space", ""), (), peer)
                self.denied(signer, route.name, target_of(params))
            request.is_stranger = True
            return self._refuse(request, route, Principal("", (), peer), principal)
        refused = self._judge(route, principal, params)
        if refused is not None:
            if is_act(route):
                self.denied(principal, route.name, target_of(params))
            return self._refuse(request, route, principal, refused)
        request.owner = principal.name
        if request.is_stranger:
            request.holder = address_holder(peer)
        excess = self.site.bodies.excess(request.holder or request.owner, length or 0)
        if excess is not None:
            text, most = excess
            return self._refuse(request, route, principal, Full(text, field="body", limit=most))
        try:
            if not face.proves_later:
                self.quotas.take(principal, now_ms(), size=length or 0)
        except Exhausted as error:
            return self._refuse(request, route, principal, error)
        request.context = RequestContext(request, route, params, self._desk, principal, self)
        if not request.kind:
            request.kind = route.name
        return None

    def _nowhere(self, request: Request, peer: str) -> Response:
        """Refuse a request for an unknown address; unauthenticated callers get 401 instead of
        404.
        """
        known = self._own.admit(request, {}, peer)
        if isinstance(known, MillraceError):
            request.is_stranger = True
            return self._refuse(request, None, Principal("", (), peer), known)
        error = NotFound(f"nothing is at {request.path[:200]!r}; see /v1", field="path")
        return self._refuse(request, None, known, error)

    def _admit_stranger(
        self,
        request: Request,
        length: int | None,
        peer: str,
        found: tuple[dict[str, Route], dict[str, str]],
        route: Route | None,
    ) -> Response | None:
        """Check a request for a public route, or with a method that the address does not have."""
        routes, params = found
        request.is_stranger = True
        stranger = Principal("", (), peer)
        if route is None:
            face = self._faces[next(iter(routes.values())).face]
            known = face.admit(request, params, peer)
            if isinstance(known, MillraceError):
                return self._refuse(request, route, stranger, known)
            return self._refuse(request, None, known, problem.answer_method(sorted(routes)))
        if length != 0:
            # Bodies of unauthenticated callers are never buffered.
            body = Invalid("this address takes no body; send none", field="body")
            return self._refuse(request, route, stranger, body)
        try:
            self.quotas.take(stranger, now_ms(), size=0)
        except Exhausted as error:
            return self._refuse(request, route, stranger, error)
        request.context = RequestContext(request, route, params, self._desk, stranger, self)
        return None

    def _face(self, route: Route | None) -> ApiProtocol:
        """Return the protocol of a route; the native one if there is no route."""
        return self._own if route is None else self._faces[route.face]

    def _refuse(
        self,
        request: Request,
        route: Route | None,
        principal: Principal,
        why: MillraceError | Response,
    ) -> Response:
        """Return and count the response that refuses a request."""
        face = self._face(route)
        refusal = why if isinstance(why, Response) else face.answer_error(request, why)
        path = NOWHERE if route is None else route.path
        self._traffic.note(request.method, path, refusal.status, None)
        if self._watch is not None:
            who, where = principal.name, principal.where
            self._watch.refused(request, path, who, where, refusal.status)
        return refusal

    def _complain(self, bad: BadRequest) -> Response:
        self._traffic.note(NOWHERE, NOWHERE, bad.status, None)
        return problem.answer_bad(bad)

    def judge(self, request: Request) -> Response | None:
        """Check an admitted request again; return the response that ends it, or None if it may go
        on.
        """
        ask = request.context
        if not isinstance(ask, RequestContext) or ask.route.verb == "public":
            return None
        was = ask.principal
        now = self._face(ask.route).who(request, ask.params, was.where)
        if now is None:
            error: MillraceError = Unauthenticated(
                "whoever asked is not known any more; send a token that is good",
                field="authorization",
            )
            return self._withdraw(ask, error)
        refused = self._judge(ask.route, now, ask.params)
        if refused is not None:
            return self._withdraw(ask, refused)
        if ask.route.verb == "known" and now.rules != was.rules:
            # The request was authorized piece by piece, by rules that have changed since.
            text = "what you may do was changed meanwhile; ask again"
            return self._withdraw(ask, Closed(text, field="authorization"))
        ask.principal = now
        return None

    def _withdraw(self, ask: RequestContext, why: MillraceError | Response) -> Response:
        """Return the response that ends an admitted request."""
        if ask.is_counted:
            # The response has begun: it is cut off, and no second response is counted.
            return why if isinstance(why, Response) else self._told(ask, why)
        ask.is_counted = True
        return self._refuse(ask.request, ask.route, ask.principal, why)

    def left(self, ask: RequestContext) -> None:
        """Count a request whose client disconnected before the response."""
        self._withdraw(ask, Response(LEFT))

    def _judge(self, route: Route, principal: Principal, params: dict[str, str]) -> Denied | None:
        verb = route.verb
        if verb == "public" or verb == "known":
            return None
        space = params.get("space", "")
        name = params.get("queue") or params.get("topic") or "*"
        if not space and verb == "admin":
            ruling = judge_whole(principal.rules, verb)
            if ruling.allowed:
                return None
            if ruling.rule is not None:
                text = f"{principal.name!r} may not {verb} the whole server: {ruling.rule}"
                return Denied(text, field="verb")
        elif principal.may(verb, space or "*", name):
            return None
        return denied(principal, verb, space, name)

    async def act(self, ask: RequestContext, act: Act, work: Callable[[], Awaitable[T]]) -> T:
        """Run an operation that the route does not name, with an audit entry."""
        return await (work() if self._steward is None else self._steward.act(ask, act, work))

    async def begin_act(
        self, ask: RequestContext, act: Act, detail: str = ""
    ) -> RunningOperation | None:
        """Begin the audit entry of an operation that continues after the response."""
        steward = self._steward
        return None if steward is None else await steward.begin(ask.principal, act, detail)

    def denied(self, principal: Principal, name: str, target: str) -> None:
        """Add an audit entry for a denied operation."""
        if self._steward is not None:
            self._steward.denied(principal, name, target)

    @property
    def is_stopping(self) -> bool:
        """True if the server takes no new requests."""
        return self.stopping.is_set or self.site.stopping

    @property
    def handed(self) -> LeaseCounters:
        """Counters of lease calls and their messages."""
        return self._handed

    def face(self, name: FaceName) -> ApiProtocol:
        """Return the protocol of an API."""
        return self._faces[name]

    async def metrics(self, principal: Principal) -> bytes:
        """Return the metrics page, with the queues and topics that the principal may watch."""
        there = await names_of(self._desk.millrace)
        self._handed.keep(there)
        may = partial(principal.may, "watch")
        told = {(space, name) for space, name in there if may(space, name)}
        return await gather(self._desk, among(self.counted(), told), may)

    def counted(self, frontend: int | None = None) -> ProcessCounters:
        """Return the counters of this process."""
        return self._traffic.counted(self._handed, len(self.site.connections), frontend)

    async def handle(self, request: Request) -> Response:
        """Serve an admitted request."""
        ask = request.context
        assert isinstance(ask, RequestContext)
        return await self.again(ask)

    def begin(self, request: Request) -> PendingRequest | None:
        """Start to serve an admitted request without a task, if its route and engine allow that."""
        ask, engine = request.context, self._quick
        assert isinstance(ask, RequestContext)
        if ask.route.quick is None or engine is None:
            return None
        try:
            return ask.route.quick(ask, engine)
        except MillraceError:
            # The task that serves it next fails with the same error, and renders it there.
            return None
        except Exception:
            # The operation may have been started, so that it must not be started a second time.
            _logger.exception("%s %s ended in an error", request.method, ask.route.path)
            answer = self._told(ask, mistake())
            request.refusal = self.note(ask, answer, perf_counter())
            return None

    async def again(self, ask: RequestContext) -> Response:
        """Serve a request in a task, from the beginning."""
        began = perf_counter()
        answer = partial(self._handle, ask)
        steward = self._steward
        try:
            response = await (answer() if steward is None else steward.answer(ask, answer))
        except asyncio.CancelledError:
            self.left(ask)
            raise
        return self.note(ask, response, began)

    async def rest(self, ask: RequestContext, work: Awaitable[Response], began: float) -> Response:
        """Finish a request in a task."""
        try:
            response = await self._answer(ask, work)
        except asyncio.CancelledError:
            self.left(ask)
            raise
        return self.note(ask, response, began)

    def note(self, ask: RequestContext, response: Response, began: float) -> Response:
        """Count a response."""
        ask.is_counted = True
        took = None if ask.waits else perf_counter() - began
        self._traffic.note(ask.request.method, ask.route.path, response.status, took)
        if ask.principal.name and self.quotas.counts_bytes(ask.principal):
            self._count(ask.request, ask.principal, response)
        return response

    def _count(self, request: Request, principal: Principal, response: Response) -> None:
        """Charge the bytes that were not known when the head of the request was checked."""
        sent = len(request.body) if "transfer-encoding" in request.headers else 0
        self.quotas.owe(principal, now_ms(), sent + len(response.body))
        if response.parts is not None:
            response.parts = CountedBody(response.parts, partial(self._owe, principal))

    def _owe(self, principal: Principal, size: int) -> None:
        self.quotas.owe(principal, now_ms(), size)

    async def _handle(self, ask: RequestContext) -> Response:
        return await self._answer(ask, ask.route.handle(ask))

    async def _answer(self, ask: RequestContext, work: Awaitable[Response]) -> Response:
        try:
            return await work
        except MillraceError as error:
            answer = self.answer_error(ask, error)
            # The error may be kept, as a result in the engine or by failed authentication: drop its
            # frames.
            detached(error)
            return answer
        except asyncio.CancelledError:
            raise
        except Exception:
            _logger.exception("%s %s ended in an error", ask.request.method, ask.route.path)
            return self._told(ask, mistake())

    def answer_error(self, ask: RequestContext, error: MillraceError) -> Response:
        """Return the response for an error, and note its outcome."""
        ask.outcome = outcome_of(error)
        if isinstance(error, NotFound) and error.near and not ask.sees(error.near):
            error = error.without_hint()
        if isinstance(error, Fatal):
            _logger.error("%s %s: %s", ask.request.method, ask.route.path, error)
        return self._told(ask, error)

    def _told(self, ask: RequestContext, error: MillraceError) -> Response:
        return self._face(ask.route).answer_error(ask.request, error)
