"""The table of routes, which requests are matched by and the OpenAPI document is generated from.

Rule 1: a route declares the required right (`verb`), and the types of request and response; a
request is authorized by that before any byte of its body is buffered.
Rule 2: requests are decoded by the declared types: no field is read that is not in the OpenAPI
document, and none is left unvalidated.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Container, Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from millrace import limits
from millrace.client.engine import CallbackEngine
from millrace.client.queue import Queue
from millrace.client.topic import Topic
from millrace.decoding import convert, json_decoder
from millrace.errors import Denied, Invalid, TooLarge
from millrace.server.auth.access import (
    VERBS,
    Principal,
    Verb,
    may,
)
from millrace.server.auth.audit import Outcome
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.web.api_protocol import FaceName
from millrace.server.web.pending_request import PendingRequest, Quick
from millrace.server.web.queue_cache import QueueCache
from millrace.server.web.server_context import ServerContext

Takes = TypeVar("Takes", bound=msgspec.Struct)
Gives = TypeVar("Gives")
T = TypeVar("T")

JSON = "application/json"


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without body or query."""


class RequestContext:
    """A request in progress, with its route, principal and server."""

    __slots__ = (
        "desk",
        "is_charged",
        "is_counted",
        "outcome",
        "params",
        "principal",
        "request",
        "route",
        "server",
        "waits",
    )

    def __init__(
        self,
        request: Request,
        route: Route,
        params: dict[str, str],
        desk: QueueCache,
        principal: Principal,
        server: ServerContext,
    ) -> None:
        self.request = request
        self.route = route
        self.params = params
        """The values of the path's parameters."""
        self.desk = desk
        self.principal = principal
        self.server = server
        self.waits = False
        """True if the duration is excluded from the latency metrics, because the request waits for
        events.
        """
        self.is_charged = False
        """True if the request is charged to its caller's quota, for APIs with `proves_later`."""
        self.is_counted = False
        """True if the outcome is known and counted."""
        self.outcome: Outcome | None = None
        """The outcome of a request with an error response. The error itself is not kept: it
        references the frames that raised it, and they reference this context.
        """

    async def until(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """Run `wait` without a time limit, and return its result; None if the server stops
        first.
        """
        self.waits = True
        return await self.server.stopping.until(wait)

    def known(self) -> Queue | None:
        """Return the queue in the path, if it is cached and has one shard."""
        params = self.params
        queue = self.desk.known(params["space"], params["queue"])
        return queue if queue is not None and queue.shards.is_one else None

    async def queue(self, use: Callable[[Queue], Awaitable[T]]) -> T:
        """Run `use` on the queue in the path, and return its result."""
        params = self.params
        return await self.desk.queue(params["space"], params["queue"], use)

    async def topic(self, use: Callable[[Topic], Awaitable[T]]) -> T:
        """Run `use` on the topic in the path, and return its result."""
        params = self.params
        return await self.desk.topic(params["space"], params["topic"], use)

    def check(self, verb: Verb, space: str, name: str) -> None:
        """Check the caller's right on an object that the body names.

        Raises:
            Denied: the caller does not have it.
        """
        if not may(self.principal.rules, verb, space, name):
            if verb in ("manage", "admin"):
                self.server.denied(self.principal, self.route.name, f"{space}/{name}")
            raise denied(self.principal, verb, space, name)

    def sees(self, place: str) -> bool:
        """Return True if the caller has any right on a queue or topic, given as space/name or as a
        name in the path's space.
        """
        space, slash, name = place.partition("/")
        if not slash:
            space, name = self.params["space"], place
        return any(may(self.principal.rules, verb, space, name) for verb in VERBS)

    @property
    def type(self) -> str:
        """The media type of the body, without its parameters."""
        found = self.request.headers.get("content-type", "")
        return found if found == JSON else found.partition(";")[0].strip().lower()

    def query(self) -> dict[str, str]:
        """Parse the query string.

        Raises:
            Invalid: a name occurs twice, or there are too many.
        """
        text = self.request.query
        if not text:
            return {}
        try:
            pairs = parse_qsl(
                text,
                keep_blank_values=True,
                strict_parsing=True,
                max_num_fields=limits.HTTP_QUERY_FIELDS_MAX,
            )
        except ValueError as error:
            raise Invalid(f"the query cannot be read: {error}", field="query") from error
        found = dict(pairs)
        if len(found) < len(pairs):
            raise Invalid("a name stands twice in the query", field="query")
        return found


Handle = Callable[[RequestContext], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Media:
    """A body that is not JSON: its media type and description."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    verb: Verb | Literal["public", "known"]
    """The right that the caller needs on the object in the path. `known`: authentication is enough;
    `public`: no authentication.
    """
    handle: Handle
    name: str
    summary: str
    takes: type[msgspec.Struct] | None = None
    gives: object = None
    status: int = 200
    also_takes: tuple[Media, ...] = ()
    gives_media: tuple[Media, ...] = ()
    tag: str = ""
    query: type[msgspec.Struct] | None = None
    """The parameters of the query string, in addition to a body that is not JSON."""
    also_status: tuple[int, ...] = ()
    """Further statuses of a successful response of the same form."""
    quick: Quick | None = None
    """Starts to serve the request without a task, if possible."""
    face: FaceName = "own"
    """The API that the route belongs to."""
    space: str = ""
    """The space of the object in the path, if the path does not contain one."""

    @property
    def takes_query(self) -> bool:
        """True if the parameters are in the query string instead of the body."""
        return self.method in ("GET", "DELETE")


@dataclass(slots=True)
class _Step:
    words: dict[str, _Step] = field(default_factory=dict)
    any: _Step | None = None
    name: str = ""
    space: str = ""
    routes: dict[str, Route] = field(default_factory=dict)


_PARAM = re.compile(r"\{(\w+)\}")


class Routes:
    """A table of routes, with lookup by path."""

    def __init__(self, face: FaceName = "own", *, space: str = "") -> None:
        """`face` is the API of the routes that are declared in this table; `space` is the space of
        their objects, if their paths contain none.
        """
        self.face = face
        self.space = space
        self.all: list[Route] = []
        self._root = _Step()
        self._known: dict[str, tuple[dict[str, Route], dict[str, str]]] = {}

    def add(self, route: Route) -> None:
        """Add a route to the table."""
        self.all.append(route)
        self._known.clear()
        step = self._root
        for word in route.path.split("/")[1:]:
            found = _PARAM.fullmatch(word)
            if found is None:
                step = step.words.setdefault(word, _Step())
                continue
            if step.any is None:
                step.any = _Step(name=found[1])
            assert step.any.name == found[1], route.path
            step = step.any
        assert route.method not in step.routes, route.path
        assert not step.routes or step.space == route.space, route.path
        step.space = route.space
        step.routes[route.method] = route

    def join(self, *others: Routes) -> Routes:
        """Return a table with the routes of this and other tables."""
        return _table(route for table in (self, *others) for route in table.all)

    def only(self, faces: Container[FaceName]) -> Routes:
        """Return a table with the routes of these APIs."""
        return _table(route for route in self.all if route.face in faces)

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """Return the routes of a path by method, and the values of its parameters.

        The caller must not change either of them.
        """
        known = self._known.get(path)
        if known is None:
            known = self._walk(path)
            if known is not None and len(path) <= limits.ADDRESS_KNOWN_CHARS_MAX:
                if len(self._known) >= limits.ADDRESSES_KNOWN_MAX:
                    self._known.clear()
                self._known[path] = known
        return known

    def _walk(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        step = self._root
        params: dict[str, str] = {}
        for word in path.split("/")[1:]:
            known = step.words.get(word)
            if known is not None:
                step = known
                continue
            if step.any is None or not word:
                return None
            step = step.any
            params[step.name] = unquote(word) if "%" in word else word
        if step.space:
            params = {"space": step.space, **params}
        return (step.routes, params) if step.routes else None

    def json(
        self,
        method: str,
        path: str,
        verb: Verb | Literal["public", "known"],
        takes: type[Takes],
        gives: type[Gives],
        *,
        status: int = 200,
        tag: str = "",
        also_status: tuple[int, ...] = (),
        quick: Callable[[RequestContext, Takes, CallbackEngine], PendingRequest | None]
        | None = None,
        reads: type[Takes] | None = None,
    ) -> Callable[
        [Callable[[RequestContext, Takes], Awaitable[Gives | Response]]],
        Callable[[RequestContext, Takes], Awaitable[Gives | Response]],
    ]:
        """Register a function as the JSON handler of a method and path; its docstring is the
        summary.

        The parameters of GET and DELETE are in the query string, others in the body. `reads`
        replaces `takes` in decoding, for a type that leaves lists of messages to be decoded later.
        """
        is_query = method in ("GET", "DELETE", "HEAD")
        read = _Reader(reads or takes, is_query=is_query)

        def add(
            function: Callable[[RequestContext, Takes], Awaitable[Gives | Response]],
        ) -> Callable[[RequestContext, Takes], Awaitable[Gives | Response]]:
            async def handle(ask: RequestContext) -> Response:
                found = await function(ask, read(ask))
                if isinstance(found, Response):
                    return found
                return Response(status, encode(found))

            def begin(ask: RequestContext, engine: CallbackEngine) -> PendingRequest | None:
                assert quick is not None
                return quick(ask, read(ask), engine)

            self.add(
                Route(
                    method,
                    path,
                    verb,
                    handle,
                    function.__name__,
                    (function.__doc__ or "").strip(),
                    None if takes is Nothing else takes,
                    gives,
                    status,
                    tag=tag,
                    also_status=also_status,
                    quick=None if quick is None else begin,
                    face=self.face,
                    space=self.space,
                )
            )
            return function

        return add

    def raw(
        self,
        method: str,
        path: str,
        verb: Verb | Literal["public", "known"],
        *,
        takes: type[msgspec.Struct] | None = None,
        gives: object = None,
        gives_media: tuple[Media, ...] = (),
        also_takes: tuple[Media, ...] = (),
        status: int = 200,
        tag: str = "",
        query: type[msgspec.Struct] | None = None,
        quick: Quick | None = None,
    ) -> Callable[[Handle], Handle]:
        """Register a function that reads the request and makes the response itself."""

        def add(function: Handle) -> Handle:
            self.add(
                Route(
                    method,
                    path,
                    verb,
                    function,
                    getattr(function, "__name__", "route"),
                    (function.__doc__ or "").strip(),
                    takes,
                    gives,
                    status,
                    also_takes,
                    gives_media,
                    tag,
                    query,
                    quick=quick,
                    face=self.face,
                    space=self.space,
                )
            )
            return function

        return add


def _table(routes: Iterable[Route]) -> Routes:
    table = Routes()
    for route in routes:
        table.add(route)
    return table


_encoder = msgspec.json.Encoder()
encode = _encoder.encode
"""Encode a response as JSON."""


class _Reader(Generic[Takes]):
    """Decodes and validates the parameters of a route."""

    def __init__(self, kind: type[Takes], *, is_query: bool) -> None:
        self._kind = kind
        self._is_query = is_query
        self._decoder = json_decoder(kind)

    def __call__(self, ask: RequestContext) -> Takes:
        if self._is_query:
            return read_query(ask, self._kind)
        if ask.request.query:
            raise Invalid("what is asked for stands in the body, not in the query", field="query")
        kind = ask.type
        if kind != JSON and kind != "" and not kind.endswith("+json"):
            raise Invalid(f"the body is {kind!r}; send {JSON}", field="content-type")
        # An empty body is an object without fields.
        return decode(self._decoder, ask.request.body or b"{}")


def read_query(ask: RequestContext, kind: type[Takes], *, beside: Collection[str] = ()) -> Takes:
    """Parse the query by the types of a body; names in `beside` are ignored."""
    params = ask.query()
    if beside:
        params = {name: value for name, value in params.items() if name not in beside}
    try:
        return convert(params, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error


def decode(
    decoder: msgspec.json.Decoder[T],
    data: bytes | bytearray | memoryview | msgspec.Raw,
) -> T:
    """Decode and validate JSON.

    Raises:
        Invalid: it is malformed, or does not fit the decoder's type; the error names the field.
        TooLarge: it exceeds the limit for one decoding step.
    """
    limit = limits.JSON_BYTES_MAX
    if len(data) > limit:
        raise TooLarge(
            f"{len(data)} bytes of JSON, up to {limit} are decoded at once; send several messages "
            "as NDJSON or Arrow, one large one as application/octet-stream, anything else in parts",
            field="body",
            limit=limit,
        )
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is no JSON: {error}", field="body") from error
    except RecursionError as error:
        raise Invalid("the body is nested too deeply", field="body") from error


_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


def _invalid(error: msgspec.ValidationError) -> Invalid:
    text = str(error)
    found = _PLACE.search(text)
    if found is None:
        unknown = re.search(r"field `([^`]*)`", text)
        return Invalid(text, field=unknown[1] if unknown else "body")
    return Invalid(f"{found[1]}: {text[: found.start()]}", field=found[1])


def denied(principal: Principal, verb: Verb, space: str, name: str) -> Denied:
    """Return the error for a principal without the required right."""
    what = f"{space}/{name}" if space else "the server"
    return Denied(f"{principal.name!r} may not {verb} {what}; ask whoever manages it", field="verb")
