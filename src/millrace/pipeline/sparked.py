"""Views of a pipeline made by Spark, with lookup tables; detection of stateful steps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from millrace import limits, sync
from millrace.client.snapshot_token import write_snapshot_token
from millrace.errors import Invalid, MillraceError, Retry
from millrace.pipeline.declaration import SOURCE, Pipeline, Source
from millrace.pipeline.frames import Frames, arrow_schema, expectation_of
from millrace.pipeline.lineage import BODY
from millrace.pipeline.opening import Where
from millrace.pipeline.sink_session import Brought, SinkSession
from millrace.pipeline.source import COLUMNS, Lost, Stretch
from millrace.pipeline.staging import read_frame, stage_frame
from millrace.sinks.base import Held
from millrace.sinks.boundary import Span
from millrace.spark.notices import Say
from millrace.spark.options import Address
from millrace.spark.raw_options import HOME
from millrace.spark.session import borrowed, is_connect

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame as Far


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


# --- Detects stateful steps: views that depend on more than the rows of one span -----------------
#
# Spark's analyzed plan is examined as text for the names of its nodes, which are the same in Spark
# Connect and in a local session.
# Rule: a view that is known to need more rows than one span is not run span by span.

_STATEFUL = (
    "Aggregate",
    "Window",
    "Deduplicate",
    "Distinct",
    "Sort",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Tail",
    "Sample",
    "FlatMapGroups",
    "FlatMapCoGroups",
    "CoGroup",
    "MapGroups",
    "ArrowWindow",
    "ArrowAggregate",
    "TransformWithState",
    "Except",
    "Intersect",
    "EventTimeWatermark",
    "Pivot",
)
"""Plan nodes whose result for all rows differs from the combined results of the parts."""

_NARROW = ("Project", "Filter", "SubqueryAlias", "View", "LocalRelation", "LogicalRDD")
"""Plan nodes that make at most one row of each row."""

_NODE = re.compile(r"^([ :+|-]*)'?([A-Za-z]+)(.*)$")


class PlanNode(NamedTuple):
    """A line of a plan."""

    depth: int
    name: str
    rest: str


def state_in(text: str) -> str:
    """Return the first node of an analyzed plan that needs state, or an empty text."""
    nodes = _nodes(text)
    for at, node in enumerate(nodes):
        if node.name.startswith(_STATEFUL):
            return node.name
        if node.name.endswith("Join") and _sides(nodes, at) > 1:
            return f"{node.name} of {SOURCE} with itself"
    return ""


def _sides(nodes: list[PlanNode], at: int) -> int:
    """Return the number of sides of a join that read the source."""
    found, side, has = 0, None, False
    for node in nodes[at + 1 :]:
        if node.depth <= nodes[at].depth:
            break
        if side is None or node.depth <= side:
            found += has
            side, has = node.depth, False
        has = has or (node.name == "SubqueryAlias" and node.rest.split()[:1] == [SOURCE])
    return found + has


def may_widen(text: str) -> bool:
    """Return True if a view of this plan may have more rows than its input."""
    return any(node.name not in _NARROW for node in _nodes(text))


def _nodes(text: str) -> list[PlanNode]:
    return [
        PlanNode(len(match[1]), match[2], match[3])
        for match in map(_NODE.match, text.splitlines())
        if match is not None
    ]


def analyzed(frame: DataFrame) -> str:
    """Return Spark's analyzed plan of a view.

    `explain` would print it to the process's standard output, which other pipelines of the process
    use at the same time.
    """
    if not is_connect(frame.sparkSession):
        return str(frame._jdf.queryExecution().analyzed().toString())
    text = cast("Far", frame)._explain_string(extended=True)
    _, _, after = text.partition("== Analyzed Logical Plan ==\n")
    # The first line of the section lists the columns.
    _, _, plan = after.partition("\n")
    return plan.partition("\n== ")[0]


# --- Lookup tables: further sources of a pipeline with the latest row of each key ----------------
#
# Rule 1: the tables stay unchanged while a span is processed; then their pins are removed. Spark
# does not report when it has finished reading, so that the pin is held here and not in the reader.


class Lookups:
    """The lookup tables of a run, each pinned for the newest span."""

    def __init__(self) -> None:
        self._pinned: dict[str, sync.Snapshot] = {}

    def now(self, name: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return the Spark options that read the table as of now, and remove the pin of the
        previous span.
        """
        home = {option: options[option] for option in HOME if option in options}
        before = self._pinned.pop(name, None)
        if before is not None:
            # If the server does not respond, the pin expires.
            with suppress(MillraceError):
                before.unpin()
        queue = Address.told(home).reach()
        found = queue.snapshot(seconds=limits.PIPELINE_PIN_SECONDS).__enter__()
        self._pinned[name] = found
        return {**options, "endingSnapshot": write_snapshot_token(found._twin)}


def pin_seconds(every: float) -> float:
    """Return the seconds for which Spark's own queries pin a lookup table, of which each batch
    reads the latest state.

    The value is limited so that the pins in force at a time leave room for those of others.
    """
    return min(max(every * limits.LOOKUP_PINS, limits.LOOKUP_PIN_SECONDS_MIN), 3600.0)
