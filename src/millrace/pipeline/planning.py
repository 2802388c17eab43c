"""Dry runs and status: the plan of a run, and the lag of its sinks."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING

import msgspec

from millrace.errors import Refused
from millrace.pipeline.change import OnChange, same_sink
from millrace.pipeline.declaration import SOURCE, Pipeline, redacting_errors
from millrace.pipeline.lag import (
    SinkStatus,
    Status,
    asked,
    require_record,
    status_of,
)
from millrace.pipeline.opening import Where
from millrace.pipeline.record import Book, SinkRecord
from millrace.pipeline.running import (
    Setting,
    all_sinks,
    maker_of,
    needs_spark,
    prepared,
    sink_of,
    source_of,
    started,
)
from millrace.spark.session import REMOTE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ELSEWHERE = (REMOTE, "spark.master")
"""Spark settings that name the cluster or server."""


class PlannedView(msgspec.Struct, frozen=True):
    """A view and its columns."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and type of each column."""


class Plan(msgspec.Struct, frozen=True):
    """A dry run's result: views, sinks, and changes of the declaration."""

    pipeline: str
    queue: str
    is_stateful: bool
    views: tuple[PlannedView, ...]
    sinks: tuple[SinkStatus, ...]
    changed: str = ""
    """The reason why it would not run: a description of the changes since the last run."""


def has_letters(pipeline: Pipeline) -> bool:
    """Return True if rows that steps make may become dead letters."""
    names = [step.dead_letter for step in pipeline.steps]
    names += [sink.dead_letter for sink in pipeline.sinks]
    return any(names) and needs_spark(pipeline)


def check_letters(pipeline: Pipeline, setting: Setting, spark: SparkSession | None = None) -> None:
    """Check that the message of each dead letter can be determined.

    Spark analyzes the steps, and nothing else happens: no queue or sink is contacted, and Spark is
    a local one, regardless of the declaration.

    Raises:
        Invalid: lineage is lost; or Spark refuses a step, or cannot be imported.
        NotFound: Java is not installed.
    """
    conf = {name: value for name, value in pipeline.spark.items() if name not in _ELSEWHERE}
    here = msgspec.structs.replace(pipeline, spark={**conf, "spark.master": "local[1]"})
    with redacting_errors(pipeline, setting.environ):
        keys = {
            declared.name: sink_of(pipeline, setting, declared).key
            for declared in pipeline.sinks
            if declared.null_key == "dead_letter"
        }
        # The declaration gives the columns, so this location is never opened.
        nowhere = Where(path=pipeline.folder)
        wheres = dict.fromkeys((SOURCE, *pipeline.sources), nowhere)
        with ExitStack() as stack:
            if spark is None:
                spark = stack.enter_context(started(here, setting.say))
            stack.enter_context(maker_of(pipeline, wheres, keys, spark, setting.say))


def plan_pipeline(pipeline: Pipeline, setting: Setting, spark: SparkSession | None = None) -> Plan:
    """Return the plan of a run; sinks check the rows' columns, and nothing is changed.

    Raises:
        Invalid: a step or a sink is invalid.
    """
    changed = ""
    try:
        return _planned(pipeline, setting, spark, "")
    except Refused as error:
        if error.field != "on_change":
            raise
        changed = error.message
    return _planned(pipeline, setting, spark, changed)


def _planned(
    pipeline: Pipeline, setting: Setting, spark: SparkSession | None, changed: str
) -> Plan:
    on_change: OnChange | None = "resume" if changed else None
    with prepared(pipeline, setting, on_change=on_change, stop=Event(), spark=spark) as ready:
        views = [
            PlannedView(
                name, tuple((field.name, str(field.type)) for field in ready.maker.schema(name))
            )
            for name in ready.maker.views()
        ]
        for outlet in ready.outlets:
            outlet.sink.check(ready.maker.schema(outlet.declared.rows))
        found = (asked(one.sink, one.record, pipeline.name) for one in ready.outlets)
        told = {one.name: one for one in found if one is not None}
        status = status_of(ready.millrace, ready.record(), told)
        source = pipeline.source
        return Plan(
            pipeline.name,
            f"{source.space}/{source.queue}",
            ready.maker.is_stateful,
            tuple(views),
            status.sinks,
            changed,
        )


def pipeline_status(pipeline: Pipeline, setting: Setting) -> Status:
    """Return the status of a pipeline, with boundaries reported by its sinks.

    For a sink that cannot report its boundary, or whose declaration was changed, the record of the
    last run counts.

    Raises:
        Refused: it has never run.
    """
    source = pipeline.source
    with redacting_errors(pipeline, setting.environ), source_of(pipeline, setting) as (m, where):
        record = require_record(Book(m).find(pipeline.name), pipeline.name)
        told: dict[str, SinkRecord] = {}
        new: list[SinkRecord] = []
        for declared in all_sinks(pipeline, where):
            old = record.sink(declared.name)
            same = same_sink(pipeline, declared, old)
            if same is None:
                continue
            sink = sink_of(pipeline, setting, same.declared)
            if old is None:
                method = "upsert" if sink.key else "append"
                old = msgspec.structs.replace(same.record, method=method)
                new.append(old)
            found = asked(sink, old, pipeline.name)
            told |= {} if found is None else {found.name: found}
        before = f"{record.space}/{record.queue}"
        if before == f"{source.space}/{source.queue}":
            before = ""
        record = msgspec.structs.replace(
            record, space=source.space, queue=source.queue, sinks=(*record.sinks, *new)
        )
        return status_of(m, record, told, before)
