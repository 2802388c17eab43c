"""Copies a queue into a single sink, without a declaration file and without Spark.

It runs as a pipeline without steps and with one sink, by the same rules: it resumes at the boundary
that the sink stores, the cursor retains rows, and a span is pinned until the sink has it.
"""

from __future__ import annotations

from threading import Event

import msgspec

from millrace import limits
from millrace.pipeline.declaration import DeclaredSink, Limit, Pipeline, Source
from millrace.pipeline.making import Plain
from millrace.pipeline.opening import Where, opened
from millrace.pipeline.record import SinkRecord
from millrace.pipeline.runner import Runner, Tell
from millrace.pipeline.sink_session import Patience, SinkSession
from millrace.pipeline.source import Feed
from millrace.sinks.base import Sink
from millrace.spark.notices import Say, print_notice


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """The source queue, cursor and sink of a copy."""

    name: str
    """The sink stores its boundary under name/sink."""
    cursor: str
    """Name of the queue's cursor. Two sinks must not share one: it retains rows until one sink has
    them.
    """
    space: str
    queue: str
    sink: str
    """Name of the sink in messages and in the flow."""
    rows: int = limits.CARRY_ROWS_MAX
    """Maximum number of seqs per span; a larger snapshot is split."""
    patience: float = limits.PIPELINE_PATIENCE_SECONDS
    """Retry timeout in seconds for an unresponsive sink or server."""


def carry(
    carried: Carried,
    where: Where,
    into: Sink,
    *,
    once: bool,
    stop: Event,
    tell: Tell,
    say: Say = print_notice,
) -> None:
    """Carry rows until `stop` is set, or with `once`, until no rows are left.

    A folder that no other process has open is shared for the duration of the run, with publishers
    and with a sink that is a queue of the same folder.

    Raises:
        Refused, Stale, Retry: as `Runner.run`.
    """
    declared = DeclaredSink(name=carried.sink, kind=carried.sink)
    source = Source(queue=carried.queue, space=carried.space, limit=Limit(carried.rows))
    pipeline = Pipeline(name=carried.name, source=source, sinks=(declared,))
    patience = Patience(carried.patience, stop, say)
    with opened(where, share=True) as m:
        queue = m.find(carried.queue, space=carried.space)
        record = SinkRecord(name=carried.sink, kind=carried.sink)
        outlet = SinkSession(declared, into, carried.name, record, patience)
        try:
            Runner(
                pipeline,
                Feed(queue, carried.cursor),
                [outlet],
                Plain(pipeline, {}),
                stop=stop,
                patience=patience,
                tell=tell,
            ).run(once=once)
        finally:
            outlet.close()
