"""Export of metrics to statsd, with the names that Dynamiq used (D8).

Names begin with `millrace.SPACE.QUEUE.`. Counters since the previous report: `sent` (published),
`received` (delivered by this server) and `deleted` (settled). Gauges: `depth` and
`approximate_depth` (messages in the queue), `fill` (per cent of the messages asked for by lease
calls that were delivered).

Rule 1: UDP without waiting: a missing statsd costs nothing.
Rule 2: names of queues contain no character with a meaning in statsd, except the dot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.errors import MillraceError
from millrace.server.counters import LeaseCounters
from millrace.server.http.listen_address import ListenAddress

_logger = logging.getLogger("millrace.server")


Find = Callable[[], Awaitable[LeaseCounters]]
"""Returns the lease counts of all processes of the server."""


class Statsd:
    """Reports the metrics of every queue to statsd, periodically."""

    def __init__(self, millrace: Millrace, handed: Find, address: ListenAddress) -> None:
        self._millrace = millrace
        self._find = handed
        self._handed = LeaseCounters()
        self._address = address
        self._transport: asyncio.DatagramTransport | None = None
        self._task: asyncio.Task[None] | None = None
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}
        """Values of the current report; those of deleted queues are dropped."""

    async def start(self) -> None:
        """Start the periodic reports; the server may appear later, since UDP has no connection."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(self._address.host, self._address.port)
        )
        self._task = loop.create_task(self._go_on())

    async def stop(self) -> None:
        """Send a last report and stop."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._transport is not None:
            with suppress(MillraceError):
                await self.tell()
            self._transport.close()

    async def _go_on(self) -> None:
        while True:
            try:
                await self.tell()
            except MillraceError as error:
                _logger.warning("statistics were not told: %s", error)
            await asyncio.sleep(limits.STATSD_SECONDS)

    async def tell(self) -> None:
        """Send all metrics, in packets of a bounded size."""
        assert self._transport is not None
        self._handed = await self._find()
        packet = b""
        async for line in self._lines():
            if packet and len(packet) + len(line) + 1 > limits.STATSD_PACKET_BYTES:
                self._transport.sendto(packet)
                packet = b""
            packet += line if not packet else b"\n" + line
        if packet:
            self._transport.sendto(packet)
        self._before, self._now = self._now, {}

    async def _lines(self) -> AsyncIterator[bytes]:
        for space in await self._millrace.spaces():
            for name in await self._millrace.queues(space=space):
                try:
                    queue = await self._millrace.find(name, space=space)
                    counts = await queue.stats()
                except MillraceError:
                    continue
                for line in self._of(space, name, counts):
                    yield line

    def _of(self, space: str, name: str, counts: dict[str, int]) -> Iterator[bytes]:
        prefix = f"millrace.{space}.{name}"
        asked, given = self._handed.of(space, name)
        rising = {"sent": counts["published"], "received": given, "deleted": counts["settled"]}
        for what, value in rising.items():
            yield f"{prefix}.{what}:{self._since(f'{prefix}.{what}', value)}|c".encode()
        for what in ("depth", "approximate_depth"):
            yield f"{prefix}.{what}:{counts['live']}|g".encode()
        more = self._since(f"{prefix}.asked", asked), self._since(f"{prefix}.given", given)
        if more[0]:
            yield f"{prefix}.fill:{100 * more[1] // more[0]}|g".encode()

    def _since(self, name: str, value: int) -> int:
        """Return the increase of a value since the previous report; 0 for a new one."""
        before = self._before.get(name, value)
        self._now[name] = value
        return max(0, value - before)
