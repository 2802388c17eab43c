"""A queue straight into one sink, without a declaration and without Spark.

It is a pipeline of no steps and one sink, by the same rules: it goes on where the sink says that it
is, the cursor keeps rows from going, and a span is pinned until the sink has it.
"""

from __future__ import annotations

from threading import Event

import msgspec

from millrace import limits
from millrace.pipeline.declaration import DeclaredSink, Limit, Pipeline, Source
from millrace.pipeline.feed import Feed
from millrace.pipeline.making import Plain
from millrace.pipeline.opening import Where, opened
from millrace.pipeline.outlet import Outlet, Patience
from millrace.pipeline.record import SinkRecord
from millrace.pipeline.runner import Runner, Tell
from millrace.sinks.base import Sink
from millrace.spark.aloud import Say, aloud


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What is carried where."""

    name: str
    """The sink stores its boundary under name/sink."""
    cursor: str
    """Of the queue. Two sinks must not share one: it keeps rows until one sink has them."""
    space: str
    queue: str
    sink: str
    """What the sink is called in messages, and in the flow."""
    rows: int = limits.CARRY_ROWS_MAX
    """Seqs of one span; a larger snapshot is cut."""
    patience: float = limits.PIPELINE_PATIENCE_SECONDS
    """For so many seconds somebody who does not answer is asked again."""


def carry(
    carried: Carried,
    where: Where,
    into: Sink,
    *,
    once: bool,
    stop: Event,
    tell: Tell,
    say: Say = aloud,
) -> None:
    """Carry rows until `stop` is set, or with `once`, until all that is there was carried.

    A folder that nobody else has open is shared meanwhile: with those who publish, and with a sink
    that is a queue of the same folder.

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
        outlet = Outlet(declared, into, carried.name, record, patience)
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
