"""Listening sockets, and the check of all connections once a second."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from millrace import limits
from millrace.errors import Invalid
from millrace.server.http.connection import ClientConnection
from millrace.server.http.listen_address import ListenAddress
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.tls_handshake import TlsHandshake


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
