"""OpenTelemetry traces and metrics of messaging operations, by the semantic conventions.

The extra `otel` installs the dependencies: `millrace.open(path, telemetry=Telemetry())`, or the
same of `millrace.connect`. Nothing else imports this module unless it is asked for.

Rule 1: without a `Telemetry` there is no cost.
Rule 2: attributes never contain bodies, keys or receipts; they do contain queue names and error
codes.
Rule 3: a trace continues behind a queue by the message headers `traceparent` and `tracestate`. They
belong to the producer: existing ones are not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter, time_ns

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error.name} is missing; `pip install 'millrace[otel]'` brings it", name=error.name
    ) from error

Pairs = Sequence[tuple[str, bytes]]
"""Headers of a message."""

Attributes = dict[str, str | int]

HEADERS = ("traceparent", "tracestate")
SYSTEM = "millrace"
SCHEMA = "https://opentelemetry.io/schemas/1.37.0"
_W3C = TraceContextTextMapPropagator()
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bucket bounds for durations, as the conventions recommend."""

_TYPES = {"release": "settle", "discard": "settle"}
"""Operation types of the conventions, if they differ from our name."""


class TracedOperation:
    """An operation in progress: its span and its duration."""

    def __init__(self, span: Span, attributes: Attributes) -> None:
        self.span = span
        self._attributes = attributes
        self._began = perf_counter()
        self.is_over = False

    @property
    def attributes(self) -> Attributes:
        """Attributes of its measurements."""
        return self._attributes

    @property
    def trace_id(self) -> str:
        """Id of its trace."""
        return trace.format_trace_id(self.span.get_span_context().trace_id)

    def set(self, name: str, value: str | int) -> None:
        """Set an attribute of the span, but not of the measurements."""
        self.span.set_attribute(name, value)

    def fail(self, error: BaseException) -> None:
        """Record an error in span and measurements."""
        word = error_type(error)
        self._attributes["error.type"] = word
        self.span.set_attribute("error.type", word)
        self.span.set_status(Status(StatusCode.ERROR, word))

    def end(self) -> float:
        """End the span; return the duration in seconds."""
        self.is_over = True
        self.span.end()
        return perf_counter() - self._began


