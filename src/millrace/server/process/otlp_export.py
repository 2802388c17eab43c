"""Export of traces and metrics to a collector, by OTLP over HTTP.

Rule 1: a slow or missing collector never delays requests: threads of the SDK send from bounded
buffers, and drop on overflow.
Rule 2: the sampling flag of an incoming trace is followed; of traces that start here, a share is
recorded.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace import limits
from millrace.errors import Invalid
from millrace.server.process.server_settings import ServerSettings
from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry


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
