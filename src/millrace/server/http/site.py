"""What the connections of a listener share: who is admitted, who answers, and what they hold."""

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
from millrace.server.http.bodies import Bodies
from millrace.server.http.large import Spare
from millrace.server.http.parser import BadRequest, Request
from millrace.server.http.response import Response
from millrace.server.http.unsent import Unsent

if TYPE_CHECKING:
    from millrace.server.http.connection import Connection

_logger = logging.getLogger("millrace.server")

Handle = Callable[[Request], Awaitable[Response]]
"""Answers a request that was admitted. It may raise nothing but cancellation."""

Answer = Response | Awaitable[Response]
"""An answer, or what comes to one and may take its time."""


class Later(Protocol):
    """An answer that is told when it is there: no task waits for it."""

    def then(self, tell: Callable[[Answer], None]) -> None:
        """Have it told, once, and not before this has returned."""
        ...

    def cancel(self) -> object:
        """Nobody wants it any more: nothing is told, and what it was handed out returns."""
        ...


Begin = Callable[[Request], Later | None]
"""Begins to handle a request that was admitted, where that takes no task; None: `Handle` it."""

Admit = Callable[[Request, int | None, str], Response | None]
"""Judges a request by its head, the length that it declares and the address that it comes from;
None: it may go on."""


class Standing(Protocol):
    """Judges anew those that were admitted: whoever asks may have lost the right to."""

    def version(self) -> int:
        """Another number when something has changed."""
        ...

    def judge(self, request: Request) -> Response | None:
        """What is answered instead; None: it may go on."""
        ...


class Site:
    """What the connections of a listener share."""

    def __init__(
        self,
        admit: Admit,
        handle: Handle,
        complain: Callable[[BadRequest], Response],
        *,
        begin: Begin | None = None,
        body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX,
        standing: Standing | None = None,
    ) -> None:
        self.admit = admit
        self.standing = standing
        self._judged = 0
        self.begin = begin
        self.handle = handle
        self.complain = complain
        self.body_bytes_max = body_bytes_max
        self.spare = Spare()
        self.connections: set[Connection] = set()
        self.strangers: Counter[str] = Counter()
        """Connections on which nobody is known yet, by their network (`network_of`)."""
        self.connections_max = limits.CONNECTIONS_MAX
        """Beyond it whoever connects is told to come again, and cut off."""
        self.stopping = False
        self.bodies = Bodies(body_bytes_max)
        self.unsent = Unsent()
        self.awaited: set[Connection] = set()
        """All whose client's turn it is, and some that were so when that was last looked at."""
        self.owed: set[Connection] = set()
        """Those that had not taken in all of their answers when that was last counted."""
        self.handshakes = 0
        """Who has connected, and has not yet come to an understanding on TLS."""
        self._date = b""
        self._date_of = 0
        self._turns: list[Connection] = []
        """Those that go on in this turn of the loop."""

    @property
    def is_full(self) -> bool:
        """Whether one has connected too many."""
        return len(self.connections) + self.handshakes > self.connections_max

    def has_many(self, network: str) -> bool:
        """Whether a network has too many connections on which nobody is known."""
        return self.strangers[network] > self.strangers_max

    @property
    def strangers_max(self) -> int:
        """How many connections on which nobody is known one address may have."""
        return max(1, self.connections_max // limits.HTTP_STRANGERS_SHARE)

    def date(self) -> bytes:
        """The header that says when, made once a second."""
        now = int(time.time())
        if now != self._date_of:
            self._date_of = now
            self._date = f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._date

    def turn(self, connection: Connection) -> None:
        """Have a connection go on when the others have read what has come for them, too, or when
        they are many; by kinds of requests: a step that is made for many, one after the other,
        takes far less time than many for each."""
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
        """Cut off who is too slow, or may not ask any more; called about once a second."""
        for connection in list(self.owed):
            connection.count_unsent()
        # Of thousands that wait for an answer nobody has to be looked at.
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
        """Give every client so much more time: the event loop stood still for as long."""
        for connection in self.connections:
            connection.forgive(seconds)

    async def stop(self, seconds: float) -> None:
        """Take no new request; let those that are being handled end, for so long."""
        self.stopping = True
        for connection in list(self.connections):
            connection.finish()
        deadline = time.monotonic() + seconds
        while self.connections and time.monotonic() < deadline:
            waits = [connection.gone for connection in self.connections]
            await asyncio.wait(waits, timeout=max(0.0, deadline - time.monotonic()))
        for connection in list(self.connections):
            connection.cut()
