"""A server in this process, on a real folder, and a client of the standard library for it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import millrace
from millrace.client.millrace import engine_of
from millrace.client.remote import RemoteEngine
from millrace.errors import MillraceError, Unauthenticated
from millrace.rpc.socket_transport import SocketTransport
from millrace.server.auth.access import Principal, Rule, parse_rule
from millrace.server.dynamiq.api_protocol import DynamiqApi
from millrace.server.http.listener import Listener
from millrace.server.process.route_table import ROUTES
from millrace.server.rpc.local_socket import LocalListener
from millrace.server.web.app import App
from millrace.server.web.queue_cache import QueueCache
from millrace.telemetry import Telemetry
from tests.support.timeouts import scaled

ROLES: dict[str, tuple[str, ...]] = {
    "root": ("allow * */*",),
    "worker": ("allow work default/orders",),
    "producer": ("allow publish default/orders",),
    "reader": ("allow read default/orders",),
    "manager": ("allow manage default/orders*", "allow publish default/orders-dead"),
    "nobody": (),
}
"""Tokens, and the rules of those who are known by them."""


SMALL = millrace.Settings(segment_bytes=4 * 1024 * 1024)
"""Each test makes a folder of its own, whose segments are written before they are needed."""


class Door:
    """Knows the roles above by their names."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Rule, ...]] = {
            name: tuple(map(parse_rule, rules)) for name, rules in ROLES.items()
        }
        self._version = 0

    def admit(self, headers: dict[str, str], peer: str) -> Principal | MillraceError:
        error = Unauthenticated("send a token that is known here", field="authorization")
        return self.who(headers, peer) or error

    def who(self, headers: dict[str, str], peer: str) -> Principal | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or token not in self._known:
            return None
        return Principal(token, self._known[token], peer)

    def version(self) -> int:
        return self._version

    def know(self, name: str, rules: tuple[str, ...]) -> None:
        """Know one more, or by other rules."""
        self._known[name] = tuple(map(parse_rule, rules))
        self._version += 1

    def forget(self, name: str) -> None:
        """Know one less."""
        del self._known[name]
        self._version += 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found

    def text(self, name: str) -> str:
        """A text within it."""
        found = self.json[name]
        assert isinstance(found, str)
        return found

    def items(self, name: str) -> list[dict[str, object]]:
        """A list within it."""
        found = self.json[name]
        assert isinstance(found, list)
        return found


class Events:
    """Server-sent events as they come."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._answer = connection.getresponse()
        self.status = self._answer.status

    async def next(self) -> dict[str, str] | None:
        """The fields of the next event; None at the end."""
        return await asyncio.to_thread(self._next)

    def _next(self) -> dict[str, str] | None:
        found: dict[str, str] = {}
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if line != "\n":
                found[name] = value
            elif found.keys() - {":"}:
                return found
            else:
                found = {}
        return None

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


class Served:
    """A server that is there, and its Millrace."""

    def __init__(self, port: int, millrace: millrace.Millrace, app: App, door: Door) -> None:
        self.port = port
        self.millrace = millrace
        self.app = app
        self.door = door

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        role: str | None = "root",
        type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask once, on a connection of its own."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        sent = {} if role is None else {"authorization": f"Bearer {role}"}
        if data is not None:
            sent["content-type"] = type
        sent.update(headers or {})
        return await asyncio.to_thread(self._ask, method, path, data, sent)

    async def events(
        self, path: str, *, role: str = "root", headers: Mapping[str, str] | None = None
    ) -> Events:
        """Listen to events, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=scaled(60))
        sent = {"authorization": f"Bearer {role}", **(headers or {})}
        await asyncio.to_thread(connection.request, "GET", path, None, sent)
        return await asyncio.to_thread(Events, connection)

    def _ask(
        self, method: str, path: str, data: bytes | str | None, headers: Mapping[str, str]
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=scaled(60))
        try:
            connection.request(method, path, data, dict(headers))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()


async def until(holds: Callable[[], bool]) -> None:
    """Come back when it holds; the test's own limit ends a wait in vain."""
    for _ in iter(holds, True):
        await asyncio.sleep(0.001)


async def until_told(holds: Callable[[], Awaitable[bool]]) -> None:
    """As `until`, of what has to be asked for."""
    for _ in count():
        if await holds():
            return
        await asyncio.sleep(0.001)


@asynccontextmanager
async def front(folder: Path, owner: millrace.Millrace) -> AsyncIterator[millrace.Millrace]:
    """The same Millrace as a process has it that asks its owner for everything."""
    local = LocalListener(engine_of(owner), folder)
    # What asks is as a front end is.
    local.of_server = lambda: [os.getpid()]
    await local.start()
    engine = RemoteEngine()
    engine.use(SocketTransport(folder, engine.late))
    try:
        async with millrace.Millrace(engine) as guest:
            yield guest
    finally:
        await local.stop()


@asynccontextmanager
async def served(
    folder: Path,
    *,
    is_front: bool = False,
    telemetry: Telemetry | None = None,
    settings: millrace.Settings = SMALL,
) -> AsyncIterator[Served]:
    """A server on the folder, with the queue `orders`; or one in front of its owner."""
    async with AsyncExitStack() as stack:
        m = await stack.enter_async_context(
            millrace.open(folder, settings=settings, telemetry=telemetry)
        )
        await m.queue("orders")
        asked = await stack.enter_async_context(front(folder, m)) if is_front else m
        yield await stack.enter_async_context(serving(asked, m))


@asynccontextmanager
async def serving(
    asked: millrace.Millrace, owner: millrace.Millrace | None = None
) -> AsyncIterator[Served]:
    """A server of a Millrace that is open."""
    door = Door()
    app = App(QueueCache(asked), door, ROUTES, faces={"dynamiq": DynamiqApi(door)})
    listener = Listener(app.site)
    _, port = await listener.listen("127.0.0.1", 0)
    try:
        yield Served(port, owner or asked, app, door)
    finally:
        app.stop()
        await listener.stop(5)
