"""A whole pipeline, put together and run: queues opened, sinks made, Spark started if needed."""

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
from millrace.pipeline.declaration import SOURCE, DeclaredSink, Pipeline
from millrace.pipeline.feed import Feed
from millrace.pipeline.making import Maker, Plain
from millrace.pipeline.opening import Where, opened, where_of
from millrace.pipeline.outlet import Outlet, Patience, Stopped
from millrace.pipeline.record import Book, Record, State, begun
from millrace.pipeline.runner import Progress, Runner, Tell
from millrace.pipeline.showing import shown
from millrace.pipeline.unseen import hidden, unseen
from millrace.pipeline.variable import ProcessEnvironment, filled
from millrace.sinks.base import Sink
from millrace.sinks.kinds import make_sink
from millrace.spark.aloud import Say, aloud

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.pipeline.streaming import StreamRunner


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pipeline runs."""

    where: Where = Where()
    """For sources that do not say it themselves."""
    environ: Mapping[str, str] = msgspec.field(default_factory=ProcessEnvironment)
    """The values of `$NAME` in settings; by default the environment of this process."""
    millrace: sync.Millrace | None = None
    """Opened by the caller, for sources that do not say where they are. Where there are steps,
    `where` says the same for Spark's processes; a folder has to be shared with them."""
    say: Say = aloud
    """Is told what is waited for."""


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
    """Run a pipeline until `stop` is set, or with `once`, until all that is there was carried.

    Raises:
        Refused, Stale, Retry: as `Runner.run`; also where the declaration was changed since it
            last ran, and `on_change` does not say what to do.
    """
    stop = stop or Event()
    with (
        suppress(Stopped),
        prepared(pipeline, setting, on_change=on_change, stop=stop, spark=spark) as ready,
    ):
        told = Told(ready, tell, setting.environ)
        with told.until_end():
            ready.runner(stop, told.progress).run(once=once)


class Ready:
    """A pipeline that is put together."""

    def __init__(
        self,
        pipeline: Pipeline,
        millrace: sync.Millrace,
        queue: sync.Queue,
        outlets: Sequence[Outlet],
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
        """Who runs it."""
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
        """What is written down of it."""
        source = self.pipeline.source
        return Record(
            pipeline=self.pipeline.name,
            space=source.space,
            queue=source.queue,
            views=(*self.pipeline.sources, *(step.name for step in self.pipeline.steps)),
            sinks=tuple(outlet.record for outlet in self.outlets),
        )


class Told:
    """Writes down how a run goes on, now and then, and how it ends."""

    def __init__(self, ready: Ready, tell: Tell, environ: Mapping[str, str]) -> None:
        self._ready = ready
        self._hidden = partial(hidden, ready.pipeline, environ)
        self._tell = tell
        self._record = begun(ready.record())
        self._next = 0.0
        self._is_written = False
        self._is_told = False

    def progress(self, progress: Progress) -> None:
        """How far it is."""
        self._tell(progress)
        if monotonic() >= self._next or not self._is_told:
            self._is_told = True
            self._write("running")

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Write that it runs, and at the end that it does no longer, and why."""
        self._write("running")
        try:
            yield
        except MillraceError as error:
            # Once only, since it may be the book's own server that is away: what has happened
            # counts more than that it is written down.
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
                # Somebody has taken over: what they have written counts.
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
) -> Iterator[Ready]:
    """A pipeline with its queues open; sinks are made and not opened yet."""
    hide = partial(hidden, pipeline, setting.environ)
    patience = Patience(pipeline.run.patience, stop, lambda text: setting.say(hide(text)))
    with ExitStack() as stack:
        stack.enter_context(unseen(pipeline, setting.environ))
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
            Outlet(one.declared, make(one.declared), pipeline.name, one.record, patience)
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
        yield Ready(pipeline, m, queue, outlets, maker, patience)


@contextmanager
def source_of(pipeline: Pipeline, setting: Setting) -> Iterator[tuple[sync.Millrace, Where]]:
    """Where the source's queue is; a folder is shared with Spark's processes meanwhile."""
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
    """Those that are declared, and queues of dead letters."""
    return [*pipeline.sinks, *dead_letter_sinks(pipeline, where.settings())]


def sink_of(pipeline: Pipeline, setting: Setting, declared: DeclaredSink) -> Sink:
    """A sink that is declared; nothing is connected yet."""
    settings = filled(declared.settings, setting.environ)
    return make_sink(declared.kind, settings, pipeline.folder)


def needs_spark(pipeline: Pipeline) -> bool:
    """Whether rows are changed on their way."""
    return bool(pipeline.steps or pipeline.source.schema)


def _is_shared(pipeline: Pipeline) -> bool:
    """Whether others than the run work in the folder: Spark's processes, or the sinks of dead
    letters, which open it by themselves."""
    return needs_spark(pipeline) or any(sink.dead_letter for sink in pipeline.sinks)


@contextmanager
def started(pipeline: Pipeline, say: Say) -> Iterator[SparkSession]:
    """A session of Spark with the settings of the declaration.

    Raises:
        Invalid: Spark is not installed.
        NotFound: there is no Java.
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
    """What makes the views; `keys` has the key of each sink whose rows without one become dead
    letters."""
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
