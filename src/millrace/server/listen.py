"""Listening: connections of a site on addresses, and the look over them once a second."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from millrace import limits
from millrace.errors import Invalid
from millrace.server.address import Address
from millrace.server.greeting import Greeting
from millrace.server.http.connection import Connection
from millrace.server.http.site import Site


def cannot_listen(address: Address, error: OSError) -> Invalid:
    """What is told where an address cannot be had."""
    number = error.errno or 0
    why = os.strerror(number) if number > 0 else error.strerror or str(error)
    return Invalid(
        f"{address} cannot be listened at: {why}; name another address, or end whoever has it",
        field="listen",
    )


async def see_free(address: Address) -> None:
    """See that an address can be had, now.

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
    site: Site,
    read_clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Look over the connections of a site once a second, until it is cancelled.

    Clients are forgiven the time of a stall, in which nothing they sent was read, up to a bound for
    stalls in a row. The round after a stall looks in any case: an overload that lasts would
    otherwise keep slow clients, and those who lost their rights, for ever.
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
            # uvloop calls timers before it reads: what was sent meanwhile is read first.
            await asyncio.sleep(0)
        else:
            forgiven = 0.0
        if was_stalled or not is_stalled:
            site.look(read_clock())
        was_stalled = is_stalled


class Listener:
    """Takes connections in for a site until it is stopped."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._servers: list[asyncio.Server] = []
        self._greetings: list[Greeting] = []
        self._looking: asyncio.Task[None] | None = None

    async def listen(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, is_shared: bool = False
    ) -> tuple[str, int]:
        """Take connections in at an address; returns the one that it is, if `port` is 0.

        `is_shared`: other processes listen there, too.

        Raises:
            Invalid: the address cannot be had.
        """
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.create_task(look_over(self._site, loop.time))
        try:
            if tls is None:
                return await self._plain(host, port, is_shared=is_shared)
            greeting = Greeting(self._site, tls)
            self._greetings.append(greeting)
            return await greeting.listen(host, port, is_shared=is_shared)
        except OSError as error:
            raise cannot_listen(Address(host, port), error) from error

    async def _plain(self, host: str, port: int, *, is_shared: bool) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self._site),
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
        """Take nobody in any more, let those who are being answered end, then close."""
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
