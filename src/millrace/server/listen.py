"""Listening: connections of a site on addresses, and the look over them once a second.

Rule: whoever connects with TLS counts from the first moment, and is done with its beginning in
time: what takes place there costs a place like any other connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import cast

from millrace import limits
from millrace.server.http.connection import Connection, Site

_logger = logging.getLogger("millrace.server")


class Listener:
    """Takes connections in for a site until it is stopped."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._servers: list[asyncio.Server] = []
        self._looking: asyncio.Task[None] | None = None
        self._doors: set[Door] = set()

    async def listen(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, is_shared: bool = False
    ) -> tuple[str, int]:
        """Take connections in at an address; returns the one that it is, if `port` is 0.

        `is_shared`: other processes listen there, too.
        """
        loop = asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            return Connection(self._site) if tls is None else Door(self._site, tls, self._doors)

        server = await loop.create_server(
            make,
            host,
            port,
            backlog=limits.HTTP_BACKLOG,
            reuse_address=True,
            reuse_port=is_shared,
        )
        self._servers.append(server)
        if self._looking is None:
            self._looking = loop.create_task(self._look())
        name = server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1)
            self._site.look(loop.time())

    async def stop(self, seconds: float = limits.HTTP_STOP_SECONDS) -> None:
        """Take nobody in any more, let those who are being answered end, then close."""
        for server in self._servers:
            server.close()
        for door in list(self._doors):
            door.shut()
        await self._site.stop(seconds)
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        for server in self._servers:
            await server.wait_closed()


class Door(asyncio.Protocol):
    """Whoever has connected, until TLS is agreed on; then a connection takes their place."""

    def __init__(self, site: Site, tls: ssl.SSLContext, doors: set[Door]) -> None:
        self._site = site
        self._tls = tls
        self._doors = doors
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        found = cast("asyncio.Transport", transport)
        self._site.handshakes += 1
        if self._site.is_full:
            # Without TLS there is nothing that could be said.
            self._site.handshakes -= 1
            found.abort()
            return
        # What has come already is for TLS.
        found.pause_reading()
        self._doors.add(self)
        self._task = asyncio.get_running_loop().create_task(self._open(found))

    def data_received(self, data: bytes) -> None:
        # It came with the last of the handshake, before the connection was there.
        self._early.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_gone = True

    def shut(self) -> None:
        """Nobody is let in any more."""
        if self._task is not None:
            self._task.cancel()

    async def _open(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            made = await loop.start_tls(
                transport,
                self,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=limits.TLS_HANDSHAKE_SECONDS_MAX,
                ssl_shutdown_timeout=limits.HTTP_LINGER_SECONDS,
            )
        except (OSError, EOFError) as error:
            _logger.debug("no TLS with %s: %s", transport.get_extra_info("peername"), error)
            transport.abort()
            return
        except asyncio.CancelledError:
            transport.abort()
            raise
        finally:
            self._doors.discard(self)
            self._site.handshakes -= 1
        if made is None or self._is_gone:
            return
        connection = Connection(self._site)
        made.set_protocol(connection)
        connection.connection_made(made)
        for data in self._early:
            connection.data_received(data)
