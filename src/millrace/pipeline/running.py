"""A whole pipeline, put together and run: queues opened, sinks made, Spark started if needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import TYPE_CHECKING

import msgspec

from millrace import sync
from millrace.pipeline.declaration import DeclaredSink, Pipeline
from millrace.pipeline.feed import Feed
from millrace.pipeline.making import Maker, Plain
from millrace.pipeline.opening import Where, opened, where_of
from millrace.pipeline.outlet import Outlet, Patience
from millrace.pipeline.runner import Runner, Tell
from millrace.pipeline.variable import filled
from millrace.sinks.kinds import make_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pipeline runs."""

    where: Where = Where()
    """For sources that do not say it themselves."""
    environ: Mapping[str, str] = {}
    millrace: sync.Millrace | None = None
    """Opened by the caller, for sources that do not say where they are. Where there are steps,
    `where` says the same for Spark's processes; a folder has to be shared with them."""


def run_pipeline(
    pipeline: Pipeline,
    setting: Setting,
    *,
    once: bool = False,
    stop: Event | None = None,
    tell: Tell = lambda _: None,
    spark: SparkSession | None = None,
) -> None:
    """Run a pipeline until `stop` is set, or with `once`, until all that is there was carried.

    Raises:
        Refused, Stale, Retry: as `Runner.run`.
    """
    stop = stop or Event()
    patience = Patience(pipeline.run.patience, stop)
    with ExitStack() as stack:
        m, where = stack.enter_context(source_of(pipeline, setting))
        queue = m.find(pipeline.source.queue, space=pipeline.source.space)
        maker = stack.enter_context(_maker(pipeline, where, spark))
        outlets = make_outlets(pipeline, setting, patience)
        for outlet in outlets:
            stack.callback(outlet.close)
        Runner(
            pipeline,
            Feed(queue, pipeline.name),
            outlets,
            maker,
            stop=stop,
            patience=patience,
            tell=tell,
        ).run(once=once)


@contextmanager
def source_of(pipeline: Pipeline, setting: Setting) -> Iterator[tuple[sync.Millrace, Where]]:
    """Where the source's queue is; a folder is shared with Spark's processes meanwhile."""
    source, m = pipeline.source, setting.millrace
    if m is not None and not source.url and not source.path:
        yield m, setting.where
        return
    where = where_of(pipeline, source, setting.where, setting.environ)
    with opened(where, share=bool(pipeline.steps)) as found:
        yield found, where


def make_outlets(pipeline: Pipeline, setting: Setting, patience: Patience) -> Sequence[Outlet]:
    """The sinks of a pipeline, and those of its dead letters; nothing is connected yet."""
    return [_outlet(pipeline, declared, setting, patience) for declared in pipeline.sinks]


def _outlet(
    pipeline: Pipeline, declared: DeclaredSink, setting: Setting, patience: Patience
) -> Outlet:
    sink = make_sink(declared.kind, filled(declared.settings, setting.environ))
    return Outlet(declared, sink, f"{pipeline.name}/{declared.name}", patience)


@contextmanager
def _maker(pipeline: Pipeline, where: Where, spark: SparkSession | None) -> Iterator[Maker]:
    if not pipeline.steps:
        yield Plain()
        return
    from millrace.pipeline.sparked import Sparked, session

    if spark is not None:
        yield Sparked(spark, pipeline, where)
        return
    with session(pipeline) as made:
        yield Sparked(made, pipeline, where)
