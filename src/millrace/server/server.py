"""A server: an engine, those who may use it, and the addresses where it listens.

Rule 1: it is ready when it listens, and it listens when it can serve.
Rule 2: at the end it takes nobody in, lets those who are being answered end, then closes the
engine: whatever was acknowledged is kept, whatever was handed out can be settled after the next
start.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.server.access import User, parse_rule
from millrace.server.app import App
from millrace.server.audit import Actor
from millrace.server.book import Book
from millrace.server.guard import Guard
from millrace.server.listen import Listener
from millrace.server.rest.desk import Desk

ADMIN = "admin"
_FIRST = Actor("local", "")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    is_secure: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_secure else 'http'}://{host}:{self.port}"


class Server:
    """Serves an open Millrace over HTTP."""

    def __init__(self, millrace: Millrace, book: Book, guard: Guard) -> None:
        self._book = book
        self._app = App(Desk(millrace), guard)
        self._listener = Listener(self._app.site)
        self.addresses: list[Address] = []

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> Address:
        """Take requests in at an address; with port 0, at one that is free."""
        found = await self._listener.listen(host, port, tls=tls)
        address = Address(*found, is_secure=tls is not None)
        self.addresses.append(address)
        return address

    async def first_token(self) -> str | None:
        """A token of the user `admin`, who is made if there is nobody; None if there is somebody.

        It is told once and kept nowhere.
        """
        if self._book.roll.users:
            return None
        await self._book.add_user(User(ADMIN, (parse_rule("allow * */*"),)), _FIRST)
        _, text = await self._book.new_token(ADMIN, "first", _FIRST)
        return text

    async def stop(self, seconds: float = limits.HTTP_STOP_SECONDS) -> None:
        """Take nobody in any more, and let those who are being answered end, for so long."""
        await self._listener.stop(seconds)
        await self._book.close()
