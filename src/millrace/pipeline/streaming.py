"""Stateful pipelines, run as Spark streaming queries with state in Spark's checkpoint.

Rule 1: each view that sinks take is a query with a checkpoint and cursors of its own. A batch is
the span that Spark logged before it began; after a crash it is repeated, and sinks that have it
skip it.

Rule 2: state and sinks must agree. If a sink has rows and the checkpoint is missing, or the other
way round, nothing is carried: rows in the state could not be distinguished from rows that are not.

Rule 3: a stop waits for the running batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Lock
from time import monotonic

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millrace import limits
from millrace.errors import Invalid, MillraceError, Refused
from millrace.pipeline.declaration import SOURCE, Pipeline, Source
from millrace.pipeline.runner import Progress, SinkProgress, Tell
from millrace.pipeline.sink_session import Brought, SinkSession, Stopped
from millrace.pipeline.source import rows_between
from millrace.pipeline.sparked import Sparked, pin_seconds, said
from millrace.pipeline.staging import stage_frame
from millrace.sinks.base import Held
from millrace.sinks.boundary import Boundary, Place, Span
from millrace.spark.offset import Offset
from millrace.spark.session import is_connect

_NOTHING = "-"
"""Spark's log entry for a source without offsets."""


class StreamRunner:
    """One run of a stateful pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        outlets: Sequence[SinkSession],
        sparked: Sparked,
        *,
        stop: Event,
        tell: Tell,
    ) -> None:
        view, node = next(iter(sparked.states.items()))
        if is_connect(sparked.spark):
            raise Invalid(
                f"step {view!r} keeps a state ({node}), and Spark Connect would carry its batches "
                "in the server, out of sight of this run. Run it with a driver of its own: name "
                "spark.master in the table [spark], not spark.remote",
                field="spark",
            )
        if not pipeline.run.checkpoint:
            raise Invalid(
                f"step {view!r} keeps a state ({node}): say where Spark's checkpoint is, by "
                'checkpoint = "…" in the table [run]',
                field="checkpoint",
            )
        self._pipeline = pipeline
        self._outlets = outlets
        self._sparked = sparked
        self._stop = stop
        self._tell = tell
        self._busy = Lock()
        self._ending = Event()
        self._error: BaseException | None = None

    def run(self, *, once: bool) -> None:
        """Run the queries until all rows are carried (`once`), or a stop is requested; see
        `Runner.run`.

        Raises:
            Refused: the checkpoint and the sinks do not agree.
        """
        for outlet in self._outlets:
            outlet.open(self._sparked.schema(outlet.declared.rows))
            self._judge(outlet)
            outlet.clean()
        queries: list[StreamingQuery] = []
        try:
            with said():
                for view in dict.fromkeys(outlet.declared.rows for outlet in self._outlets):
                    queries.append(self._start(view, once=once))
            self._watch(queries)
        finally:
            self._ending.set()
            with self._busy:
                # The running batch has finished, and no other one begins.
                pass
            for query in queries:
                query.stop()

    def _judge(self, outlet: SinkSession) -> None:
        if not outlet.held.fence:
            # The sink stores no boundary that could be compared with a state.
            return
        folder = self._checkpoint(outlet.declared.rows)
        is_begun = any((folder / "commits").glob("[0-9]*"))
        if outlet.boundary is not None and not any((folder / "offsets").glob("[0-9]*")):
            raise Refused(
                f"sink {outlet.name!r} has rows, and Spark's checkpoint {folder} is gone, which "
                "the steps keep their state in. Restore it, or rebuild: empty the sink, or name "
                "another one, and run again",
                field="checkpoint",
            )
        if outlet.boundary is None and is_begun:
            raise Refused(
                f"sink {outlet.name!r} has no rows, and Spark's checkpoint {folder} is not new: "
                "rows that were read before would not come again. Delete the checkpoint to rebuild",
                field="checkpoint",
            )

    def _checkpoint(self, view: str) -> Path:
        return self._pipeline.at(self._pipeline.run.checkpoint) / view.replace(":", "-")

    def _start(self, view: str, *, once: bool) -> StreamingQuery:
        pipeline = self._pipeline
        sources = {SOURCE: pipeline.source, **pipeline.sources}
        frames = self._sparked.frames.make(
            {name: self._load(view, name, source) for name, source in sources.items()}
        )
        outlets = [outlet for outlet in self._outlets if outlet.declared.rows == view]
        is_counted = self._sparked.states.get(view, "").startswith("Aggregate")
        # A sink without fencing stores no rows durably; it shows updates as they arrive.
        is_update = is_counted and all(one.sink.key or not one.held.fence for one in outlets)
        writer = (
            frames[view]
            .writeStream.queryName(f"{pipeline.name}.{view}".replace(":", "-"))
            .outputMode("update" if is_update else "append")
            .option("checkpointLocation", str(self._checkpoint(view)))
            .foreachBatch(self._batch(view, outlets))
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(pipeline.run.every, 0.0)} seconds").start()

    def _load(self, view: str, name: str, source: Source) -> DataFrame:
        spark, options = self._sparked.spark, self._sparked.options(name, source)
        if name != SOURCE and source.view == "latest":
            options["pinSeconds"] = str(pin_seconds(self._pipeline.run.every))
            return spark.read.format("millrace").options(**options).load()
        options["cursor"] = f"{self._pipeline.name}.{view}.{name}".replace(":", "-")
        if source.limit.rows:
            options["maxOffsetsPerTrigger"] = str(source.limit.rows)
        return spark.readStream.format("millrace").options(**options).load()

    def _batch(self, view: str, outlets: Sequence[SinkSession]) -> Callable[[DataFrame, int], None]:
        def carry(frame: DataFrame, number: int) -> None:
            with self._busy:
                try:
                    if self._stop.is_set() or self._ending.is_set():
                        raise Stopped
                    self._carry(view, outlets, frame, number)
                except (MillraceError, Stopped) as error:
                    self._error = self._error or error
                    raise

        return carry

    def _carry(
        self, view: str, outlets: Sequence[SinkSession], frame: DataFrame, number: int
    ) -> None:
        began = monotonic()
        span = read_span(self._checkpoint(view), number)
        kept = frame.persist()
        try:
            # The state advances only if the rows are computed, even if every sink already has them.
            with said():
                kept.count()
            for outlet in outlets:
                outlet.apply(span, partial(self._stage, view, outlet, span, kept))
        finally:
            kept.unpersist()
        self._tell(
            Progress(
                self._pipeline.name,
                rows_between(span.after, span.upto),
                rows_between(span.after, span.upto),
                monotonic() - began,
                0,
                tuple(SinkProgress(one.name, one.rows, one.boundary) for one in self._outlets),
            )
        )

    def _stage(
        self, view: str, outlet: SinkSession, span: Span, frame: DataFrame, held: Held
    ) -> Brought:
        with said():
            schema, null_key = self._sparked.schema(view), outlet.declared.null_key
            return stage_frame(frame, outlet.sink, held, span, schema, null_key)

    def _watch(self, queries: Sequence[StreamingQuery]) -> None:
        """Wait until all queries have ended, one has failed, or a stop is requested."""
        while not self._stop.is_set():
            active = [query for query in queries if query.isActive]
            for query in queries:
                with self._failing():
                    query.awaitTermination(limits.PIPELINE_WATCH_SECONDS)
            if not active:
                return

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            with said():
                yield
        except Invalid:
            # Spark wraps the exception that was raised in a batch.
            if isinstance(self._error, Stopped):
                return
            if self._error is not None:
                raise self._error from None
            raise


def read_span(checkpoint: Path, number: int) -> Span:
    """Return the span of a batch from Spark's offset log."""
    now = _offsets(checkpoint, number)
    before = _offsets(checkpoint, number - 1) if number else {}
    afters: list[Place] = []
    for cursor, offset in now.items():
        old = before.get(cursor)
        seqs = old.seqs if old is not None else offset.after
        afters.append(msgspec.structs.replace(offset.place(), seqs=seqs))
    return Span(Boundary(tuple(afters)), Boundary(tuple(one.place() for one in now.values())))


def _offsets(checkpoint: Path, number: int) -> Mapping[str, Offset]:
    """Return the offset of each source by its cursor, in a fixed order."""
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()[2:]
    if _NOTHING in lines:
        raise Refused(
            "one of the queues has never had a row; publish to it first, or leave it out",
            field="sources",
        )
    found = [Offset.of(line) for line in lines]
    return {offset.cursor: offset for offset in sorted(found, key=lambda one: one.cursor)}
