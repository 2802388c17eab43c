"""Traces and metrics of messaging, by the conventions of OpenTelemetry.

It comes with the extra `otel`: `millrace.open(path, telemetry=Telemetry())`, or the same of
`millrace.connect`. Nothing else imports this module unless it is asked for.

Rule 1: whoever gives no `Telemetry` pays nothing for it.
Rule 2: no body, key or receipt stands in an attribute; names of queues and codes of errors do.
Rule 3: a trace goes on behind a queue by the headers `traceparent` and `tracestate` of a message.
They are the producer's: where they are there already, they stay as they are.
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
"""Bounds of durations that the conventions name."""

_TYPES = {"release": "settle", "discard": "settle"}
"""What operations are by the conventions' word, where that is another one."""


class Step:
    """Something that is being done: a span, and how long it takes."""

    def __init__(self, span: Span, attributes: Attributes) -> None:
        self.span = span
        self._attributes = attributes
        self._began = perf_counter()
        self.is_over = False

    @property
    def attributes(self) -> Attributes:
        """What its measurements are told by."""
        return self._attributes

    @property
    def trace_id(self) -> str:
        """Of the trace that it is part of."""
        return trace.format_trace_id(self.span.get_span_context().trace_id)

    def set(self, name: str, value: str | int) -> None:
        """Know something of the span alone."""
        self.span.set_attribute(name, value)

    def fail(self, error: BaseException) -> None:
        """It went wrong."""
        word = error_type(error)
        self._attributes["error.type"] = word
        self.span.set_attribute("error.type", word)
        self.span.set_status(Status(StatusCode.ERROR, word))

    def end(self) -> float:
        """It is over; returns after how many seconds."""
        self.is_over = True
        self.span.end()
        return perf_counter() - self._began


class Telemetry:
    """Makes spans and measurements of what clients, workers and servers do.

    Without providers it uses those that the program has set for the whole process.
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
        """Headers by which the trace that is going on here goes on elsewhere; none, if none is."""
        found: dict[str, str] = {}
        _W3C.inject(found)
        return tuple((name, text.encode()) for name, text in found.items())

    @contextmanager
    def sending(self, destination: str, count: int | None) -> Iterator[Step]:
        """Messages are brought to a queue or topic; `count` is None of a single one."""
        step = self._begin("send", destination, SpanKind.PRODUCER, count)
        try:
            with self._within(step, self._operation):
                yield step
        finally:
            self._sent.add(1 if count is None else count, step.attributes)

    # --- Consumers ------------------------------------------------------------------------------

    def began(self) -> tuple[int, float]:
        """When something begins that is told of at its end."""
        return time_ns(), perf_counter()

    def received(
        self, destination: str, began: tuple[int, float], messages: Iterable[Pairs]
    ) -> None:
        """A lease call was answered, perhaps with nothing: then there is no span of it."""
        found = list(messages)
        attributes = _attributes("receive", destination)
        self._operation.record(perf_counter() - began[1], attributes)
        if found:
            self._consumed.add(len(found), attributes)
            self._receive(destination, began[0], found).end()

    def refused(self, destination: str, began: tuple[int, float], error: BaseException) -> None:
        """A lease call ended in an error."""
        step = self._receive(destination, began[0], [])
        step.fail(error)
        step.end()
        self._operation.record(perf_counter() - began[1], step.attributes)

    def _receive(self, destination: str, began_ns: int, messages: Sequence[Pairs]) -> Step:
        links = [link for headers in messages if (link := _link(headers)) is not None]
        attributes = _attributes("receive", destination)
        span = self._tracer.start_span(
            f"receive {destination}",
            kind=SpanKind.CLIENT,
            attributes={**attributes, "messaging.batch.message_count": len(messages)},
            links=links,
            start_time=began_ns,
        )
        return Step(span, attributes)

    @contextmanager
    def settling(self, operation: str, destination: str, count: int | None) -> Iterator[Step]:
        """Messages are settled, released or discarded; `count` is None of a single one."""
        step = self._begin(operation, destination, SpanKind.CLIENT, count)
        with self._within(step, self._operation):
            yield step

    @contextmanager
    def processing(self, destination: str, id: str, headers: Pairs) -> Iterator[Step]:
        """A message is worked on. Whoever does so calls `processed` when the work is done; what
        follows until the end of the context, such as settling, is part of the same trace.

        Where no trace is going on here, that of the producer goes on.
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
        step = Step(span, attributes)
        with self._within(step, self._process):
            yield step

    def processed(self, step: Step, error: BaseException | None) -> None:
        """The function has returned, or has failed with an error."""
        if error is not None:
            step.fail(error)
        self._process.record(step.end(), step.attributes)

    # --- Servers --------------------------------------------------------------------------------

    @contextmanager
    def answering(self, method: str, route: str, headers: Mapping[str, str]) -> Iterator[Step]:
        """A request is answered; it goes on with the trace that its headers name."""
        parent = _W3C.extract({name: headers[name] for name in HEADERS if name in headers})
        attributes: Attributes = {"http.request.method": method, "http.route": route}
        span = self._tracer.start_span(
            f"{method} {route}", context=parent, kind=SpanKind.SERVER, attributes=attributes
        )
        step = Step(span, attributes)
        with self._within(step, self._request):
            yield step

    def answered(self, step: Step, status: int) -> None:
        """The status of what a request was answered with."""
        step.attributes["http.response.status_code"] = status
        step.set("http.response.status_code", status)
        if status >= 500:
            step.attributes["error.type"] = str(status)
            step.set("error.type", str(status))
            step.span.set_status(Status(StatusCode.ERROR))

    # --- Both -----------------------------------------------------------------------------------

    def _begin(self, operation: str, destination: str, kind: SpanKind, count: int | None) -> Step:
        attributes = _attributes(operation, destination)
        known = dict(attributes)
        if count is not None:
            known["messaging.batch.message_count"] = count
        span = self._tracer.start_span(
            f"{operation} {destination}".rstrip(), kind=kind, attributes=known
        )
        return Step(span, attributes)

    @contextmanager
    def _within(self, step: Step, duration: Histogram) -> Iterator[None]:
        """What is done here is part of the step, and it ends here, if it has not before."""
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
    found: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": _TYPES.get(operation, operation),
    }
    if destination:
        found["messaging.destination.name"] = destination
    return found


def _texts(headers: Pairs) -> dict[str, str]:
    """Those of the headers that name a trace, as text."""
    return {name: value.decode("ascii", "replace") for name, value in headers if name in HEADERS}


def _link(headers: Pairs) -> Link | None:
    """To what the producer did, if the message tells."""
    found = trace.get_current_span(_W3C.extract(_texts(headers), context=Context()))
    context = found.get_span_context()
    return Link(context) if context.is_valid else None


def error_type(error: BaseException) -> str:
    """An error by one of few words: its code, if it is one of ours."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else type(error).__qualname__
