"""State that all connections of a listener share: callbacks, connection counts and memory
limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from millrace import limits
from millrace.server.http.large_body import BufferPool
from millrace.server.http.memory_limits import BodyLimits, UnsentResponses
from millrace.server.http.parser import BadRequest, Request
from millrace.server.http.response import Response

if TYPE_CHECKING:
    from millrace.server.http.connection import ClientConnection

_logger = logging.getLogger("millrace.server")

Handle = Callable[[Request], Awaitable[Response]]
"""Answers an admitted request. It may raise nothing but cancellation."""

Answer = Response | Awaitable[Response]
"""A response, or an awaitable that returns one and may take its time."""


class DeferredAnswer(Protocol):
    """An answer that is delivered by callback, so that no task waits for it."""

    def then(self, tell: Callable[[Answer], None]) -> None:
        """Set the callback. It is called once, and not before this has returned."""
        ...

    def cancel(self) -> object:
        """Drop the answer: the callback is not called, and leased messages are returned."""
        ...


Begin = Callable[[Request], DeferredAnswer | None]
"""Begins to handle an admitted request without a task; None if `Handle` has to do it."""

Admit = Callable[[Request, int | None, str], Response | None]
"""Judges a request by its head, the declared length and the client address; None admits it."""


class RightsCheck(Protocol):
    """Checks admitted requests again: a user may have lost the right since."""

    def version(self) -> int:
        """Return a number that changes when any user's rights may have changed."""
        ...

    def judge(self, request: Request) -> Response | None:
        """Return the response that refuses the request, or None if it may go on."""
        ...


class ListenerContext:
    """Shared state of the connections of a listener."""

    def __init__(
        self,
        admit: Admit,
        handle: Handle,
        complain: Callable[[BadRequest], Response],
        *,
        begin: Begin | None = None,
        body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX,
        standing: RightsCheck | None = None,
    ) -> None:
        self.admit = admit
        self.standing = standing
        self._judged = 0
        self.begin = begin
        self.handle = handle
        self.complain = complain
        self.body_bytes_max = body_bytes_max
        self.spare = BufferPool()
        self.connections: set[ClientConnection] = set()
        self.strangers: Counter[str] = Counter()
        """Connections without an authenticated user, by network (`network_of`)."""
        self.connections_max = limits.CONNECTIONS_MAX
        """Connections above it are refused with 503 and closed."""
        self.stopping = False
        self.bodies = BodyLimits(body_bytes_max)
        self.unsent = UnsentResponses()
        self.awaited: set[ClientConnection] = set()
        """Connections that wait for their client, and some that did at the last check."""
        self.owed: set[ClientConnection] = set()
        """Connections whose client had not received all answers at the last count."""
        self.handshakes = 0
        """Number of connections with a TLS handshake in progress."""
        self._date = b""
        self._date_of = 0
        self._turns: list[ClientConnection] = []
        """Connections that continue in this iteration of the event loop."""

    @property
    def is_full(self) -> bool:
        """True if there are more connections than allowed."""
        return len(self.connections) + self.handshakes > self.connections_max

    def has_many(self, network: str) -> bool:
        """Return whether a network has too many connections without an authenticated user."""
        return self.strangers[network] > self.strangers_max

    @property
    def strangers_max(self) -> int:
        """Number of connections without an authenticated user that one address may have."""
        return max(1, self.connections_max // limits.HTTP_STRANGERS_SHARE)

    def date(self) -> bytes:
        """Return the date header, which is formatted once a second."""
        now = int(time.time())
        if now != self._date_of:
            self._date_of = now
            self._date = f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._date

    def turn(self, connection: ClientConnection) -> None:
        """Schedule a connection's next request after the others have read their data, or as soon as
        the batch is full. Requests run sorted by kind: one step for many requests of a kind takes
        far less time than mixed ones."""
        if not self._turns:
            asyncio.get_running_loop().call_soon(self._take_turns)
        self._turns.append(connection)
        if len(self._turns) >= limits.HTTP_TURNS_MAX:
            self._take_turns()

    def _take_turns(self) -> None:
        turns, self._turns = self._turns, []
        # In reverse, `publish` comes before `lease` and `SendMessage` before `ReceiveMessage`:
        # a lease that finds a message at once does not have to wait for it.
        turns.sort(key=attrgetter("kind"), reverse=True)
        for connection in turns:
            try:
                connection.go_on()
            except Exception:
                _logger.exception("a connection ended in an error")
                connection.cut()

    def look(self, now: float) -> None:
        """Close slow clients, and end requests whose users lost the right; called about once a
        second."""
        for connection in list(self.owed):
            connection.count_unsent()
        # Skips the thousands of connections that merely wait for an answer of this server.
        for connection in list(self.awaited):
            if connection.is_waited_for:
                connection.look(now)
            else:
                self.awaited.discard(connection)
        standing = self.standing
        if standing is not None and standing.version() != self._judged:
            self._judged = standing.version()
            for connection in list(self.connections):
                connection.judge(standing)

    def forgive(self, seconds: float) -> None:
        """Extend all timeouts of clients by the duration of a stall of the event loop."""
        for connection in self.connections:
            connection.forgive(seconds)

    async def stop(self, seconds: float) -> None:
        """Take no new request, wait up to `seconds` for requests in progress, then close."""
        self.stopping = True
        for connection in list(self.connections):
            connection.finish()
        deadline = time.monotonic() + seconds
        while self.connections and time.monotonic() < deadline:
            waits = [connection.gone for connection in self.connections]
            await asyncio.wait(waits, timeout=max(0.0, deadline - time.monotonic()))
        for connection in list(self.connections):
            connection.cut()
