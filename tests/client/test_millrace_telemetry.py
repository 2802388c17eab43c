"""Traces and metrics of a client, read by the OpenTelemetry SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import millrace
from millrace import errors, limits, sync
from millrace.client.lease import Lease
from millrace.client.trace_headers import with_headers
from millrace.client.transaction import Transaction
from millrace.core.commands import Publish
from millrace.core.model import NewMessage
from millrace.telemetry import Telemetry
from tests.support.timeouts import scaled


class Seen:
    """Everything that was exported."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self._meters = MeterProvider([self._reader])
        self.telemetry = Telemetry(tracer_provider=provider, meter_provider=self._meters)
        self.tracer = provider.get_tracer("test")

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name, in the order of their ends."""
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of a name."""
        [span] = self.spans(name)
        return span

    def names(self) -> list[str]:
        return [span.name for span in self._spans.get_finished_spans()]

    def count(self, name: str, **attributes: str) -> float:
        """Return the sum of a counter, or the number of recorded durations."""
        found = self._reader.get_metrics_data()
        total = 0.0
        for point in (
            point
            for resource in (found.resource_metrics if found is not None else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ):
            known = dict(point.attributes or {})
            if all(known.get(at.replace("__", ".")) == value for at, value in attributes.items()):
                total += float(getattr(point, "count", getattr(point, "value", 0)))
        return total


@contextmanager
def seen() -> Iterator[Seen]:
    found = Seen()
    try:
        yield found
    finally:
        found._meters.shutdown()


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def test_a_message_carries_its_trace_from_the_producer_to_the_worker(tmp_path: Path) -> None:
    async def main(found: Seen) -> None:
        async with millrace.open(tmp_path, telemetry=found.telemetry) as m:
            queue, done = await m.queue("orders"), await m.queue("done", space="shop")
            with found.tracer.start_as_current_span("buy"):
                seq = await queue.publish(b"tea", headers={"origin": "Uji"})
            inner: list[int] = []

            async def handle(message: Lease) -> None:
                inner.append(trace.get_current_span().get_span_context().span_id)
                assert dict(message.headers)["origin"] == b"Uji"
                await done.publish(b"made")

            await millrace.Worker(queue, handle, idle=0).run()
        buy, send, process = found.one("buy"), found.one("send orders"), found.one("process orders")
        assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert send.attributes == {
            "messaging.system": "millrace",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "orders",
            "messaging.message.id": str(seq),
        }
        assert parent_of(send) == id_of(buy)
        # One trace, with a link besides.
        assert parent_of(process) == id_of(send)
        assert links_of(process) == [id_of(send)]
        assert inner == [id_of(process)]
        receive = found.one("receive orders")
        assert receive.kind == SpanKind.CLIENT
        assert links_of(receive) == [id_of(send)]
        assert (receive.attributes or {})["messaging.batch.message_count"] == 1
        settle, after = found.one("settle orders"), found.one("send shop/done")
        assert settle.kind == SpanKind.CLIENT
        assert parent_of(settle) == parent_of(after) == id_of(process)
        assert {trace_of(span) for span in (send, process, settle, after)} == {trace_of(buy)}

        orders = {"messaging__destination__name": "orders"}
        duration = "messaging.client.operation.duration"
        for operation in ("send", "settle"):
            told = {"messaging__operation__name": operation}
            assert found.count(duration, **orders, **told) == 1
        # Lease calls that found nothing were measured, and are no spans. While the message is
        # handled the worker may ask several times.
        assert found.count(duration, **orders, messaging__operation__name="receive") > 1
        assert found.count("messaging.client.sent.messages", **orders) == 1
        assert found.count("messaging.client.consumed.messages", **orders) == 1
        assert found.count("messaging.process.duration", **orders) == 1

    with seen() as found:
        asyncio.run(main(found))


def test_what_fails_says_so_in_its_span(tmp_path: Path) -> None:
    async def main(found: Seen) -> None:
        async with millrace.open(tmp_path, telemetry=found.telemetry) as m:
            queue = await m.queue("orders", max_failures=1)
            await queue.publish(b"tea")

            def handle(message: Lease) -> None:
                raise LookupError("no tea")

            await millrace.Worker(queue, handle, idle=0).run()
            await queue.publish(b"more")
            [held] = await queue.lease()
            await held.release()
            with pytest.raises(errors.Stale):
                await queue.settle(held)
            with pytest.raises(errors.OutOfOrder):
                await queue.publish(b"x", producer="p", number=7)
        failed = found.one("process orders")
        assert (failed.attributes or {})["error.type"] == "LookupError"
        assert not failed.status.is_ok
        # Nothing of what it said, for that may be anything.
        assert "no tea" not in repr([failed.attributes, failed.events, failed.status.description])
        assert found.spans("release orders")
        assert found.count("messaging.process.duration", error__type="LookupError") == 1
        sent = found.spans("send orders")[-1]
        assert (sent.attributes or {})["error.type"] == errors.OutOfOrder.code
        stale = found.spans("settle orders")[-1]
        assert (stale.attributes or {})["error.type"] == errors.Stale.code

    with seen() as found:
        asyncio.run(main(found))


def test_every_way_to_publish_carries_the_trace(tmp_path: Path) -> None:
    async def main(found: Seen) -> None:
        async with millrace.open(tmp_path, telemetry=found.telemetry) as m:
            queue = await m.queue("orders", shards=2)
            topic = await m.topic("news")
            await topic.subscribe(queue)
            with found.tracer.start_as_current_span("all") as span:
                wanted = span.get_span_context().trace_id
                await queue.publish_many([b"1", b"2"])
                await queue.publish_many([millrace.Message(b"3", key="k", headers={"a": "b"})])
                await queue.publish_many(pa.table({"value": [b"4", b"5"]}))
                async with queue.publisher("web") as publisher:
                    await publisher.send(b"6")
                await topic.publish(b"7", until_arrived=True)
                async with m.transaction() as t:
                    t.publish(queue, b"8")
                    t.publish_many(topic, [b"9"])

            async def all_nine() -> list[Lease]:
                leases: list[Lease] = []
                while len(leases) < 9:
                    leases += await queue.lease(10, wait=30)
                return leases

            leases = await all_nine()
            assert sorted(lease.body for lease in leases) == [b"%d" % n for n in range(1, 10)]
            for lease in leases:
                text = dict(lease.headers)["traceparent"].decode()
                assert int(text.split("-")[1], 16) == wanted, lease.body
        batch = found.spans("send orders")[0]
        assert (batch.attributes or {})["messaging.batch.message_count"] == 2
        assert found.names().count("send orders") == 4
        assert found.one("send news").kind == SpanKind.PRODUCER
        assert found.count("messaging.client.sent.messages") == 7

    with seen() as found:
        asyncio.run(main(found))


def test_headers_of_the_producer_stay_and_bounds_hold() -> None:
    extra = (("traceparent", b"new"), ("tracestate", b"x"))
    own = NewMessage(b"x", None, (("traceparent", b"old"),))
    full = NewMessage(b"x", None, tuple((f"h{n}", b"") for n in range(limits.HEADERS_MAX)))
    large = NewMessage(b"x", None, (("h", b"v" * (limits.HEADER_BYTES_MAX - 1)),))
    plain = NewMessage(b"x")
    rows = with_headers(Publish((own, full, large, plain)), extra).rows
    assert rows == (own, full, large, NewMessage(b"x", None, extra))
    assert with_headers(Publish((plain,)), ()).rows == (plain,)


def test_a_transaction_within_a_worker_goes_on_with_its_trace(tmp_path: Path) -> None:
    async def main(found: Seen) -> None:
        async with millrace.open(tmp_path, telemetry=found.telemetry) as m:
            queue, done = await m.queue("orders"), await m.queue("done")
            await queue.publish(b"tea")

            def handle(message: Lease, t: Transaction) -> None:
                t.publish(done, b"made")

            await millrace.Worker(queue, handle, idle=0).run()
            [made] = await done.lease()
            process = found.one("process orders")
            assert dict(made.headers)["traceparent"].split(b"-")[1:3] == [
                b"%032x" % trace_of(process),
                b"%016x" % id_of(process),
            ]

    with seen() as found:
        asyncio.run(main(found))


def test_a_session_is_traced_as_leases_are(tmp_path: Path) -> None:
    async def main(found: Seen) -> None:
        async with millrace.open(tmp_path, telemetry=found.telemetry) as m:
            queue = await m.queue("orders", space="shop")
            await queue.publish(b"tea")
            async with queue.session() as session:
                async for lease in session:
                    await session.settle([lease.number or 0])
                    break
        send = found.one("send shop/orders")
        assert links_of(found.one("receive shop/orders")) == [id_of(send)]
        assert found.one("settle shop/orders").kind == SpanKind.CLIENT

    with seen() as found:
        asyncio.run(main(found))


def test_blocking_calls_are_part_of_the_trace_of_their_thread(tmp_path: Path) -> None:
    with seen() as found, sync.open(tmp_path, telemetry=found.telemetry) as m:
        queue = m.queue("orders")
        with found.tracer.start_as_current_span("buy") as span:
            queue.publish(b"tea")
        assert parent_of(found.one("send orders")) == span.get_span_context().span_id
        with queue.lease()[0] as lease:
            assert b"%032x" % span.get_span_context().trace_id in dict(lease.headers)["traceparent"]
        assert found.one("settle orders").kind == SpanKind.CLIENT


@pytest.mark.process
def test_without_telemetry_nothing_of_it_is_imported_and_no_header_is_added(
    tmp_path: Path,
) -> None:
    program = (
        "import sys, millrace.sync, millrace.server.process.server\n"
        f"with millrace.sync.open({str(tmp_path)!r}) as m:\n"
        "    queue = m.queue('orders'); queue.publish(b'x')\n"
        "    assert queue.lease()[0].headers == ()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=scaled(60))
