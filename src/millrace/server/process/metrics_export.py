"""Export of metrics to statsd, and of metrics and traces to an OTLP collector.

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
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.errors import Invalid, MillraceError
from millrace.server.counters import LeaseCounters
from millrace.server.http.listener import ListenAddress
from millrace.server.process.server_settings import ServerSettings
from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry


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


# --- Export of traces and metrics to a collector, by OTLP over HTTP ------------------------------
#
# Rule 1: a slow or missing collector never delays requests: threads of the SDK send from bounded
# buffers, and drop on overflow.
# Rule 2: the sampling flag of an incoming trace is followed; of traces that start here, a share is
# recorded.


class OtlpExport:
    """Owns the OpenTelemetry providers and their exporters."""

    def __init__(self, endpoint: str, ratio: float) -> None:
        """Create the exporters; they connect later.

        Raises:
            Invalid: the required packages are missing.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

            from millrace.telemetry import Telemetry
        except ModuleNotFoundError as error:
            raise Invalid(
                f"otlp_endpoint needs {error.name}; `pip install 'millrace[otel]'` brings it",
                field="otlp_endpoint",
            ) from error
        base = endpoint.rstrip("/")
        resource = Resource.create(
            {
                "service.name": "millrace",
                "service.version": __version__,
                "service.instance.id": f"{os.uname().nodename}-{os.getpid()}",
            }
        )
        self._tracers = TracerProvider(
            resource=resource, sampler=ParentBasedTraceIdRatio(ratio), shutdown_on_exit=False
        )
        self._tracers.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces"))
        )
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{base}/v1/metrics"))
        self._meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self.telemetry: Telemetry = Telemetry(
            tracer_provider=self._tracers, meter_provider=self._meters
        )

    async def stop(self) -> None:
        """Flush the buffers within a timeout; unsent data is then lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def finish() -> None:
            self._tracers.shutdown()
            self._meters.shutdown()
            # After the timeout the loop may be closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        # A daemon thread: a thread of the loop's executor would delay the exit of the program.
        threading.Thread(target=finish, name="millrace-export", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.EXPORT_STOP_SECONDS):
                await done.wait()


def exporting_of(settings: ServerSettings) -> OtlpExport | None:
    """Create the export that the settings require, or return None.

    Raises:
        Invalid: the required packages are missing.
    """
    if not settings.otlp_endpoint:
        return None
    return OtlpExport(settings.otlp_endpoint, settings.trace_ratio)
