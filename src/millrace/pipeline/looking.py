"""How far the sinks of pipelines are behind their queues, without running anything."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from typing import cast

import msgspec

from millrace import sync
from millrace.client.cursor import Snapshot
from millrace.client.queue import engine_and_shards
from millrace.client.ticket import narrowed
from millrace.errors import MillraceError, NotFound, Refused
from millrace.pipeline.record import Record, SinkRecord
from millrace.sinks.base import Asked, Sink
from millrace.sinks.boundary import Boundary


class Lag(msgspec.Struct, frozen=True):
    """How far something is behind."""

    rows: int
    """Seqs that came since."""
    bytes: int
    """About how many they have."""
    seconds: float
    """How long the first of them has waited."""


class SinkStatus(msgspec.Struct, frozen=True):
    """A sink, and how far it is."""

    name: str
    kind: str
    rows: str
    method: str
    boundary: Boundary | None
    lag: Lag | None
    """None: it cannot be said."""
    why: str = ""
    """Why it cannot be said."""
    is_asked: bool = False
    """Whether the sink itself has said how far it is; else its last run has, at most."""


class Status(msgspec.Struct, frozen=True):
    """A pipeline, and how far it is."""

    record: Record
    """With the queue that is declared."""
    sinks: tuple[SinkStatus, ...]
    before: str = ""
    """The queue that its last run has carried, as space/name, where that is another one."""


def asked(sink: Sink, record: SinkRecord, pipeline: str) -> SinkRecord | None:
    """What is written down of a sink, and how far it says that it is now; None: it does not say."""
    if not hasattr(sink, "stands"):
        return None
    try:
        boundary = cast("Asked", sink).stands(record.flow(pipeline))
    except MillraceError:
        return None
    finally:
        sink.close()
    return msgspec.structs.replace(record, boundary=boundary or record.start)


def status_of(
    m: sync.Millrace,
    record: Record,
    asked: Mapping[str, SinkRecord] | None = None,
    before: str = "",
) -> Status:
    """How far the sinks of a pipeline are, by what those `asked` have said, and by what the last
    run has written down of others; `before` is the queue which that one has carried, if it is not
    the record's."""
    told = asked or {}
    sinks = tuple(told.get(sink.name, sink) for sink in record.sinks)
    record = msgspec.structs.replace(record, sinks=sinks)
    try:
        queue = m.find(record.queue, space=record.space)
    except NotFound as error:
        return Status(record, _statuses(record, [], error.message, told), before)
    row_bytes = _row_bytes(queue)
    with queue.snapshot() as snapshot:
        lags = [
            _lag(snapshot._twin, queue, sink.boundary, row_bytes)
            or (f"filled from {before}" if before else "the queue was deleted and made anew since")
            for sink in record.sinks
        ]
    return Status(record, _statuses(record, lags, "", told), before)


def _statuses(
    record: Record, lags: Sequence[Lag | str], why: str, told: Container[str]
) -> tuple[SinkStatus, ...]:
    found: list[SinkStatus] = []
    for at, sink in enumerate(record.sinks):
        lag = lags[at] if lags else why
        found.append(
            SinkStatus(
                sink.name,
                sink.kind,
                sink.rows,
                sink.method,
                sink.boundary,
                lag if isinstance(lag, Lag) else None,
                lag if isinstance(lag, str) else "",
                sink.name in told,
            )
        )
    return tuple(found)


def _lag(
    snapshot: Snapshot, queue: sync.Queue, boundary: Boundary | None, row_bytes: int
) -> Lag | None:
    """How far a boundary is behind; None: it is one of another queue."""
    ends = snapshot.boundaries
    seqs = (0,) * len(ends)
    if boundary is not None:
        shards = tuple(int(shard) for shard in queue.shards.ids)
        places = [place for place in boundary.places if place.shards == shards]
        if not places:
            return None
        seqs = places[0].seqs
    rows = sum(max(end - seq, 0) for end, seq in zip(ends, seqs, strict=True))
    if not rows:
        return Lag(0, 0, 0.0)
    return Lag(rows, rows * row_bytes, _age(snapshot, seqs))


def _age(snapshot: Snapshot, seqs: Sequence[int]) -> float:
    """How long the oldest row after these seqs has waited."""
    ends = snapshot.boundaries
    oldest = time.time()
    for at, (seq, end) in enumerate(zip(seqs, ends, strict=True)):
        afters = [min(seq, end) if one == at else ends[one] for one in range(len(ends))]
        batch = next(iter(narrowed(snapshot, afters, ends).arrow()), None)
        if batch is not None and batch.num_rows:
            oldest = min(oldest, batch.column("time")[0].as_py().timestamp())
    return max(time.time() - oldest, 0.0)


def _row_bytes(queue: sync.Queue) -> int:
    async def ask() -> int:
        engine, shards = engine_and_shards(queue._twin)
        metas = [await engine.meta(shard) for shard in shards.ids]
        rows = sum(meta.published for meta in metas)
        return max(sum(meta.weight for meta in metas) // rows, 1) if rows else 1

    return queue._portal.run(ask)


def known(record: Record | None, name: str) -> Record:
    """The record.

    Raises:
        Refused: there is none.
    """
    if record is None:
        raise Refused(
            f"pipeline {name!r} has never run here; `millrace pipeline run` runs it", field="name"
        )
    return record
