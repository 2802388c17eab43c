"""Views of a pipeline made by Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from millrace import limits
from millrace.errors import Invalid, Retry
from millrace.pipeline.declaration import SOURCE, Pipeline, Source
from millrace.pipeline.frames import Frames, arrow_schema, expectation_of
from millrace.pipeline.lineage import BODY
from millrace.pipeline.lookup import Lookups
from millrace.pipeline.opening import Where
from millrace.pipeline.rows import COLUMNS
from millrace.pipeline.sink_session import Brought, SinkSession
from millrace.pipeline.source import Lost, Stretch
from millrace.pipeline.staging import read_frame, stage_frame
from millrace.pipeline.stateful import analyzed, may_widen, state_in
from millrace.sinks.base import Held
from millrace.sinks.boundary import Span
from millrace.spark.notices import Say
from millrace.spark.session import borrowed


@contextmanager
def session(pipeline: Pipeline, say: Say) -> Iterator[SparkSession]:
    """Start a session with the settings of the declaration, until the context ends; an existing
    Spark of this process is used and keeps running.
    """
    with borrowed(f"millrace {pipeline.name}", pipeline.spark, say) as spark:
        yield spark


class Sparked:
    """The views of a pipeline with steps, made by Spark."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        wheres: Mapping[str, Where],
        keys: Mapping[str, Sequence[str]],
    ) -> None:
        """The session must be exclusive: views of other pipelines have the same names. `keys` has
        the key columns of each sink whose rows with a null key become dead letters.

        Raises:
            Invalid: Spark refuses a step; or dead letters are declared, and the messages of their
                rows cannot be determined.
        """
        self._spark = spark
        self._pipeline = pipeline
        self._wheres = wheres
        """Location of each source, by the name of its view."""
        self._frames = Frames(self._spark, pipeline, keys)
        self._has_letters = bool(keys) or any(step.dead_letter for step in pipeline.steps)
        self._lookups = Lookups()
        self.is_parsing = bool(pipeline.source.schema)
        """See `Maker.is_parsing`."""
        sources = {SOURCE: pipeline.source, **pipeline.sources}
        with said():
            views = self._frames.make(
                {name: self._empty(name, source) for name, source in sources.items()}
            )
            self._schemas = {name: arrow_schema(frame) for name, frame in views.items()}
            plans = {name: analyzed(frame) for name, frame in views.items()}
        self._wider = {name for name, plan in plans.items() if may_widen(plan)}
        """Views that may have more rows than the source."""
        states = {name: state_in(plan) for name, plan in plans.items()}
        self.states = {name: state for name, state in states.items() if state}
        """Stateful views, with the plan node that needs the state."""
        for name, source in pipeline.sources.items():
            if source.view != "latest":
                self.states[name] = f"a second stream, {name}"

    @property
    def is_stateful(self) -> bool:
        """See `Maker.is_stateful`."""
        return bool(self.states)

    @property
    def frames(self) -> Frames:
        """The views of the steps."""
        return self._frames

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        return self._spark

    def views(self) -> Sequence[str]:
        """See `Maker.views`."""
        return list(self._schemas)

    def options(self, name: str, source: Source) -> dict[str, str]:
        """Return the options with which Spark reads a source."""
        found = source_options(source, self._wheres[name])
        if name == SOURCE and source.schema and self._has_letters:
            found["body"] = BODY
        return found

    def _empty(self, name: str, source: Source) -> DataFrame:
        """Return an empty frame with the columns of a source."""
        if not source.schema:
            return self._frame(COLUMNS.empty_table())
        reading = self._spark.read.format("millrace").options(**self.options(name, source))
        return self._spark.createDataFrame([], reading.load().schema)

    def _frame(self, table: pa.Table) -> DataFrame:
        if not table.num_rows:
            # Spark Connect does not infer columns from a table without rows.
            return self._spark.createDataFrame([], from_arrow_schema(table.schema))
        return self._spark.createDataFrame(table)

    def schema(self, view: str) -> pa.Schema:
        """See `Maker.schema`."""
        return self._schemas[view]

    def here(self, table: pa.Table, views: Sequence[str]) -> Mapping[str, pa.Table | None]:
        """See `Maker.here`."""
        with said():
            frames = self._frames.make({SOURCE: self._frame(table), **self._others()})
            return {
                view: table if view == SOURCE else self._few(view, frames[view])
                for view in dict.fromkeys(views)
            }

    def _few(self, view: str, frame: DataFrame) -> pa.Table | None:
        """Return the rows of a view, or None if there are too many."""
        if view in self._wider:
            frame = frame.limit(limits.PIPELINE_SMALL_ROWS + 1)
        found = frame.toArrow()
        if found.num_rows > limits.PIPELINE_SMALL_ROWS:
            return None
        return found.cast(self._schemas[view])

    def _others(self) -> dict[str, DataFrame]:
        """Load the further sources as of now."""
        return {
            name: self._spark.read.format("millrace")
            .options(**self._lookups.now(name, self.options(name, source)))
            .load()
            for name, source in self._pipeline.sources.items()
        }

    def stage(
        self, stretch: Stretch, span: Span, view: str, outlet: SinkSession, held: Held
    ) -> Brought:
        """See `Maker.stage`: executors read, transform and stage; the driver only gets their
        results.
        """
        with said():
            frame = self._over(stretch, span)[view]
            schema, null_key = self._schemas[view], outlet.declared.null_key
            return stage_frame(frame, outlet.sink, held, span, schema, null_key)

    def _over(self, stretch: Stretch, span: Span) -> dict[str, DataFrame]:
        """Return the views over rows that executors read."""
        [after] = span.after.places
        firsts = {str(shard): seq + 1 for shard, seq in enumerate(after.seqs)}
        reading = self._spark.read.format("millrace").options(
            **self.options(SOURCE, self._pipeline.source),
            startingOffsets=json.dumps(firsts),
            endingSnapshot=stretch.ticket(span),
            minPartitions=self._spark.conf.get("spark.sql.shuffle.partitions") or "1",
        )
        return self._frames.make({SOURCE: reading.load(), **self._others()})

    def batches(self, stretch: Stretch, view: str) -> Iterator[pa.RecordBatch]:
        """See `Maker.batches`: rows are fetched to the driver a few at a time."""
        schema = self._schemas[view]
        span = stretch.whole()
        small = None if self.is_parsing else stretch.small(span)
        few = None if small is None else self.here(small, [view])[view]
        if few is not None:
            yield from few.to_batches()
            return
        with said():
            for batch in read_frame(self._over(stretch, span)[view]):
                yield batch.cast(schema)


