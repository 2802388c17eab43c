"""Status of pipelines: their sinks, and the lag of each.

Pipeline runs write their status to the keyed log `millrace/pipelines`, wherever they run; this
module only reads it.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from millrace.client.millrace import Millrace
from millrace.client.queue import engine_and_shards
from millrace.decoding import decode_json
from millrace.errors import NotFound
from millrace.server.rest.route_table import ROUTES
from millrace.server.web.route import Nothing, RequestContext

SPACE, QUEUE = "millrace", "pipelines"


class _Place(msgspec.Struct, frozen=True):
    shards: list[int]
    seqs: list[int]


class _Boundary(msgspec.Struct, frozen=True):
    places: list[_Place]


class _Sink(msgspec.Struct, frozen=True):
    name: str
    kind: str
    rows: str = ""
    method: str = ""
    boundary: _Boundary | None = None


class _Record(msgspec.Struct, frozen=True):
    """A status record that a run has written; unknown fields are ignored."""

    pipeline: str
    space: str
    queue: str
    views: list[str] = []
    state: str = ""
    message: str = ""
    host: str = ""
    started_ms: int = 0
    told_ms: int = 0
    sinks: list[_Sink] = []


class PipelineSink(msgspec.Struct, frozen=True):
    """A sink of a pipeline."""

    name: str
    kind: str
    view: str
    """The sink's input: the rows of the source or of a step."""
    method: str
    seqs: list[int] | None
    """The sink's progress in each shard; null if it has received nothing yet."""
    lag: int | None
    """Number of seqs published after the sink's progress; null if the queue was deleted or made
    anew.
    """


class PipelineOut(msgspec.Struct, frozen=True):
    """A pipeline as its last run has reported it."""

    name: str
    space: str
    queue: str
    views: list[str]
    """Further sources and steps, in order."""
    state: str
    message: str
    """The error, if the run has failed."""
    host: str
    started_ms: int
    told_ms: int
    sinks: list[PipelineSink]


class Pipelines(msgspec.Struct, frozen=True):
    """Pipelines by name, as far as the caller has any right on their source."""

    pipelines: list[PipelineOut]


@ROUTES.json("GET", "/v1/pipelines", "known", Nothing, Pipelines, tag="status")
async def list_pipelines(ask: RequestContext, _: Nothing) -> Pipelines:
    """List the pipelines with the progress and lag of each sink."""
    found = [
        await _shown(ask.desk.millrace, record)
        for record in await _records(ask.desk.millrace)
        if ask.sees(f"{record.space}/{record.queue}")
    ]
    return Pipelines(sorted(found, key=lambda one: one.name))


async def _records(millrace: Millrace) -> list[_Record]:
    try:
        queue = await millrace.find(QUEUE, space=SPACE)
    except NotFound:
        return []
    async with queue.snapshot() as snapshot:
        bodies = [row.body async for row in snapshot.rows() if row.body is not None]
    found: list[_Record] = []
    for body in bodies:
        # Users with the right to publish there can write records of any form; malformed ones are
        # skipped.
        with suppress(msgspec.MsgspecError):
            found.append(decode_json(body, _Record))
    return found


async def _shown(millrace: Millrace, record: _Record) -> PipelineOut:
    ends = await _ends(millrace, record)
    sinks = [
        PipelineSink(
            sink.name, sink.kind, sink.rows, sink.method, _seqs(sink, ends), _lag(sink, ends)
        )
        for sink in record.sinks
    ]
    return PipelineOut(
        record.pipeline,
        record.space,
        record.queue,
        record.views,
        record.state,
        record.message,
        record.host,
        record.started_ms,
        record.told_ms,
        sinks,
    )


async def _ends(millrace: Millrace, record: _Record) -> dict[int, int]:
    """Return the last seq of each shard of the source; empty if the queue does not exist."""
    try:
        engine, shards = engine_and_shards(await millrace.find(record.queue, space=record.space))
    except NotFound:
        return {}
    return {int(shard): (await engine.meta(shard)).last_seq for shard in shards.ids}


def _seqs(sink: _Sink, ends: dict[int, int]) -> list[int] | None:
    if sink.boundary is None:
        return None
    for place in sink.boundary.places:
        if place.shards == list(ends):
            return place.seqs
    return sink.boundary.places[0].seqs


def _lag(sink: _Sink, ends: dict[int, int]) -> int | None:
    if sink.boundary is None:
        return sum(ends.values()) if ends else None
    for place in sink.boundary.places:
        if place.shards == list(ends):
            return sum(ends.values()) - sum(place.seqs)
    return None
