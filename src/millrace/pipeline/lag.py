"""Lag of a pipeline's sinks behind their queue, computed without running the pipeline."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from typing import cast

import msgspec

from millrace import sync
from millrace.client.cursor import Snapshot
from millrace.client.queue import engine_and_shards
from millrace.client.snapshot_token import narrow_snapshot
from millrace.errors import MillraceError, NotFound, Refused
from millrace.pipeline.record import Record, SinkRecord
from millrace.sinks.base import Asked, Sink
from millrace.sinks.boundary import Boundary


class Lag(msgspec.Struct, frozen=True):
    """The lag of a sink behind its queue."""

    rows: int
    """Number of seqs after the boundary."""
    bytes: int
    """Their approximate size in bytes."""
    seconds: float
    """Age of the oldest of them in seconds."""


class SinkStatus(msgspec.Struct, frozen=True):
    """A sink with its boundary and lag."""

    name: str
    kind: str
    rows: str
    method: str
    boundary: Boundary | None
    lag: Lag | None
    """The lag; None: it is unknown."""
    why: str = ""
    """The reason why the lag is unknown."""
    is_asked: bool = False
    """True if the sink itself reported its boundary; otherwise it comes from the last run and may
    be older.
    """


class Status(msgspec.Struct, frozen=True):
    """A pipeline with the status of its sinks."""

    record: Record
    """The stored record, with the queue that is declared now."""
    sinks: tuple[SinkStatus, ...]
    before: str = ""
    """The queue that the last run has carried, as space/name, if it is a different one."""


def asked(sink: Sink, record: SinkRecord, pipeline: str) -> SinkRecord | None:
    """Return the record with the boundary that the sink reports now, or None if it reports none."""
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
    """Return the status of a pipeline's sinks.

    The boundaries are those of `asked`, and for other sinks those of the last run's record.
    `before` is the queue that the last run has carried, if it is not the record's.
    """
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
    """Return the lag of a boundary, or None if it is of another queue."""
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
    """Return the age in seconds of the oldest row after these seqs."""
    ends = snapshot.boundaries
    oldest = time.time()
    for at, (seq, end) in enumerate(zip(seqs, ends, strict=True)):
        afters = [min(seq, end) if one == at else ends[one] for one in range(len(ends))]
        batch = next(iter(narrow_snapshot(snapshot, afters, ends).arrow()), None)
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


def require_record(record: Record | None, name: str) -> Record:
    """Return the record, which must exist.

    Raises:
        Refused: the pipeline has never run.
    """
    if record is None:
        raise Refused(
            f"pipeline {name!r} has never run here; `millrace pipeline run` runs it", field="name"
        )
    return record
