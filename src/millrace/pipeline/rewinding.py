"""Rewinds sinks: rows after a given place are carried to them again.

The boundary of a sink never decreases. Instead, the sink gets a flow of a new generation, which
begins at the place, and the next run fences a run that still fills the old one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from millrace import sync
from millrace.client.queue import engine_and_shards
from millrace.errors import Invalid
from millrace.pipeline.declaration import Pipeline
from millrace.pipeline.lag import require_record
from millrace.pipeline.record import Book, Record, SinkRecord
from millrace.pipeline.running import Setting, source_of
from millrace.pipeline.source import Feed, at_seqs
from millrace.pipeline.variable import filled
from millrace.sinks.boundary import Boundary, begins
from millrace.sinks.kinds import make_sink

Place = str | int | datetime
"""beginning, end, the first seq that is carried again, or a time."""


def rewind_pipeline(
    pipeline: Pipeline, setting: Setting, to: Place, sinks: Sequence[str] = ()
) -> Record:
    """Restart sinks, or all declared ones, at a place; nothing is carried yet.

    Sinks with a key get rows again that they have, which changes nothing, or repairs them. Sinks
    that only append will have them twice; so dead-letter queues are rewound only if they are named
    (STEP.dead).

    Raises:
        Refused: the pipeline has never run.
        Invalid: the sink or place does not exist.
    """
    with source_of(pipeline, setting) as (m, _):
        book = Book(m)
        record = require_record(book.find(pipeline.name), pipeline.name)
        names = [sink.name for sink in record.sinks]
        for name in sinks:
            if name not in names:
                raise Invalid(
                    f"there is no sink {name!r}; there are {', '.join(names)}", field="sink"
                )
        queue = m.find(pipeline.source.queue, space=pipeline.source.space)
        place = _place(queue, Feed(queue, pipeline.name).end(), to)
        meant = sinks or [declared.name for declared in pipeline.sinks]
        moved = tuple(
            _begun_anew(sink, place) if sink.name in meant else sink for sink in record.sinks
        )
        return book.write(
            msgspec.structs.replace(
                record, state="rewound", run=secrets.token_hex(4), message="", sinks=moved
            )
        )


def adding_sinks(
    pipeline: Pipeline, environ: Mapping[str, str], sinks: Sequence[str] = ()
) -> list[str]:
    """Return the names of these sinks, or of all declared ones, that only append rows."""
    declared = {sink.name: sink for sink in pipeline.sinks}
    found: list[str] = []
    for name in sinks or declared:
        sink = declared.get(name)
        # A sink that is not declared is a dead-letter queue.
        if sink is None or not make_sink(sink.kind, filled(sink.settings, environ)).key:
            found.append(name)
    return found


def _begun_anew(sink: SinkRecord, place: Boundary) -> SinkRecord:
    return msgspec.structs.replace(
        sink, generation=sink.generation + 1, start=place, boundary=place, brought=0
    )


def _place(queue: sync.Queue, end: Boundary, to: Place) -> Boundary:
    [there] = end.places
    if to == "end":
        return end
    if to == "beginning":
        return begins(end)
    if isinstance(to, int):
        if len(there.seqs) > 1:
            raise Invalid(
                f"a seq says nothing about the {len(there.seqs)} shards of the queue; give "
                "beginning, end or a time",
                field="to",
            )
        if not 1 <= to <= there.seqs[0] + 1:
            raise Invalid(
                f"seq {to} is not within 1 and {there.seqs[0] + 1}",
                field="to",
                limit=there.seqs[0] + 1,
            )
        return at_seqs(end, [to - 1])
    if isinstance(to, str):
        raise Invalid(f"{to!r} is no place; give beginning, end, a seq or a time", field="to")
    return at_seqs(end, _at_time(queue, to))


def _at_time(queue: sync.Queue, moment: datetime) -> list[int]:
    async def ask() -> list[int]:
        engine, shards = engine_and_shards(queue._twin)
        ms = max(round(moment.timestamp() * 1000), 0)
        return [await engine.seq_at(shard, ms) - 1 for shard in shards.ids]

    return queue._portal.run(ask)
