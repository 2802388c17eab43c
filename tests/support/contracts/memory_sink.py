"""A sink in this process's memory: the least that `check_sink` is content with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec
import pyarrow as pa

from millrace.sinks.base import DELETE, OP, PUT, Held, Task, overtaken
from millrace.sinks.boundary import Boundary, Span, goes_on
from millrace.sinks.lane import check_key
from millrace.sinks.null_key import check_null_keys

Line = dict[str, object]


class Flow:
    """State of one flow."""

    def __init__(self) -> None:
        self.fence = 0
        self.boundary: Boundary | None = None


class Table:
    """The rows of the sink."""

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.staged: dict[str, list[Line]] = {}
        self.lines: list[Line] = []


_TABLES: dict[str, Table] = {}
"""By name: a sink that was pickled must find its table again."""


class MemorySink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows in a list, or by their key."""

    name: str
    key: tuple[str, ...] = ()
    lanes: int = 0

    @property
    def table(self) -> Table:
        """It is made when it is first asked for."""
        return _TABLES.setdefault(self.name, Table())

    def check(self, schema: pa.Schema) -> None:
        """See `Sink.check`."""
        check_key(schema, self.key)

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """See `Sink.open`."""
        found = self.table.flows.setdefault(flow, Flow())
        found.fence += 1
        return Held(flow, found.fence, found.boundary)

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """See `Sink.stage`."""
        self._flow(task.held)
        self.table.staged[task.part] = [
            line for batch in check_null_keys(batches, self.key) for line in _lines(batch)
        ]
        return task.part.encode()

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """See `Sink.commit`."""
        flow = self._flow(held)
        if goes_on(flow.boundary, span):
            self._apply([self.table.staged[part.decode()] for part in staged])
            flow.boundary = span.upto
        return msgspec.structs.replace(held, boundary=flow.boundary)

    def clean(self, held: Held) -> None:
        """Nothing outlives the process."""

    def close(self) -> None:
        """There is no connection."""

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Readable.rows`."""
        lines = [{name: line.get(name) for name in columns} for line in self.table.lines]
        yield pa.RecordBatch.from_pylist(lines)

    def _flow(self, held: Held) -> Flow:
        flow = self.table.flows[held.flow]
        if flow.fence != held.fence:
            raise overtaken(held)
        return flow

    def _apply(self, parts: Sequence[list[Line]]) -> None:
        if not self.key:
            self.table.lines += [line for part in parts for line in part]
            return
        lines = {self._key_of(line): line for line in self.table.lines}
        new = sorted((line for part in parts for line in part), key=_seq)
        for line in new:
            lines.pop(self._key_of(line), None)
            if line.get(OP, PUT) != DELETE:
                lines[self._key_of(line)] = line
        self.table.lines = list(lines.values())

    def _key_of(self, line: Line) -> tuple[object, ...]:
        return tuple(line[name] for name in self.key)


def _lines(batch: pa.RecordBatch) -> list[Line]:
    return cast("list[Line]", batch.to_pylist())


def _seq(line: Line) -> int:
    return cast("int", line.get("seq", 0))