def source_options(source: Source, where: Where) -> dict[str, str]:
    """Return the options of Spark's reader for a queue at this location."""
    found = {"queue": source.queue, "space": source.space, "view": source.view} | where.options()
    if source.schema:
        found |= {"schema": source.schema, "format": source.format}
    return found


@contextmanager
def said(what: str = "a step", field: str = "steps") -> Iterator[None]:
    """Translate errors of Spark into Millrace errors where their cause is known.

    Raises:
        Refused: a row breaks a condition.
        Retry: the server was unavailable; or more of Spark's processes have died than it tolerates.
        Lost: the rows are no longer pinned.
        Invalid: any other error, with Spark's text.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        broken = expectation_of(error)
        if broken is not None:
            raise broken from error
        code, text = told_by(str(error))
        if code == "SnapshotExpired":
            raise Lost(text) from error
        if code in ("Closed", "Retry", "Full"):
            raise Retry(f"the queue does not answer Spark: {text}") from error
        if any(mark in str(error) for mark in _DIED):
            raise Retry(f"processes of Spark have died: {text}") from error
        named = vars(error).get("__notes__") or [what]
        raise Invalid(f"Spark refuses {named[0]}: {text}", field=field) from error


_DIED = (
    "Python worker exited unexpectedly",
    "pyspark.daemon",
    "millrace.spark.daemon",
    "PythonWorkerFactory",
    "ExecutorLostFailure",
)
"""Marks of Spark errors after the loss of a process, or the failure to start one."""


_TOLD = re.compile(r"millrace\.errors\.(\w+): (.+?)(?:\s*SQLSTATE: \w+)?$", re.MULTILINE)

_CAUSE = re.compile(r"^(?::|Caused by:) (?:[\w.$]+: )?(.*\S)\s*$(?=\n\tat |\n\n)", re.MULTILINE)
"""The text that Java prints before each stack trace."""

_AWAITED = "Exception thrown in awaitResult:"

_PLAN = re.compile(r";\n(?=['+:\w])")
"""The place at which Spark begins to print the query plan."""


def told_by(text: str) -> tuple[str, str]:
    """Return the code and text of the Millrace error inside an error of Spark; otherwise "" and
    Spark's text.

    An exception of a Python process is printed at the end of its traceback, which is removed here.
    """
    found = _TOLD.findall(text)
    if found:
        name, message = found[-1]
        return name, message
    causes = [cause for cause in _CAUSE.findall(text) if cause != _AWAITED]
    if causes:
        return "", causes[0]
    return "", _PLAN.split(text.strip().partition("\n\nJVM stacktrace")[0])[0]
