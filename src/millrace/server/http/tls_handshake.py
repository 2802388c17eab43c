"""Accepting TLS connections.

Rule 1: a connection counts against the limit from the moment it is accepted, and its handshake has
a timeout.
Rule 2: a client that does not use TLS gets an HTTP error that says so.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine
from contextlib import suppress

from millrace import limits
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.parser import BadRequest

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
