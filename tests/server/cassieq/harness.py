"""A server that is asked in CassieQ's way, and a caller of it that signs by itself."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from millrace.server.auth.access import User
from millrace.server.auth.audit import Actor
from millrace.server.auth.authenticator import Authenticator
from millrace.server.auth.index import EVERYTHING
from millrace.server.auth.store import UserStore
from millrace.server.cassieq.api_protocol import CassieqApi
from millrace.server.http.listener import Listener
from millrace.server.process.route_table import ROUTES
from millrace.server.quota.quotas import Quotas
from millrace.server.web.app import App
from millrace.server.web.queue_cache import QueueCache
from tests.client.harness import Clock, opened
from tests.server.rest.harness import Answer, Door, Served

ACCOUNTS = "/api/v1/accounts"
BY = Actor("test")


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def signature(key: str, *lines: str) -> str:
    """By the words of the format, and by nothing of ours."""
    secret = urlsafe_b64decode(key + "=" * (-len(key) % 4))
    made = hmac.new(secret, "\n".join(lines).encode(), hashlib.sha256).digest()
    return urlsafe_b64encode(made).decode().rstrip("=")


class Site:
    """A server, and an account `acme` with the queue `jobs`."""

    def __init__(self, served: Served, book: UserStore, clock: Clock, token: str) -> None:
        self.served = served
        self.millrace = served.millrace
        self.book = book
        self.clock = clock
        self.token = token
        self.keys: dict[str, str] = {}

    @property
    def primary(self) -> str:
        return self.keys["primary"]

    def time(self, seconds: float = 0) -> str:
        """The time so many seconds from now, as it is signed."""
        return time_text(self.clock() / 1000 + seconds)

    async def admin(self, method: str, path: str, body: object = None) -> Answer:
        """Ask as whoever may do everything, by a token."""
        headers = {"authorization": f"Bearer {self.token}"}
        return await self.served.ask(method, path, body, role=None, headers=headers)

    async def key(self, method: str, path: str, body: object = None, key: str = "") -> Answer:
        """Ask with a key of the account."""
        headers = {"authorization": f"Key {key or self.primary}"}
        return await self.served.ask(method, at(path), body, role=None, headers=headers)

    async def plain(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Ask with what the address and these headers say."""
        return await self.served.ask(method, at(path), body, role=None, headers=headers)

    async def signed(
        self, method: str, path: str, body: object = None, *, seconds: float = 0, key: str = ""
    ) -> Answer:
        """Ask with a signature of the request."""
        time = self.time(seconds)
        told = signature(key or self.primary, "acme", method, at(path).partition("?")[0], time)
        headers = {"authorization": f"Signed {told}", "x-cassieq-request-time": time}
        return await self.plain(method, path, body, headers)

    async def put(self, text: str, queue: str = "jobs") -> None:
        answer = await self.key("POST", f"{queue}/messages", text.encode())
        assert answer.status == 201, answer

    async def get(self, seconds: int = 30, queue: str = "jobs") -> dict[str, object]:
        answer = await self.key("GET", f"{queue}/messages/next?invisibilityTimeSeconds={seconds}")
        assert answer.status == 200, answer
        return answer.json

    async def size(self, queue: str = "jobs") -> object:
        return (await self.key("GET", f"{queue}/statistics")).json["size"]


def at(path: str) -> str:
    """An address within the queues of the account, or any other one."""
    return (
        path
        if path.startswith("/")
        else f"{ACCOUNTS}/acme/queues/{path}".rstrip("/").replace("/?", "?")
    )


def receipt(told: Mapping[str, object]) -> str:
    return quote(str(told["popReceipt"]))


def error(answer: Answer) -> tuple[int, object, object]:
    """What an error says: its form is always the same."""
    assert set(answer.json) == {"reason", "operation", "message"}
    assert answer.json["message"]
    return answer.status, answer.json["reason"], answer.json["operation"]


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    """A server on the folder, whose time does not pass by itself."""
    clock = Clock()
    clock.stop()
    async with opened(folder, clock=clock) as m:
        book = await UserStore.open(m, secret=bytes(32), now_ms=clock)
        await book.add_user(User("chief", EVERYTHING), BY)
        _, token = await book.new_token("chief", "test", BY)
        guard = Authenticator(lambda: book.roll, clock)
        face = CassieqApi(guard, book)
        app = App(QueueCache(m), guard, ROUTES, quotas=Quotas(), book=book, faces={"cassieq": face})
        listener = Listener(app.site)
        _, port = await listener.listen("127.0.0.1", 0)
        try:
            found = Site(Served(port, m, app, Door()), book, clock, token)
            made = await found.admin("POST", ACCOUNTS, "acme")
            assert made.status == 201, made
            keys = made.json["keys"]
            assert isinstance(keys, dict)
            found.keys = keys
            assert (await found.key("POST", "", {"queueName": "jobs"})).status == 201
            yield found
        finally:
            app.stop()
            await listener.stop(5)
            await app.finish()
            await book.close()


def told_of(answer: Answer) -> object:
    """What an answer says that may be any JSON."""
    return json.loads(answer.body)
