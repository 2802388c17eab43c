"""What a run would do, before it does it."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import msgspec

from millrace.errors import Refused
from millrace.pipeline.change import OnChange
from millrace.pipeline.declaration import Pipeline
from millrace.pipeline.looking import SinkStatus, Status, known, status_of
from millrace.pipeline.record import Book
from millrace.pipeline.running import Setting, prepared, source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class View(msgspec.Struct, frozen=True):
    """A view and its columns."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and type."""


class Plan(msgspec.Struct, frozen=True):
    """What would run."""

    pipeline: str
    queue: str
    is_stateful: bool
    views: tuple[View, ...]
    sinks: tuple[SinkStatus, ...]
    changed: str = ""
    """Why it would not run as it is: what was changed since."""


def plan_pipeline(pipeline: Pipeline, setting: Setting, spark: SparkSession | None = None) -> Plan:
    """What a run would do; sinks are asked whether they take such rows, and nothing is changed.

    Raises:
        Invalid: a step or a sink cannot be so.
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
            View(name, tuple((field.name, str(field.type)) for field in ready.maker.schema(name)))
            for name in ready.maker.views()
        ]
        for outlet in ready.outlets:
            outlet.sink.check(ready.maker.schema(outlet.declared.rows))
        record = ready.record()
        status = status_of(ready.millrace, record)
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
    """How far a pipeline is, by what its last run has written down.

    Raises:
        Refused: it has never run.
    """
    with source_of(pipeline, setting) as (m, _):
        return status_of(m, known(Book(m).find(pipeline.name), pipeline.name))
