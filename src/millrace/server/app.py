"""From a request to its answer: who asks, whether they may, which route, and what became of it.

Rule 1: a request is judged before its body is read: known, allowed, within its quota, of a length
that there is room for.
Rule 2: nobody who is not known learns which queues there are, nor which addresses.
Rule 3: an error that nobody foresaw is logged whole and answered without a word of it.
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
from millrace.server.access import Principal, judge_whole
from millrace.server.audit import Begun, outcome_of
from millrace.server.book import Book
from millrace.server.calls import Service
from millrace.server.clock import now_ms
from millrace.server.counted import Counts, Handed, Traffic, among
from millrace.server.guard import DELIVERY_MARK
from millrace.server.holding import Holding
from millrace.server.http.bodies import address_holder
from millrace.server.http.parser import BadRequest, Request
from millrace.server.http.response import Counted, Response
from millrace.server.http.site import Site
from millrace.server.keeping import Keeping
from millrace.server.metrics import gather, names_of
from millrace.server.quota import Quotas
from millrace.server.rest import problem
from millrace.server.rest.act import Act
from millrace.server.rest.desk import Desk
from millrace.server.rest.face import Face, FaceName, Guard, Own
from millrace.server.rest.held import Sessions
from millrace.server.rest.jobs import Jobs
from millrace.server.rest.route import Ask, Route, denied
from millrace.server.rest.slots import Streams
from millrace.server.rest.steward import Steward, is_act, target_of
from millrace.server.rest.stopping import Stopping
from millrace.server.rest.under import Under, mistake
from millrace.server.tables import ROUTES
from millrace.server.watch import Watch

T = TypeVar("T")
_logger = logging.getLogger("millrace.server")

NOWHERE = "-"
"""The route of a request for an address that is none."""

LEFT = 499
"""The status of a request whose client left before it was answered, as it is counted."""


class App:
    """Answers requests by the routes of the table."""

    def __init__(
        self,
        desk: Desk,
        guard: Guard,
        *,
        quotas: Quotas | None = None,
        book: Book | None = None,
        body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX,
        frontend: int | None = None,
        faces: Mapping[FaceName, Face] | None = None,
    ) -> None:
        """`frontend` is the number of this process, if it is one of several; `faces` are those of
        other APIs than the server's own."""
        self._desk = desk
        self._guard = guard
        self.version = guard.version
        """Tells another number when those who have asked may have lost the right to."""
        self._own = Own(guard)
        self._faces: dict[FaceName, Face] = {**(faces or {}), "own": self._own}
        self._routes = ROUTES.only(self._faces)
        self._traffic = Traffic()
        self._handed = Handed()
        self._watch: Watch | None = None
        self.stopping = Stopping()
        self.quotas = Quotas() if quotas is None else quotas
        self.jobs = Jobs(self.quotas, frontend)
        self.sessions = Sessions(self.quotas)
        self.streams = Streams(self.quotas)
        self.book = book
        self._steward = None if book is None else Steward(book, self.quotas)
        keeping = None if book is None else Keeping(book, self.quotas, desk.changed)
        engine = engine_of(desk.millrace)
        self.holding = Holding(engine, self.quotas)
        self.service = Service(engine, keeping, self.holding, self._handed)
        self._quick = engine if isinstance(engine, EmbeddedEngine | RemoteEngine) else None
        if isinstance(engine, EmbeddedEngine):
            engine.is_served = True
        self.site = Site(
            self.admit,
            self.handle,
            self._complain,
            begin=self.begin,
            body_bytes_max=body_bytes_max,
            standing=self,
        )

    def use(self, watch: Watch | None) -> None:
        """Have every request seen from now on; None: by nobody, which costs nothing."""
        self._watch = watch
        self.site.handle = self.handle if watch is None else partial(self._seen, watch)
        self.site.begin = self.begin if watch is None else None

    async def _seen(self, watch: Watch, request: Request) -> Response:
        ask = request.context
        assert isinstance(ask, Ask)
        return await watch.answer(ask, partial(self.handle, request))

    def stop(self) -> None:
        """Answer those who wait for something to come: nothing has; call off what goes on beside
        requests. Call it before the listener's own `stop`, which waits for the answers."""
        self.stopping.stop()
        self.jobs.stop()
        self.sessions.stop()

    async def finish(self) -> None:
        """Write down what is still to be written of requests that were answered."""
        if self._steward is not None:
            await self._steward.close()

    def admit(self, request: Request, length: int | None, peer: str) -> Response | None:
        """Judge a request by its head."""
        if DELIVERY_MARK in request.headers:
            # It would come from this machine, or one that is trusted as it is.
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
                # An address that its account has signed, for less than is asked by it.
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
        request.context = Ask(request, route, params, self._desk, principal, self)
        if not request.kind:
            request.kind = route.name
        return None

    def _nowhere(self, request: Request, peer: str) -> Response:
        """Nothing has this address; who is not known does not learn that."""
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
        """Judge one for which nobody need be known, or whose method is none of the address's."""
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
            # Nobody who is not known has anything kept.
            body = Invalid("this address takes no body; send none", field="body")
            return self._refuse(request, route, stranger, body)
        try:
            self.quotas.take(stranger, now_ms(), size=0)
        except Exhausted as error:
            return self._refuse(request, route, stranger, error)
        request.context = Ask(request, route, params, self._desk, stranger, self)
        return None

    def _face(self, route: Route | None) -> Face:
        """Whose callers ask; where there is no route, the server's own."""
        return self._own if route is None else self._faces[route.face]

    def _refuse(
        self,
        request: Request,
        route: Route | None,
        principal: Principal,
        why: MillraceError | Response,
    ) -> Response:
        """The answer to a request that is not handled; that it came is counted all the same."""
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
        """Judge a request anew that was admitted; None: it goes on."""
        ask = request.context
        if not isinstance(ask, Ask) or ask.route.verb == "public":
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
            # What it goes through was judged piece by piece, by rules that are no more.
            text = "what you may do was changed meanwhile; ask again"
            return self._withdraw(ask, Closed(text, field="authorization"))
        ask.principal = now
        return None

    def _withdraw(self, ask: Ask, why: MillraceError | Response) -> Response:
        """The answer to a request that was admitted, and may not go on."""
        if ask.is_counted:
            # Its answer has begun: that is cut off, and nothing else is said.
            return why if isinstance(why, Response) else self._told(ask, why)
        ask.is_counted = True
        return self._refuse(ask.request, ask.route, ask.principal, why)

    def left(self, ask: Ask) -> None:
        """Count a request that is not answered, for nobody is there any more."""
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

    async def act(self, ask: Ask, act: Act, work: Callable[[], Awaitable[T]]) -> T:
        """Have something done that the route does not tell of, and written down."""
        return await (work() if self._steward is None else self._steward.act(ask, act, work))

    async def begin_act(self, ask: Ask, act: Act, detail: str = "") -> Begun | None:
        """Note that something is about to be done that goes on after its request was answered."""
        steward = self._steward
        return None if steward is None else await steward.begin(ask.principal, act, detail)

    def denied(self, principal: Principal, name: str, target: str) -> None:
        """Note an act that was denied."""
        if self._steward is not None:
            self._steward.denied(principal, name, target)

    @property
    def is_stopping(self) -> bool:
        """Whether it takes no new requests."""
        return self.stopping.is_set or self.site.stopping

    @property
    def handed(self) -> Handed:
        """What lease calls were given."""
        return self._handed

    def face(self, name: FaceName) -> Face:
        """One of the APIs."""
        return self._faces[name]

    async def metrics(self, principal: Principal) -> bytes:
        """What it has counted, of the queues and topics that someone may watch."""
        there = await names_of(self._desk.millrace)
        self._handed.keep(there)
        may = partial(principal.may, "watch")
        told = {(space, name) for space, name in there if may(space, name)}
        return await gather(self._desk, among(self.counted(), told), may)

    def counted(self, frontend: int | None = None) -> Counts:
        """What this process has counted itself."""
        return self._traffic.counted(self._handed, len(self.site.connections), frontend)

    async def handle(self, request: Request) -> Response:
        """Answer a request that was admitted."""
        ask = request.context
        assert isinstance(ask, Ask)
        return await self.again(ask)

    def begin(self, request: Request) -> Under | None:
        """Begin to answer a request that was admitted, if that takes no task."""
        ask, engine = request.context, self._quick
        assert isinstance(ask, Ask)
        if ask.route.quick is None or engine is None:
            return None
        try:
            return ask.route.quick(ask, engine)
        except MillraceError:
            # By the way of all others it ends in the same error, which is answered there.
            return None
        except Exception:
            # What was begun is not known: it is not begun again.
            _logger.exception("%s %s ended in an error", request.method, ask.route.path)
            answer = self._told(ask, mistake())
            request.refusal = self.note(ask, answer, perf_counter())
            return None

    async def again(self, ask: Ask) -> Response:
        """Answer a request by a task, from the beginning."""
        began = perf_counter()
        answer = partial(self._handle, ask)
        steward = self._steward
        try:
            response = await (answer() if steward is None else steward.answer(ask, answer))
        except asyncio.CancelledError:
            self.left(ask)
            raise
        return self.note(ask, response, began)

    async def rest(self, ask: Ask, work: Awaitable[Response], began: float) -> Response:
        """Do by a task what is left to do of a request."""
        try:
            response = await self._answer(ask, work)
        except asyncio.CancelledError:
            self.left(ask)
            raise
        return self.note(ask, response, began)

    def note(self, ask: Ask, response: Response, began: float) -> Response:
        """Count an answer."""
        ask.is_counted = True
        took = None if ask.waits else perf_counter() - began
        self._traffic.note(ask.request.method, ask.route.path, response.status, took)
        if ask.principal.name and self.quotas.counts_bytes(ask.principal):
            self._count(ask.request, ask.principal, response)
        return response

    def _count(self, request: Request, principal: Principal, response: Response) -> None:
        """Count the bytes that were not known at the head of the request."""
        sent = len(request.body) if "transfer-encoding" in request.headers else 0
        self.quotas.owe(principal, now_ms(), sent + len(response.body))
        if response.parts is not None:
            response.parts = Counted(response.parts, partial(self._owe, principal))

    def _owe(self, principal: Principal, size: int) -> None:
        self.quotas.owe(principal, now_ms(), size)

    async def _handle(self, ask: Ask) -> Response:
        return await self._answer(ask, ask.route.handle(ask))

    async def _answer(self, ask: Ask, work: Awaitable[Response]) -> Response:
        try:
            return await work
        except MillraceError as error:
            answer = self.answer_error(ask, error)
            # It may be stored: as an answer of the engine, or of who has failed to prove a name.
            detached(error)
            return answer
        except asyncio.CancelledError:
            raise
        except Exception:
            _logger.exception("%s %s ended in an error", ask.request.method, ask.route.path)
            return self._told(ask, mistake())

    def answer_error(self, ask: Ask, error: MillraceError) -> Response:
        """What is answered to an error."""
        ask.outcome = outcome_of(error)
        if isinstance(error, NotFound) and error.near and not ask.sees(error.near):
            error = error.without_hint()
        if isinstance(error, Fatal):
            _logger.error("%s %s: %s", ask.request.method, ask.route.path, error)
        return self._told(ask, error)

    def _told(self, ask: Ask, error: MillraceError) -> Response:
        return self._face(ask.route).answer_error(ask.request, error)
