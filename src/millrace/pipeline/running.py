"""Assembles and runs a pipeline: opens queues, makes sinks, and starts Spark if needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from millrace import limits, sync
from millrace.errors import Invalid, MillraceError
from millrace.pipeline.change import OnChange, judge_sinks
from millrace.pipeline.dead import dead_letter_sinks
from millrace.pipeline.declaration import SOURCE, DeclaredSink, Pipeline, redact, redacting_errors
from millrace.pipeline.making import Maker, Plain
from millrace.pipeline.opening import Where, opened, shown, where_of
from millrace.pipeline.record import Book, Record, State, begun
from millrace.pipeline.runner import Progress, Runner, Tell
from millrace.pipeline.sink_session import Patience, SinkSession, Stopped
from millrace.pipeline.source import Feed
from millrace.pipeline.variable import ProcessEnvironment, filled
from millrace.sinks.base import Sink
from millrace.sinks.kinds import make_sink
from millrace.spark.notices import Say, print_notice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.pipeline.streaming import StreamRunner


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of a pipeline: location, variables, and progress messages."""

    where: Where = Where()
    """The location of sources that do not name one."""
    environ: Mapping[str, str] = msgspec.field(default_factory=ProcessEnvironment)
    """The values of `$NAME` in settings; by default the environment of this process."""
    millrace: sync.Millrace | None = None
    """An open Millrace of the caller, for sources that do not name a location. If the pipeline has
    steps, `where` gives the same location to Spark's processes; a folder has to be shared with
    them.
    """
    say: Say = print_notice
    """Called with a message when the run waits for an unresponsive party."""


def run_pipeline(
    pipeline: Pipeline,
    setting: Setting,
    *,
    once: bool = False,
    on_change: OnChange | None = None,
    stop: Event | None = None,
    tell: Tell = lambda _: None,
    spark: SparkSession | None = None,
) -> None:
    """Run a pipeline until `stop` is set, or with `once`, until no rows are left.

    Raises:
        Refused, Stale, Retry: as `Runner.run`; also if the declaration was changed since the last
        run, and `on_change` is None.
    """
    stop = stop or Event()
    with (
        suppress(Stopped),
        prepared(pipeline, setting, on_change=on_change, stop=stop, spark=spark) as ready,
    ):
        told = RunRecorder(ready, tell, setting.environ)
        with told.until_end():
            ready.runner(stop, told.progress).run(once=once)


class PreparedPipeline:
    """An assembled pipeline, ready to run."""

    def __init__(
        self,
        pipeline: Pipeline,
        millrace: sync.Millrace,
        queue: sync.Queue,
        outlets: Sequence[SinkSession],
        maker: Maker,
        patience: Patience,
    ) -> None:
        self.pipeline = pipeline
        self.millrace = millrace
        self.book = Book(millrace)
        self.queue = queue
        self.outlets = outlets
        self.maker = maker
        self.patience = patience

    def runner(self, stop: Event, tell: Tell) -> Runner | StreamRunner:
        """Return the runner: Spark's streaming for stateful steps, otherwise span by span."""
        if self.maker.is_stateful:
            from millrace.pipeline.sparked import Sparked
            from millrace.pipeline.streaming import StreamRunner

            assert isinstance(self.maker, Sparked)
            return StreamRunner(self.pipeline, self.outlets, self.maker, stop=stop, tell=tell)
        return Runner(
            self.pipeline,
            Feed(self.queue, self.pipeline.name),
            self.outlets,
            self.maker,
            stop=stop,
            patience=self.patience,
            tell=tell,
        )

    def record(self) -> Record:
        """Return the record of the pipeline with its present boundaries."""
        source = self.pipeline.source
        return Record(
            pipeline=self.pipeline.name,
            space=source.space,
            queue=source.queue,
            views=(*self.pipeline.sources, *(step.name for step in self.pipeline.steps)),
            sinks=tuple(outlet.record for outlet in self.outlets),
        )


