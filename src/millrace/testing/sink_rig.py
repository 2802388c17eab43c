"""What the checks of sinks are written in: rows, spans, rigs, and runs over a sink."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from millrace.sinks.base import DELETE, PUT, Held, Sink, Task
from millrace.sinks.boundary import Boundary, Place, Span
from millrace.sinks.lane import lanes_of

_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("key", pa.string(), nullable=False),
    pa.field("value", pa.string()),
    pa.field("op", pa.string(), nullable=False),
]
SCHEMA = pa.schema(_FIELDS)
"""The rows of the suite."""

TOKEN_BYTES_MAX = 16 * 1024
"""What `stage` may hand to `commit`, however many rows it wrote."""

FLOW = "orders/sink"


class Row(NamedTuple):
    """A row as a reader sees it. A sink with a key has no deletes in it: they were applied."""

    key: str
    value: str | None
    op: str = PUT


class Change(NamedTuple):
    """A row as it is carried."""

    key: str
    value: str | None
    op: str = PUT
    seq: int = 0


class Rig(Protocol):
    """A sink on an empty place, and what is seen there."""

    @property
    def sink(self) -> Sink:
        """It is pickled for every run, as it would be for another process."""
        ...

    @property
    def is_early(self) -> bool:
        """Whether rows may be seen before their commit, because the place has no transactions.

        Such a sink is let off nothing else: it judges a span when it is staged, already.
        """
        ...

    def rows(self) -> Iterable[Row]:
        """What a reader of the place sees, in any order."""
        ...

    def close(self) -> None:
        """End."""
        ...


def at(*seqs: int, queue: str = "orders", shards: Sequence[int] = (), history: str = "aa") -> Place:
    """A place in a queue."""
    ids = tuple(shards) or tuple(range(7, 7 + len(seqs)))
    return Place("default", queue, ids, history, seqs)


def span(after: int, upto: int) -> Span:
    """A span of the queue that most checks read."""
    return Span(Boundary((at(after),)), Boundary((at(upto),)))


def puts(*keys: str, value: str = "1", after: int = 0) -> list[Change]:
    """Puts of these keys, at the seqs after one."""
    return [Change(key, f"{key}{value}", PUT, seq) for seq, key in enumerate(keys, after + 1)]


def batch_of(changes: Sequence[Change]) -> pa.RecordBatch:
    """Rows of the suite as they are staged."""
    names = {"seq": 3, "key": 0, "value": 1, "op": 2}
    return pa.RecordBatch.from_arrays(
        [
            pa.array([change[at] for change in changes], SCHEMA.field(name).type)
            for name, at in names.items()
        ],
        schema=SCHEMA,
    )


class Run:
    """One run over a sink: it opens the flow, and knows what a reader should see."""

    _parts = 0

    def __init__(self, rig: Rig, flow: str = FLOW) -> None:
        self.rig = rig
        self.sink: Sink = pickle.loads(pickle.dumps(rig.sink))
        self.sink.check(SCHEMA)
        self.flow = flow
        self.held: Held = self.sink.open(flow, SCHEMA)
        assert self.held.flow == flow

    @property
    def at(self) -> Boundary | None:
        """How far the sink is, as the run was told."""
        return self.held.boundary

    def stage(self, piece: Span, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Stage one part."""
        Run._parts += 1
        sink: Sink = pickle.loads(pickle.dumps(self.sink))
        token = sink.stage(Task(self.held, piece, f"part-{Run._parts}"), batches)
        assert len(token) <= TOKEN_BYTES_MAX, "what commit is handed is little"
        return token

    def stage_all(self, piece: Span, changes: Sequence[Change], parts: int = 1) -> list[bytes]:
        """Stage rows in several parts, by their lanes."""
        if not changes:
            return []
        batch = batch_of(changes)
        lanes = self.sink.lanes
        if lanes:
            homes = [int(lane) % parts for lane in lanes_of(batch, self.sink.key, lanes)]
        else:
            homes = [number % parts for number in range(len(changes))]
        pieces = [
            [change for change, home in zip(changes, homes, strict=True) if home == part]
            for part in range(parts)
        ]
        return [self.stage(piece, [batch_of(rows)]) for rows in pieces]

    def commit(self, piece: Span, staged: Sequence[bytes]) -> None:
        """Commit, and see that what comes back says so."""
        self.held = self.sink.commit(self.held, piece, staged)
        assert self.held.boundary is not None
        assert self.held.boundary.covers(piece.upto), "the boundary is told after a commit"

    def carry(self, piece: Span, changes: Sequence[Change], parts: int = 1) -> None:
        """Stage and commit."""
        self.commit(piece, self.stage_all(piece, changes, parts))

    def sees(self, *changes: Sequence[Change]) -> None:
        """A reader sees what these spans, applied once each, leave."""
        seen, expected = sorted(self.rig.rows(), key=repr), sorted(self._left(changes), key=repr)
        assert seen == expected, f"seen: {seen[:20]}, expected: {expected[:20]}"

    def _left(self, spans: Sequence[Sequence[Change]]) -> Iterator[Row]:
        if not self.sink.key:
            return (Row(*change[:3]) for changes in spans for change in changes)
        left: dict[str, Row] = {}
        for changes in spans:
            for change in sorted(changes, key=lambda each: each.seq):
                left.pop(change.key, None)
                if change.op != DELETE:
                    left[change.key] = Row(change.key, change.value)
        return iter(left.values())
