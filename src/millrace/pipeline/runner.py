"""The run loop: carries rows from a queue through steps into sinks, span by span, exactly once.

Rule 1: a run has no checkpoint of its own. It resumes each sink at the boundary which that sink
stores.

Rule 2: a span is pinned: repeated reads return the same rows. The cursor moves only when every sink
has the span.

Rule 3: sinks that lag catch up with the furthest one first, before all continue together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Event
from time import monotonic
from typing import TypeVar

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.errors import Stale
from millrace.pipeline.declaration import Pipeline
from millrace.pipeline.making import Maker
from millrace.pipeline.sink_session import (
    Brought,
    Patience,
    SinkSession,
    Stopped,
)
from millrace.pipeline.source import (
    Feed,
    Lost,
    Stretch,
    cut,
    highest_of,
    judge,
    lowest_of,
    rows_between,
)
from millrace.sinks.base import Held
from millrace.sinks.boundary import Boundary, Span, begins


class SinkProgress(msgspec.Struct, frozen=True):
    """The progress of a sink."""

    name: str
    rows: int
    """Number of rows that this run has written."""
    boundary: Boundary | None


class Progress(msgspec.Struct, frozen=True):
    """The progress of a run after a span."""

    pipeline: str
    rows: int
    """Number of rows that were read for the span."""
    seqs: int
    """Number of seqs in the span."""
    seconds: float
    """Duration of the span in seconds."""
    lag: int
    """Number of seqs known to be waiting behind it."""
    sinks: tuple[SinkProgress, ...]


T = TypeVar("T")

Tell = Callable[[Progress], None]


class Runner:
    """One run of a stateless pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        feed: Feed,
        outlets: Sequence[SinkSession],
        maker: Maker,
        *,
        stop: Event,
        patience: Patience,
        tell: Tell,
    ) -> None:
        self._pipeline = pipeline
        self._feed = feed
        self._outlets = outlets
        self._maker = maker
        self._stop = stop
        self._patience = patience
        self._tell = tell
        self._lost = 0
        """Number of times the cursor was lost since it last moved."""
        self._clean_at = 0.0
        """Time of the next cleaning of sinks."""

    def run(self, *, once: bool) -> None:
        """Take the sinks over and carry rows until none are left (`once`), or a stop is requested.

        A started span is finished: on return, every sink has the same boundary.

        Raises:
            Refused: a sink is ahead of the queue, or was filled from another one.
            Stale: another run has taken over.
            Retry: a sink or the server did not respond within the pipeline's timeout.
        """
        with suppress(Stopped):
            self._begin()
            while not self._stop.is_set():
                began = monotonic()
                if not self._turn(0 if once else limits.PIPELINE_WAIT_SECONDS) and once:
                    return
                if monotonic() >= self._clean_at:
                    self._clean()
                rest = self._pipeline.run.every - (monotonic() - began)
                if not once and rest > 0:
                    self._stop.wait(rest)

    def _turn(self, wait: float) -> bool:
        """Carry the available rows; return False if there were none."""
        try:
            stretch = self._next(wait)
            if stretch is not None:
                self._carry_all(stretch)
        except Lost as error:
            self._lost += 1
            if self._lost > limits.PIPELINE_LOST_MAX:
                raise Stale(
                    f"the cursor {self._pipeline.name!r} was moved {self._lost} times by others "
                    f"({error}); see that the pipeline runs once, and run it again",
                    field="cursor",
                ) from error
            self._resume()
            return True
        return stretch is not None

    def bring(self, seconds: float) -> Stretch | None:
        """Bring every sink to the present end of the queue, whose rows stay pinned for at most
        `seconds` seconds or until they are committed; return None if all sinks are there already.

        Raises:
            As `Runner.run`.
        """
        self._begin()
        stretch = self._insist(lambda: self._feed.next(0, seconds))
        if stretch is not None:
            while self._place(self._least(), stretch) != stretch.upto:
                self._carry_next(stretch, self._place(self._least(), stretch))
        return stretch

    def _begin(self) -> None:
        for outlet in self._outlets:
            outlet.open(self._maker.schema(outlet.declared.rows))
        # Only after all sinks are taken over: an overtaken run carries rows until then.
        end = self._insist(self._feed.end)
        for outlet in self._outlets:
            if outlet.place is not None:
                judge(outlet.name, outlet.place, end)
        self._clean()
        self._resume()

    def _clean(self) -> None:
        for outlet in self._outlets:
            outlet.clean()
        self._clean_at = monotonic() + limits.PIPELINE_CLEAN_SECONDS

    def _resume(self) -> None:
        lowest = lowest_of([outlet.place for outlet in self._outlets])
        held = lowest_of([one.boundary for one in self._outlets if one.boundary is not None])
        self._insist(partial(self._feed.begin, lowest, held))

    def _next(self, wait: float) -> Stretch | None:
        return self._insist(lambda: self._feed.next(wait))

    def _insist(self, call: Callable[[], T]) -> T:
        return self._patience.insist(f"queue {self._pipeline.source.queue!r}", call)

    def _carry_all(self, stretch: Stretch) -> None:
        """Carry all rows of a stretch, in spans; a stop takes effect between two of them."""
        while not self._stop.is_set():
            low = self._place(self._least(), stretch)
            if low == stretch.upto:
                return
            self._carry_next(stretch, low)
            places = {self._place(outlet, stretch) for outlet in self._outlets}
            if len(places) == 1:
                [upto] = places
                self._insist(partial(stretch.commit, upto))
                self._lost = 0

    def _least(self) -> SinkSession:
        return min(
            self._outlets,
            key=lambda outlet: outlet.place.number if outlet.place is not None else -1,
        )

    def _place(self, outlet: SinkSession, stretch: Stretch) -> Boundary:
        """Return the boundary of a sink."""
        return outlet.place or begins(stretch.after)

    def _carry_next(self, stretch: Stretch, low: Boundary) -> None:
        """Carry the next span into the sinks that are furthest behind."""
        began = monotonic()
        places = [self._place(outlet, stretch) for outlet in self._outlets]
        behind = [
            outlet for outlet, place in zip(self._outlets, places, strict=True) if place == low
        ]
        span = Span(low, self._goal(stretch, low, places, behind))
        rows = self._carry(stretch, span, behind)
        self._tell(
            Progress(
                self._pipeline.name,
                rows,
                rows_between(span.after, span.upto),
                monotonic() - began,
                rows_between(span.upto, stretch.upto),
                tuple(SinkProgress(one.name, one.rows, one.boundary) for one in self._outlets),
            )
        )

    def _goal(
        self,
        stretch: Stretch,
        low: Boundary,
        places: Sequence[Boundary],
        behind: Sequence[SinkSession],
    ) -> Boundary:
        """Return the end of the next span."""
        if any(outlet.is_begun_anew for outlet in behind):
            # The sink has rows of an earlier generation, which are newer than those of a part of
            # the stretch.
            return stretch.upto
        far = highest_of(places)
        # A sink that was rewound to a time may be ahead in one shard and behind in another.
        goal = far if far != low and far.covers(low) else stretch.upto
        return cut(low, goal, self._pipeline.source.limit.rows)

    def _carry(self, stretch: Stretch, span: Span, outlets: Sequence[SinkSession]) -> int:
        """Carry one span into these sinks; return the number of rows read."""
        is_parsing = self._maker.is_parsing
        table = None if is_parsing else self._insist(lambda: stretch.small(span))
        views: Mapping[str, pa.Table | None] = {}
        if table is not None:
            wanted = [outlet.declared.rows for outlet in outlets]
            views = self._insist(lambda: self._maker.here(table, wanted))
        for outlet in outlets:
            made = views.get(outlet.declared.rows)
            if made is None:
                outlet.apply(span, partial(self._stage, stretch, span, outlet))
            else:
                outlet.apply(span, partial(outlet.stage_here, span, made.to_batches()))
        return rows_between(span.after, span.upto) if table is None else table.num_rows

    def _stage(self, stretch: Stretch, span: Span, outlet: SinkSession, held: Held) -> Brought:
        return self._maker.stage(stretch, span, outlet.declared.rows, outlet, held)
