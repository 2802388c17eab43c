"""A run's connection to one sink: open, stage and commit with retries and fencing.

Rule 1: unavailable sinks and servers are retried with a growing backoff, until the run's timeout.

Rule 2: a commit with an unknown result is repeated: a sink that has the span reports so. The sink
is not opened again for that, since opening would overtake a run that has taken over since.

Rule 3: a run that was overtaken ends with an error that says so.

Rule 4: a sink with a key never gets a row whose key is null, whatever the sink itself checks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from time import monotonic
from typing import TypeVar

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.errors import Retry, Stale, Unknown
from millrace.pipeline.declaration import DeclaredSink
from millrace.pipeline.record import SinkRecord
from millrace.sinks.base import Held, Sink, Task
from millrace.sinks.boundary import Boundary, Span, goes_on
from millrace.sinks.null_key import admitted
from millrace.spark.notices import Say, print_notice

T = TypeVar("T")

Brought = tuple[Sequence[bytes], int]
"""The staged data and the number of rows."""

Stage = Callable[[Held], Brought]
"""Stages all rows of a span; called again if that, or the commit, has failed."""


class Stopped(Exception):
    """Raised if the run is asked to stop during a retry."""


class Patience:
    """Retries with backoff for a limited time."""

    def __init__(self, seconds: float, stop: Event, say: Say = print_notice) -> None:
        self._seconds = seconds
        self._stop = stop
        self._say = say

    def insist(self, who: str, call: Callable[[], T]) -> T:
        """Return the result of the call, which is retried after `Retry` and `Unknown`.

        A call whose result is unknown may have been executed, so it has to be idempotent. It is
        attempted at least twice, even after the timeout: a process that was suspended for that time
        has not really waited. After a moment the name of the unresponsive party is reported once.

        Raises:
            Retry: the timeout has passed.
            Stopped: a stop was requested during the retries.
        """
        began, is_said = monotonic(), False
        until = began + self._seconds
        pause, tries = limits.PIPELINE_BACKOFF_SECONDS, 0
        while True:
            tries += 1
            try:
                return call()
            except (Retry, Unknown) as error:
                if monotonic() >= until and tries > 1:
                    raise Retry(
                        f"{who} did not answer for {self._seconds:g} seconds; nothing is lost: run "
                        f"this again, and it goes on. The last attempt: {error.message}",
                        field=error.field,
                    ) from error
                if not is_said and monotonic() >= began + limits.PIPELINE_SILENT_SECONDS:
                    is_said = True
                    self._say(f"{who} does not answer, and is asked again: {error.message}")
            if self._stop.wait(pause):
                raise Stopped
            pause = min(2 * pause, limits.PIPELINE_BACKOFF_SECONDS_MAX)


class SinkSession:
    """A sink of a pipeline during a run."""

    def __init__(
        self,
        declared: DeclaredSink,
        sink: Sink,
        pipeline: str,
        record: SinkRecord,
        patience: Patience,
    ) -> None:
        self.declared = declared
        self.sink = sink
        self._pipeline = pipeline
        self._record = record
        self.flow = record.flow(pipeline)
        self.rows = 0
        """Number of rows that this run has written."""
        self._patience = patience
        self._schema: pa.Schema | None = None
        self._held: Held | None = None

    @property
    def name(self) -> str:
        """Name of the sink in the declaration."""
        return self.declared.name

    @property
    def held(self) -> Held:
        """The state returned by `open` or the last commit."""
        if self._held is None:
            raise Stale(f"sink {self.name!r} was not opened", field="sink")
        return self._held

    @property
    def boundary(self) -> Boundary | None:
        """The boundary up to which the sink has rows."""
        return self.held.boundary

    @property
    def columns(self) -> list[str]:
        """The columns of the rows that it takes."""
        return list(self._schema.names) if self._schema is not None else []

    @property
    def place(self) -> Boundary | None:
        """The boundary at which it resumes; None: the beginning."""
        return self.boundary or self._record.start

    @property
    def is_begun_anew(self) -> bool:
        """True if it was rewound or restarted, and has no rows since."""
        return self._record.generation > 0 and self.boundary is None

    @property
    def record(self) -> SinkRecord:
        """The record of the sink, with its present boundary."""
        boundary = self._held.boundary if self._held is not None else self._record.boundary
        return msgspec.structs.replace(self._record, boundary=boundary, brought=self.rows)

    def open(self, schema: pa.Schema) -> None:
        """Take the sink over from the previous run."""
        self._schema = schema
        self.sink.check(schema)
        self._held = self._insist(lambda: self.sink.open(self.flow, schema))
        if self.is_begun_anew:
            # Fence the runs that still fill one of its earlier generations.
            for before in range(self._record.generation):
                older = msgspec.structs.replace(self._record, generation=before)
                self._insist(partial(self.sink.open, older.flow(self._pipeline), schema))

    def apply(self, span: Span, stage: Stage) -> bool:
        """Write the rows of a span; return False if the sink had them already.

        Raises:
            Stale: another run has taken the sink over.
            Retry: the sink does not respond.
        """
        if not goes_on(self.boundary, span):
            return False

        def attempt() -> int:
            staged, rows = stage(self.held)
            self._held = self.sink.commit(self.held, span, staged)
            return rows

        with self._unless_overtaken():
            self.rows += self._insist(attempt)
        return True

    def stage_here(self, span: Span, batches: Iterable[pa.RecordBatch], held: Held) -> Brought:
        """Stage rows in this process and count them."""
        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in admitted(batches, self.sink.key, self.declared.null_key):
                rows += batch.num_rows
                yield batch

        staged = self.sink.stage(Task(held, span, secrets.token_hex(8)), counted())
        return [staged], rows

    def clean(self) -> None:
        """Remove the remains of interrupted runs.

        Raises:
            Stale: another run has taken the sink over.
        """
        with self._unless_overtaken():
            self._insist(lambda: self.sink.clean(self.held))

    @contextmanager
    def _unless_overtaken(self) -> Iterator[None]:
        try:
            yield
        except Stale as error:
            raise Stale(
                f"sink {self.name!r}: another run of this pipeline has taken over "
                f"({error.message}); this one has changed nothing since and ends",
                field="fence",
            ) from error

    def close(self) -> None:
        """Close the connections of the sink."""
        self.sink.close()

    def _insist(self, call: Callable[[], T]) -> T:
        return self._patience.insist(f"sink {self.name!r}", call)