class RunRecorder:
    """Records the progress of a run at intervals, and its end."""

    def __init__(self, ready: PreparedPipeline, tell: Tell, environ: Mapping[str, str]) -> None:
        self._ready = ready
        self._hidden = partial(redact, ready.pipeline, environ)
        self._tell = tell
        self._record = begun(ready.record())
        self._next = 0.0
        self._is_written = False
        self._is_told = False

    def progress(self, progress: Progress) -> None:
        """Report progress, and record it if the interval has passed."""
        self._tell(progress)
        if monotonic() >= self._next or not self._is_told:
            self._is_told = True
            self._write("running")

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Record that the pipeline runs, and at the end that it has stopped or failed, and why."""
        self._write("running")
        try:
            yield
        except MillraceError as error:
            # One attempt only, since the record's own server may be unavailable: the error itself
            # is more important than its record.
            with suppress(MillraceError):
                self._write_now("failed", self._hidden(error.message))
            raise
        self._write("stopped")

    def _write(self, state: State, message: str = "") -> None:
        call = partial(self._write_now, state, message)
        self._ready.patience.insist("the book of pipelines", call)

    def _write_now(self, state: State, message: str) -> None:
        if self._is_written:
            now = self._ready.book.find(self._record.pipeline)
            if now is not None and now.run != self._record.run:
                # Another run has taken over: its record counts.
                return
        self._is_written = True
        sinks = self._ready.record().sinks
        self._record = self._ready.book.write(
            msgspec.structs.replace(self._record, state=state, message=message, sinks=sinks)
        )
        self._next = monotonic() + limits.PIPELINE_TELL_SECONDS


@contextmanager
def prepared(
    pipeline: Pipeline,
    setting: Setting,
    *,
    on_change: OnChange | None = None,
    stop: Event,
    spark: SparkSession | None = None,
) -> Iterator[PreparedPipeline]:
    """Assemble a pipeline and open its queues; sinks are made but not opened yet."""
    hide = partial(redact, pipeline, setting.environ)
    patience = Patience(pipeline.run.patience, stop, lambda text: setting.say(hide(text)))
    with ExitStack() as stack:
        stack.enter_context(redacting_errors(pipeline, setting.environ))
        m, where = stack.enter_context(source_of(pipeline, setting))
        queue = m.find(pipeline.source.queue, space=pipeline.source.space)
        make = partial(sink_of, pipeline, setting)
        record = Book(m).find(pipeline.name)
        judged = judge_sinks(
            pipeline,
            all_sinks(pipeline, where),
            record,
            on_change,
            lambda one: bool(make(one).key),
        )
        outlets = [
            SinkSession(one.declared, make(one.declared), pipeline.name, one.record, patience)
            for one in judged
        ]
        for outlet in outlets:
            stack.callback(outlet.close)
        wheres = {SOURCE: where}
        for name, source in pipeline.sources.items():
            found = where_of(pipeline, source, where, setting.environ)
            wheres[name] = stack.enter_context(shown(found))
        keys = {
            outlet.name: outlet.sink.key
            for outlet in outlets
            if outlet.declared.null_key == "dead_letter"
        }
        maker = stack.enter_context(maker_of(pipeline, wheres, keys, spark, setting.say))
        yield PreparedPipeline(pipeline, m, queue, outlets, maker, patience)


@contextmanager
def source_of(pipeline: Pipeline, setting: Setting) -> Iterator[tuple[sync.Millrace, Where]]:
    """Open the source's Millrace; a folder is shared with Spark's processes for that time."""
    source, m = pipeline.source, setting.millrace
    if m is not None and not source.url and not source.path:
        with shown(setting.where) as where:
            yield m, where
        return
    with (
        shown(where_of(pipeline, source, setting.where, setting.environ)) as where,
        opened(where, share=_is_shared(pipeline)) as found,
    ):
        yield found, where


def all_sinks(pipeline: Pipeline, where: Where) -> list[DeclaredSink]:
    """Return the declared sinks and the dead-letter queues."""
    return [*pipeline.sinks, *dead_letter_sinks(pipeline, where.settings())]


def sink_of(pipeline: Pipeline, setting: Setting, declared: DeclaredSink) -> Sink:
    """Make a declared sink, without connecting to it."""
    settings = filled(declared.settings, setting.environ)
    return make_sink(declared.kind, settings, pipeline.folder)


def needs_spark(pipeline: Pipeline) -> bool:
    """Return True if rows are transformed or parsed."""
    return bool(pipeline.steps or pipeline.source.schema)


def _is_shared(pipeline: Pipeline) -> bool:
    """Return True if other processes use the folder: Spark's processes, or dead-letter sinks, which
    open it themselves.
    """
    return needs_spark(pipeline) or any(sink.dead_letter for sink in pipeline.sinks)


@contextmanager
def started(pipeline: Pipeline, say: Say) -> Iterator[SparkSession]:
    """Start a Spark session with the settings of the declaration.

    Raises:
        Invalid: Spark is not installed.
        NotFound: Java is not installed.
    """
    with _needing_spark():
        from millrace.pipeline.sparked import session
    with session(pipeline, say) as spark:
        yield spark


@contextmanager
def _needing_spark() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise Invalid(
            f"this pipeline runs on Spark and needs {error.name}; install millrace[spark]",
            field="steps",
        ) from error


@contextmanager
def maker_of(
    pipeline: Pipeline,
    wheres: Mapping[str, Where],
    keys: Mapping[str, Sequence[str]],
    spark: SparkSession | None,
    say: Say,
) -> Iterator[Maker]:
    """Make the maker of the views; `keys` has the key columns of each sink whose rows with a null
    key become dead letters.
    """
    if not needs_spark(pipeline):
        yield Plain(pipeline, keys)
        return
    with _needing_spark():
        from millrace.pipeline.sparked import Sparked
        from millrace.spark.session import apart

    with ExitStack() as stack:
        if spark is None:
            spark = stack.enter_context(started(pipeline, say))
        yield Sparked(stack.enter_context(apart(spark)), pipeline, wheres, keys)
