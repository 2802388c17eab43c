"""A sink in the hands of a run.

Rule 1: what cannot be reached is asked again, later and later, until the run's patience is over.
Rule 2: a commit whose end is not known is made again: a sink that has the span says so. The sink is
not opened for that, which would overtake whoever has taken over meanwhile.
Rule 3: who was overtaken ends, and says so.
Rule 4: no sink with a key is brought a row whose key is null, whatever the sink itself checks.
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
from millrace.spark.aloud import Say, aloud

T = TypeVar("T")

Brought = tuple[Sequence[bytes], int]
"""What was staged, and how many rows."""

Stage = Callable[[Held], Brought]
"""Stages all rows of a span; called again where that, or the commit, has failed."""


class Stopped(Exception):
    """The run was asked to end while it waited for somebody."""


class Patience:
    """How long somebody who does not answer is asked again."""

    def __init__(self, seconds: float, stop: Event, say: Say = aloud) -> None:
        self._seconds = seconds
        self._stop = stop
        self._say = say

    def insist(self, who: str, call: Callable[[], T]) -> T:
        """The result of the call, which is made again where it says so, or where nobody knows
        whether it was done: done twice it must be done once. It is made twice at least: who was
        stopped meanwhile, and woken up later, has waited for nobody. Whoever looks on is told once
        for whom this waits, after a moment.

        Raises:
            Retry: patience is over.
            Stopped: an end was asked for meanwhile.
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


class Outlet:
    """A sink of a pipeline while it runs."""

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
        """Rows that this run has brought."""
        self._patience = patience
        self._schema: pa.Schema | None = None
        self._held: Held | None = None

    @property
    def name(self) -> str:
        """As it is declared."""
        return self.declared.name

    @property
    def held(self) -> Held:
        """What `open` gave, or the last commit."""
        if self._held is None:
            raise Stale(f"sink {self.name!r} was not opened", field="sink")
        return self._held

    @property
    def boundary(self) -> Boundary | None:
        """What is in it."""
        return self.held.boundary

    @property
    def columns(self) -> list[str]:
        """The columns of the rows that it takes."""
        return list(self._schema.names) if self._schema is not None else []

    @property
    def place(self) -> Boundary | None:
        """Where it goes on; None: at the beginning."""
        return self.boundary or self._record.start

    @property
    def is_begun_anew(self) -> bool:
        """Whether it was sent back, and nothing came since."""
        return self._record.generation > 0 and self.boundary is None

    @property
    def record(self) -> SinkRecord:
        """What is written down of it."""
        boundary = self._held.boundary if self._held is not None else self._record.boundary
        return msgspec.structs.replace(self._record, boundary=boundary, brought=self.rows)

    def open(self, schema: pa.Schema) -> None:
        """Take the sink over from whoever had it."""
        self._schema = schema
        self.sink.check(schema)
        self._held = self._insist(lambda: self.sink.open(self.flow, schema))
        if self.is_begun_anew:
            # Runs that fill it as it was before are over, however often it was sent back since.
            for before in range(self._record.generation):
                older = msgspec.structs.replace(self._record, generation=before)
                self._insist(partial(self.sink.open, older.flow(self._pipeline), schema))

    def apply(self, span: Span, stage: Stage) -> bool:
        """Bring the rows of a span; returns whether they were not there already.

        Raises:
            Stale: another run has taken the sink over.
            Retry: nobody answers there.
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
        """Stage rows in this process."""
        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in admitted(batches, self.sink.key, self.declared.null_key):
                rows += batch.num_rows
                yield batch

        staged = self.sink.stage(Task(held, span, secrets.token_hex(8)), counted())
        return [staged], rows

    def clean(self) -> None:
        """Drop what runs that were cut off have left.

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
        """Let connections go."""
        self.sink.close()

    def _insist(self, call: Callable[[], T]) -> T:
        return self._patience.insist(f"sink {self.name!r}", call)
