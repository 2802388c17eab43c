"""Traces and metrics on their way to a collector: a real one's protocol, and real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import millrace
from millrace.client.lease import Lease
from millrace.server.process.metrics_export import OtlpExport
from millrace.server.web.request_log import RequestLog
from millrace.telemetry import Telemetry
from tests.server.rest.harness import served
from tests.server.server_process import Process
from tests.support.timeouts import scaled

ORDERS = "/v1/spaces/default/queues/orders"
MESSAGES = "/v1/spaces/{space}/queues/{queue}/messages"

PRODUCER = """
import asyncio, sys
import millrace
from millrace.telemetry import Telemetry
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

address, token, collector = sys.argv[1:]
provider = TracerProvider(resource=Resource({"service.name": "shop"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector + "/v1/traces")))

async def main():
    telemetry = Telemetry(tracer_provider=provider)
    async with millrace.connect(address, token=token, telemetry=telemetry) as m:
        queue = await m.queue("orders")
        with provider.get_tracer("shop").start_as_current_span("buy"):
            await queue.publish(b"tea")

asyncio.run(main())
provider.shutdown()
"""


class Collector:
    """Takes what is exported."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        """Each with the service that made it."""
        self.metrics: set[str] = set()
        found = self

        class Take(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                found.take(self.path, body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            for told in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics |= {one.name for scope in told.scope_metrics for one in scope.metrics}
            return
        for found in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {one.key: one.value.string_value for one in found.resource.attributes}
            spans = [span for scope in found.scope_spans for span in scope.spans]
            self.spans += [(service["service.name"], span) for span in spans]

    def of(self, service: str, name: str, trace: bytes | None = None) -> list[Span]:
        """The spans of this name that a service has made."""
        return [
            span
            for maker, span in self.spans
            if maker == service and span.name == name and trace in (None, span.trace_id)
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        thread.join()
        found.server.server_close()


@pytest.mark.process
def test_one_trace_leads_from_a_producer_through_the_server_to_a_worker(tmp_path: Path) -> None:
    async def work(server: Process, telemetry: Telemetry) -> None:
        async with millrace.connect(server.address, token=server.token, telemetry=telemetry) as m:

            async def handle(_: Lease) -> None:
                """Done."""

            await millrace.Worker(await m.queue("orders"), handle, idle=0).run()

    with collecting() as found:
        told = ("--frontends", 1, "--set", f"otlp_endpoint={found.url}")
        with Process(tmp_path / "data", *told) as server:
            program = [sys.executable, "-c", PRODUCER, server.address, server.token, found.url]
            subprocess.run(program, check=True, timeout=scaled(60))
            provider = TracerProvider(resource=Resource({"service.name": "kitchen"}))
            exporter = OTLPSpanExporter(f"{found.url}/v1/traces")
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            asyncio.run(work(server, Telemetry(tracer_provider=provider)))
            provider.shutdown()
            assert server.stop() == 0
    [buy] = found.of("shop", "buy")
    [send] = found.of("shop", "send orders")
    assert (send.trace_id, send.parent_span_id) == (buy.trace_id, buy.span_id)
    [process] = found.of("kitchen", "process orders")
    assert (process.trace_id, process.parent_span_id) == (send.trace_id, send.span_id)
    assert [link.span_id for link in process.links] == [send.span_id]
    [settle] = found.of("kitchen", "settle orders")
    asked = found.of("millrace", "POST /v1/calls", send.trace_id)
    assert {span.parent_span_id for span in asked} == {send.span_id, settle.span_id}
    assert all(span.kind == Span.SPAN_KIND_SERVER for span in asked)
    assert "http.server.request.duration" in found.metrics


def test_what_is_published_over_rest_carries_the_trace_of_the_request(tmp_path: Path) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"

    async def main(found: Collector) -> None:
        exporting = OtlpExport(found.url, 1.0)
        async with served(tmp_path, telemetry=exporting.telemetry) as server:
            server.app.use(RequestLog(exporting.telemetry, None))
            headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
            body = {"body": "tea"}
            await server.ask("POST", f"{ORDERS}/messages", body, headers=headers)
            quiet = {"traceparent": f"00-{trace[::-1]}-b7ad6b7169203331-00"}
            await server.ask("POST", f"{ORDERS}/messages", body, headers=quiet)
            await server.ask("GET", f"{ORDERS}/messages/7")
            queue = await server.millrace.find("orders")
            first, _ = await queue.lease(2)
            parts = dict(first.headers)["traceparent"].decode().split("-")
            await exporting.stop()
        asked, *others = found.of("millrace", f"POST {MESSAGES}")
        # Whoever began the other one did not want it recorded.
        assert not others
        assert asked.trace_id.hex() == trace == parts[1]
        assert asked.parent_span_id.hex() == "b7ad6b7169203331"
        [sent] = found.of("millrace", "send orders")
        assert sent.parent_span_id == asked.span_id
        assert sent.span_id.hex() == parts[2]
        [got] = found.of("millrace", f"GET {MESSAGES}/{{seq}}")
        told = {one.key: one.value for one in got.attributes}
        assert told["http.response.status_code"].int_value == 404
        assert told["user.name"].string_value == "root"
        assert got.status.code == 0
        names = {"messaging.client.operation.duration", "messaging.client.sent.messages"}
        assert names <= found.metrics

    with collecting() as found:
        asyncio.run(main(found))


@pytest.mark.process
def test_a_collector_that_is_away_holds_nobody_up(tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--set", "otlp_endpoint=http://127.0.0.1:9") as server:
        assert server.ask("PUT", ORDERS, {}).status == 201
        assert server.ask("POST", f"{ORDERS}/messages", {"body": "tea"}).status == 201
        assert server.stop() == 0
