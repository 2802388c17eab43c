"""Listening: connections of a site on addresses, and the look over them once a second."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
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
            self._looking = asyncio.get_running_loop().create_task(self._look())
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

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(1)
            late = loop.time() - began - 1
            if late > limits.HTTP_STALL_SECONDS:
                # Nothing was read meanwhile, whatever was sent: it is read before the next look.
                self._site.forgive(late)
            else:
                self._site.look(loop.time())

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
