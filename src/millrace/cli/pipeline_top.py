"""Pipelines, as `top` shows them: by what their runs have written down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from millrace.cli.printing import Column, Printer
from millrace.errors import NotFound

if TYPE_CHECKING:
    from millrace import Millrace
    from millrace.sinks.boundary import Boundary

_SPACE, _QUEUE = "millrace", "pipelines"

_COLUMNS = [
    Column("PIPELINE", is_long=True),
    Column("QUEUE", is_long=True),
    Column("SINK", is_long=True),
    Column("STATE"),
    Column("TOLD", is_number=True),
    Column("LAG", is_number=True),
]


class PipelineLine(NamedTuple):
    """A sink of a pipeline at a moment."""

    pipeline: str
    queue: str
    sink: str
    state: str
    told_seconds: float
    """How long ago a run has written it down."""
    lag: int | None
    """None: the queue is gone, or was made anew."""


async def look_at_pipelines(m: Millrace, space: str | None) -> list[PipelineLine]:
    """All sinks of all pipelines that read queues of this space, or of any."""
    try:
        book = await m.find(_QUEUE, space=_SPACE)
    except NotFound:
        return []
    async with book.snapshot() as snapshot:
        bodies = [row.body async for row in snapshot.rows() if row.body is not None]
    # Only where there are some: it takes its time.
    from millrace.pipeline.record import read_record

    records = [record for record in map(read_record, bodies) if record is not None]
    found: list[PipelineLine] = []
    for record in sorted(records, key=lambda one: one.pipeline):
        if space not in (None, record.space):
            continue
        name = f"{record.space}/{record.queue}".removeprefix("default/")
        ends = await _ends(m, record.space, record.queue)
        told = max(0.0, time.time() - record.told_ms / 1000)
        for sink in record.sinks:
            lag = _lag(sink.boundary, ends)
            found.append(PipelineLine(record.pipeline, name, sink.name, record.state, told, lag))
    return found


async def _ends(m: Millrace, space: str, name: str) -> dict[int, int]:
    try:
        queue = await m.find(name, space=space)
    except NotFound:
        return {}
    async with queue.snapshot() as snapshot:
        return dict(zip(map(int, queue.shards.ids), snapshot.boundaries, strict=True))


def _lag(boundary: Boundary | None, ends: dict[int, int]) -> int | None:
    if not ends:
        return None
    if boundary is None:
        return sum(ends.values())
    for place in boundary.places:
        if place.shards == tuple(ends):
            return sum(ends.values()) - sum(place.seqs)
    return None


def show_pipelines(out: Printer, lines: list[PipelineLine]) -> None:
    """Say them, where there are any."""
    if lines and not out.is_json:
        out.note("")
    if lines:
        out.table(
            "pipeline",
            _COLUMNS,
            [
                (
                    {
                        "pipeline": line.pipeline,
                        "queue": line.queue,
                        "sink": line.sink,
                        "state": line.state,
                        "told_seconds": round(line.told_seconds, 3),
                        "lag": line.lag,
                    },
                    (
                        line.pipeline,
                        line.queue,
                        line.sink,
                        line.state,
                        f"{line.told_seconds:.0f}s",
                        "?" if line.lag is None else f"{line.lag:,}",
                    ),
                )
                for line in lines
            ],
            empty="",
        )
