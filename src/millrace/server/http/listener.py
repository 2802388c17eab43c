"""Listening sockets: addresses, TLS handshakes, and the check of all connections each second."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import NamedTuple

from millrace import limits
from millrace.errors import Invalid
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.parser import BadRequest
from millrace.server.http.proxy_headers import is_loopback


def cannot_listen(address: ListenAddress, error: OSError) -> Invalid:
    """Return the error for an address that cannot be bound."""
    number = error.errno or 0
    why = os.strerror(number) if number > 0 else error.strerror or str(error)
    return Invalid(
        f"{address} cannot be listened at: {why}; name another address, or end whoever has it",
        field="listen",
    )


async def see_free(address: ListenAddress) -> None:
    """Check that an address can be bound now.

    Raises:
        Invalid: it cannot.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, place in dict.fromkeys((one[0], one[4]) for one in found):
            socket.create_server(place, family=family).close()
    except OSError as error:
        raise cannot_listen(address, error) from error


async def look_over(
    site: ListenerContext,
    read_clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Check the timeouts and rights of a site's connections once a second, until cancelled.

    While the event loop stalls, nothing is read; the time of a stall is not counted against
    clients, up to a bound for consecutive stalls. The round after a stall checks in any case: a
    lasting overload would otherwise keep slow clients, and clients that lost their rights, for
    ever.
    """
    was_stalled, forgiven = False, 0.0
    while True:
        began = read_clock()
        await sleep(1)
        late = read_clock() - began - 1
        is_stalled = late > limits.HTTP_STALL_SECONDS
        if is_stalled:
            seconds = min(late, limits.HTTP_FORGIVEN_SECONDS_MAX - forgiven)
            forgiven += seconds
            site.forgive(seconds)
            # uvloop runs timers before it reads: read the data of the stall first.
            await asyncio.sleep(0)
        else:
            forgiven = 0.0
        if was_stalled or not is_stalled:
            site.look(read_clock())
        was_stalled = is_stalled


class Listener:
    """Accepts connections for a site until it is stopped."""

    def __init__(self, site: ListenerContext) -> None:
        self._site = site
        self._servers: list[asyncio.Server] = []
        self._greetings: list[TlsHandshake] = []
        self._looking: asyncio.Task[None] | None = None

    async def listen(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, is_shared: bool = False
    ) -> tuple[str, int]:
        """Listen on an address; return the bound one, which differs if `port` is 0.

        `is_shared`: other processes listen on it too (SO_REUSEPORT).

        Raises:
            Invalid: the address cannot be bound.
        """
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.create_task(look_over(self._site, loop.time))
        try:
            if tls is None:
                return await self._plain(host, port, is_shared=is_shared)
            greeting = TlsHandshake(self._site, tls)
            self._greetings.append(greeting)
            return await greeting.listen(host, port, is_shared=is_shared)
        except OSError as error:
            raise cannot_listen(ListenAddress(host, port), error) from error

    async def _plain(self, host: str, port: int, *, is_shared: bool) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: ClientConnection(self._site),
            host,
            port,
            backlog=limits.HTTP_BACKLOG,
            reuse_address=True,
            reuse_port=is_shared,
        )
        self._servers.append(server)
        name = server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def stop(self, seconds: float = limits.HTTP_STOP_SECONDS) -> None:
        """Stop accepting, wait up to `seconds` for requests in progress, then close all
        connections."""
        for server in self._servers:
            server.close()
        for greeting in self._greetings:
            await greeting.stop()
        await self._site.stop(seconds)
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        for server in self._servers:
            await server.wait_closed()


# --- Accepting TLS connections -------------------------------------------------------------------
#
# Rule 1: a connection counts against the limit from the moment it is accepted, and its handshake
# has a timeout.
# Rule 2: a client that does not use TLS gets an HTTP error that says so.

_logger = logging.getLogger("millrace.server")

_HANDSHAKE = b"\x16"
"""First byte of a TLS connection (record type handshake)."""

_READ_BYTES = 64 * 1024


class TlsHandshake:
    """Listens on an address and performs the TLS handshakes."""

    def __init__(self, site: ListenerContext, tls: ssl.SSLContext) -> None:
        self._site = site
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []

    async def listen(self, host: str, port: int, *, is_shared: bool = False) -> tuple[str, int]:
        """Listen on an address; return the bound one, which differs if `port` is 0."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            made = socket.create_server(
                address, family=family, backlog=limits.HTTP_BACKLOG, reuse_port=is_shared
            )
            made.setblocking(False)
            self._sockets.append(made)
            self._start(self._accept(made))
        name = self._sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop, site = asyncio.get_running_loop(), self._site
        while True:
            try:
                plain, _ = await loop.sock_accept(listening)
            except OSError as error:
                # Too many files are open; some will be closed.
                _logger.error("nobody can be taken in: %s", error)
                await asyncio.sleep(limits.HTTP_LINGER_SECONDS)
                continue
            site.handshakes += 1
            if site.is_full:
                # Before the handshake no answer is possible.
                site.handshakes -= 1
                plain.close()
                continue
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._greet(plain))

    async def _greet(self, plain: socket.socket) -> None:
        try:
            async with asyncio.timeout(limits.TLS_HANDSHAKE_SECONDS_MAX):
                await self._begin(plain)
        except (OSError, EOFError, TimeoutError) as error:
            _logger.debug("no TLS with whoever has connected: %s", error)
        finally:
            self._site.handshakes -= 1

    async def _begin(self, plain: socket.socket) -> None:
        try:
            first = await _first_byte(plain)
            if first != _HANDSHAKE:
                if first:
                    await self._send_away(plain)
                plain.close()
                return
        except BaseException:
            plain.close()
            raise
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: ClientConnection(self._site, has_place=True),
            plain,
            ssl=self._tls,
            ssl_handshake_timeout=limits.TLS_HANDSHAKE_SECONDS_MAX,
            ssl_shutdown_timeout=limits.HTTP_LINGER_SECONDS,
        )

    async def _send_away(self, plain: socket.socket) -> None:
        """Answer a client without TLS with an HTTP error that says so."""
        loop = asyncio.get_running_loop()
        bad = BadRequest(400, "TLS is spoken at this address; ask it as https://")
        answer = self._site.complain(bad)
        head = answer.head(keep_alive=False, date=self._site.date(), chunked=False)
        await loop.sock_sendall(plain, head + bytes(answer.body))
        plain.shutdown(socket.SHUT_WR)
        # Closing a socket with unread data would discard the answer.
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.HTTP_LINGER_SECONDS):
                while await loop.sock_recv(plain, _READ_BYTES):
                    continue

    async def stop(self) -> None:
        """Stop accepting and cancel the handshakes in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()


async def _first_byte(plain: socket.socket) -> bytes:
    """Return the first byte that the client sends, without consuming it; empty at end of file."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(plain, _note, readable)
    try:
        await readable
    finally:
        loop.remove_reader(plain)
    return plain.recv(1, socket.MSG_PEEK)


def _note(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


# --- Addresses that a server listens on ----------------------------------------------------------


class ListenAddress(NamedTuple):
    """Host and port that a server listens on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if it is reachable from this machine alone."""
        return self.host == "localhost" or is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, field: str) -> ListenAddress:
    """Parse an address such as `127.0.0.1:7070` or `[::1]:7070`.

    Raises:
        Invalid: the text is not an address.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    is_number = port.isascii() and port.isdecimal() and len(port) <= len("65535")
    if not colon or not host or not is_number or int(port) > 65_535:
        raise Invalid(
            f"{field} {text[:100]!r} is no address; write it as 127.0.0.1:7070 or [::1]:7070",
            field=field,
            limit=65_535,
        )
    return ListenAddress(host, int(port))
