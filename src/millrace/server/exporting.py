"""Traces and metrics of a server, sent to a collector by OTLP over HTTP.

Rule 1: a collector that is away or slow keeps nobody waiting: threads of the SDK send, from bounded
buffers, and drop what does not fit.
Rule 2: whoever began a trace has decided whether it is recorded; of those that begin here a share.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace import limits
from millrace.errors import Invalid
from millrace.server.config import ServerSettings
from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry


class Exporting:
    """Makes spans and measurements, and sends them."""

    def __init__(self, endpoint: str, ratio: float) -> None:
        """Begin; nobody is connected to yet.

        Raises:
            Invalid: the packages for it are missing.
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
        """Send what is left, if somebody takes it within a while; else it is lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def finish() -> None:
            self._tracers.shutdown()
            self._meters.shutdown()
            # If it took too long, there is no loop any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        # Of its own: the end of the program waits for the threads that the loop has.
        threading.Thread(target=finish, name="millrace-export", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.EXPORT_STOP_SECONDS):
                await done.wait()


def exporting_of(settings: ServerSettings) -> Exporting | None:
    """What the settings ask for; None: nothing.

    Raises:
        Invalid: the packages for it are missing.
    """
    if not settings.otlp_endpoint:
        return None
    return Exporting(settings.otlp_endpoint, settings.trace_ratio)
