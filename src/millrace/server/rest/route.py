"""Routes: the one table that requests are matched by and that the description is made from.

Rule 1: a route says who may use it (`verb`), what it takes and what it gives; whoever matches it
has been judged by that before a byte of the body is kept.
Rule 2: what a route takes is decoded by the type that describes it: no field is read that is not
in the description, and none is unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Container, Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from millrace import limits
from millrace.client.queue import Queue
from millrace.client.submitting import Submits
from millrace.client.topic import Topic
from millrace.decoding import convert, json_decoder
from millrace.errors import Denied, Invalid, TooLarge
from millrace.server.access import VERBS, Principal, Verb, may
from millrace.server.audit import Outcome
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.rest.desk import Desk
from millrace.server.rest.face import FaceName
from millrace.server.rest.server import Server
from millrace.server.rest.under import Quick, Under

Takes = TypeVar("Takes", bound=msgspec.Struct)
Gives = TypeVar("Gives")
T = TypeVar("T")

JSON = "application/json"


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that says nothing beyond its address."""


class Ask:
    """A request on its way through a route."""

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
        desk: Desk,
        principal: Principal,
        server: Server,
    ) -> None:
        self.request = request
        self.route = route
        self.params = params
        """What stands in the place of the address's names."""
        self.desk = desk
        self.principal = principal
        self.server = server
        self.waits = False
        """It may take its time: it waits for what is not there yet."""
        self.is_charged = False
        """It counts against its caller's quota already, where its face proves callers later."""
        self.is_counted = False
        """What became of it is known, and counted."""
        self.outcome: Outcome | None = None
        """What it came to, if it was answered by an error. The error itself is not kept: it holds
        the frames that it came through, and they hold this."""

    async def until(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """What `wait` comes to, however long that takes; None if the server stops first."""
        self.waits = True
        return await self.server.stopping.until(wait)

    def known(self) -> Queue | None:
        """The queue that the address names, if it was used lately and has one shard."""
        params = self.params
        queue = self.desk.known(params["space"], params["queue"])
        return queue if queue is not None and queue.shards.is_one else None

    async def queue(self, use: Callable[[Queue], Awaitable[T]]) -> T:
        """What `use` comes to with the queue that the address names."""
        params = self.params
        return await self.desk.queue(params["space"], params["queue"], use)

    async def topic(self, use: Callable[[Topic], Awaitable[T]]) -> T:
        """What `use` comes to with the topic that the address names."""
        params = self.params
        return await self.desk.topic(params["space"], params["topic"], use)

    def check(self, verb: Verb, space: str, name: str) -> None:
        """See that the caller may do something with what stands in the body.

        Raises:
            Denied: they may not.
        """
        if not may(self.principal.rules, verb, space, name):
            if verb in ("manage", "admin"):
                self.server.denied(self.principal, self.route.name, f"{space}/{name}")
            raise denied(self.principal, verb, space, name)

    def sees(self, place: str) -> bool:
        """Whether the caller may do anything with a queue or topic, given as space/name or as a
        name of the address's space."""
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
        """What stands behind the question mark.

        Raises:
            Invalid: a name stands there twice, or there are too many.
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


Handle = Callable[[Ask], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Media:
    """A body that is not JSON: its type, and what it is."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one address."""

    method: str
    path: str
    verb: Verb | Literal["public", "known"]
    """What its caller must be allowed to do with what the address names. `known`: be known;
    `public`: nothing."""
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
    """What stands behind the question mark beside a body that is not JSON."""
    also_status: tuple[int, ...] = ()
    """By which it is answered as well, in the same form."""
    quick: Quick | None = None
    """Begins to answer it without a task, where that can be."""
    face: FaceName = "own"
    """The API that it is of."""
    space: str = ""
    """Where that is which the address names, if the address does not say so itself."""

    @property
    def takes_query(self) -> bool:
        """Whether what it takes stands behind the question mark."""
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
    """Every route, and which one a request is for."""

    def __init__(self, face: FaceName = "own", *, space: str = "") -> None:
        """`face`: the API that the routes are of which functions are made into here; `space`: the
        one that they are about, where their addresses name none."""
        self.face = face
        self.space = space
        self.all: list[Route] = []
        self._root = _Step()
        self._known: dict[str, tuple[dict[str, Route], dict[str, str]]] = {}

    def add(self, route: Route) -> None:
        """One more."""
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
        """These and those of others, in one table."""
        return _table(route for table in (self, *others) for route in table.all)

    def only(self, faces: Container[FaceName]) -> Routes:
        """Those of these APIs."""
        return _table(route for route in self.all if route.face in faces)

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """The routes of an address by method, and what stands in the place of its names.

        Neither may be changed.
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
        quick: Callable[[Ask, Takes, Submits], Under | None] | None = None,
        reads: type[Takes] | None = None,
    ) -> Callable[
        [Callable[[Ask, Takes], Awaitable[Gives | Response]]],
        Callable[[Ask, Takes], Awaitable[Gives | Response]],
    ]:
        """Have a function answer a method of an address in JSON; its first line says what it does.

        What a GET or DELETE takes stands in the query, else in the body. `reads` is what it is
        decoded as, where that leaves lists of messages for later.
        """
        is_query = method in ("GET", "DELETE", "HEAD")
        read = _Reader(reads or takes, is_query=is_query)

        def add(
            function: Callable[[Ask, Takes], Awaitable[Gives | Response]],
        ) -> Callable[[Ask, Takes], Awaitable[Gives | Response]]:
            async def handle(ask: Ask) -> Response:
                found = await function(ask, read(ask))
                if isinstance(found, Response):
                    return found
                return Response(status, encode(found))

            def begin(ask: Ask, engine: Submits) -> Under | None:
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
        """Have a function answer that reads the request and makes the answer itself."""

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
"""Any answer as JSON."""


class _Reader(Generic[Takes]):
    """Reads what a route takes."""

    def __init__(self, kind: type[Takes], *, is_query: bool) -> None:
        self._kind = kind
        self._is_query = is_query
        self._decoder = json_decoder(kind)

    def __call__(self, ask: Ask) -> Takes:
        if self._is_query:
            return read_query(ask, self._kind)
        if ask.request.query:
            raise Invalid("what is asked for stands in the body, not in the query", field="query")
        kind = ask.type
        if kind != JSON and kind != "" and not kind.endswith("+json"):
            raise Invalid(f"the body is {kind!r}; send {JSON}", field="content-type")
        # An empty one says nothing.
        return decode(self._decoder, ask.request.body or b"{}")


def read_query(ask: Ask, kind: type[Takes], *, beside: Collection[str] = ()) -> Takes:
    """What the query says, by the same types as a body; names `beside` it say something else."""
    told = ask.query()
    if beside:
        told = {name: value for name, value in told.items() if name not in beside}
    try:
        return convert(told, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error


def decode(
    decoder: msgspec.json.Decoder[T],
    data: bytes | bytearray | memoryview | msgspec.Raw,
) -> T:
    """What JSON says.

    Raises:
        Invalid: it is no JSON, or not what the decoder takes; the error names the field.
        TooLarge: it is more than is decoded at once.
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
    """What someone is told who may not do this."""
    what = f"{space}/{name}" if space else "the server"
    return Denied(f"{principal.name!r} may not {verb} {what}; ask whoever manages it", field="verb")