class Telemetry:
    """Creates spans and measurements for clients, workers and servers.

    Without providers it uses the global ones of the process.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(SYSTEM, None, tracer_provider, SCHEMA)
        meter = metrics.get_meter(SYSTEM, "", meter_provider, SCHEMA)
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._request = meter.create_histogram(
            "http.server.request.duration",
            "s",
            "Duration of HTTP server requests.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )

    # --- Producers ------------------------------------------------------------------------------

    def carried(self) -> tuple[tuple[str, bytes], ...]:
        """Return headers that continue the current trace elsewhere; empty if there is no trace."""
        headers: dict[str, str] = {}
        _W3C.inject(headers)
        return tuple((name, text.encode()) for name, text in headers.items())

    @contextmanager
    def sending(self, destination: str, count: int | None) -> Iterator[TracedOperation]:
        """Trace the sending of messages to a queue or topic; `count` is None for a single one."""
        step = self._begin("send", destination, SpanKind.PRODUCER, count)
        try:
            with self._within(step, self._operation):
                yield step
        finally:
            self._sent.add(1 if count is None else count, step.attributes)

    # --- Consumers ------------------------------------------------------------------------------

    def began(self) -> tuple[int, float]:
        """Return the start of an operation that is recorded at its end."""
        return time_ns(), perf_counter()

    def received(
        self, destination: str, began: tuple[int, float], messages: Iterable[Pairs]
    ) -> None:
        """Record an answered lease call; an empty one gets no span."""
        received = list(messages)
        attributes = _attributes("receive", destination)
        self._operation.record(perf_counter() - began[1], attributes)
        if received:
            self._consumed.add(len(received), attributes)
            self._receive(destination, began[0], received).end()

    def refused(self, destination: str, began: tuple[int, float], error: BaseException) -> None:
        """Record a lease call that ended in an error."""
        step = self._receive(destination, began[0], [])
        step.fail(error)
        step.end()
        self._operation.record(perf_counter() - began[1], step.attributes)

    def _receive(
        self, destination: str, began_ns: int, messages: Sequence[Pairs]
    ) -> TracedOperation:
        links = [link for headers in messages if (link := _link(headers)) is not None]
        attributes = _attributes("receive", destination)
        span = self._tracer.start_span(
            f"receive {destination}",
            kind=SpanKind.CLIENT,
            attributes={**attributes, "messaging.batch.message_count": len(messages)},
            links=links,
            start_time=began_ns,
        )
        return TracedOperation(span, attributes)

    @contextmanager
    def settling(
        self, operation: str, destination: str, count: int | None
    ) -> Iterator[TracedOperation]:
        """Trace settling, releasing or discarding messages; `count` is None for a single one."""
        step = self._begin(operation, destination, SpanKind.CLIENT, count)
        with self._within(step, self._operation):
            yield step

    @contextmanager
    def processing(self, destination: str, id: str, headers: Pairs) -> Iterator[TracedOperation]:
        """Trace the processing of a message.

        The caller calls `processed` when its function returns; later operations within the context,
        such as settling, belong to the same trace. Without a current trace, the producer's trace
        continues.
        """
        parent = contexts.get_current()
        if not trace.get_current_span(parent).get_span_context().is_valid:
            parent = _W3C.extract(_texts(headers), context=parent)
        link = _link(headers)
        attributes = _attributes("process", destination)
        span = self._tracer.start_span(
            f"process {destination}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={**attributes, "messaging.message.id": id},
            links=[] if link is None else [link],
        )
        step = TracedOperation(span, attributes)
        with self._within(step, self._process):
            yield step

    def processed(self, step: TracedOperation, error: BaseException | None) -> None:
        """Record that the function has returned, or has failed with an error."""
        if error is not None:
            step.fail(error)
        self._process.record(step.end(), step.attributes)

    # --- Servers --------------------------------------------------------------------------------

    @contextmanager
    def answering(
        self, method: str, route: str, headers: Mapping[str, str]
    ) -> Iterator[TracedOperation]:
        """Trace the handling of an HTTP request; it continues the trace that its headers name."""
        parent = _W3C.extract({name: headers[name] for name in HEADERS if name in headers})
        attributes: Attributes = {"http.request.method": method, "http.route": route}
        span = self._tracer.start_span(
            f"{method} {route}", context=parent, kind=SpanKind.SERVER, attributes=attributes
        )
        step = TracedOperation(span, attributes)
        with self._within(step, self._request):
            yield step

    def answered(self, step: TracedOperation, status: int) -> None:
        """Record the status of the response."""
        step.attributes["http.response.status_code"] = status
        step.set("http.response.status_code", status)
        if status >= 500:
            step.attributes["error.type"] = str(status)
            step.set("error.type", str(status))
            step.span.set_status(Status(StatusCode.ERROR))

    # --- Both -----------------------------------------------------------------------------------

    def _begin(
        self, operation: str, destination: str, kind: SpanKind, count: int | None
    ) -> TracedOperation:
        attributes = _attributes(operation, destination)
        span_attributes = dict(attributes)
        if count is not None:
            span_attributes["messaging.batch.message_count"] = count
        span = self._tracer.start_span(
            f"{operation} {destination}".rstrip(), kind=kind, attributes=span_attributes
        )
        return TracedOperation(span, attributes)

    @contextmanager
    def _within(self, step: TracedOperation, duration: Histogram) -> Iterator[None]:
        """Make the span current, and end it with the context unless it has ended before."""
        token = contexts.attach(trace.set_span_in_context(step.span))
        try:
            yield
        except BaseException as error:
            if not step.is_over:
                step.fail(error)
            raise
        finally:
            contexts.detach(token)
            if not step.is_over:
                duration.record(step.end(), step.attributes)


def _attributes(operation: str, destination: str) -> Attributes:
    attributes: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": _TYPES.get(operation, operation),
    }
    if destination:
        attributes["messaging.destination.name"] = destination
    return attributes


def _texts(headers: Pairs) -> dict[str, str]:
    """Return the trace headers of a message as text."""
    return {name: value.decode("ascii", "replace") for name, value in headers if name in HEADERS}


def _link(headers: Pairs) -> Link | None:
    """Return a link to the producer's span, if the message carries one."""
    span = trace.get_current_span(_W3C.extract(_texts(headers), context=Context()))
    context = span.get_span_context()
    return Link(context) if context.is_valid else None


def error_type(error: BaseException) -> str:
    """Return a low-cardinality name of an error: its code, or the name of its class."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else type(error).__qualname__
