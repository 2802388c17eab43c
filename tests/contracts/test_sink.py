"""Every sink through `check_sink`, and the suite itself over sinks that break a rule each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

import msgspec
import pyarrow as pa
import pytest

from millrace.errors import Refused
from millrace.sinks.base import DELETE, OP, Held, Sink, Task
from millrace.sinks.boundary import Span, goes_on
from millrace.sinks.null_key import with_key
from millrace.testing.check_sink import CHECKS, Rig, Row, check_sink
from tests.support.contracts.memory_sink import Flow, Line, MemorySink

Check = Callable[[Rig], None]

_NAMES = count()


class MemoryRig:
    """A table of this process."""

    is_early = False

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink

    @property
    def sink(self) -> Sink:
        return self._sink

    def rows(self) -> Iterator[Row]:
        for batch in self._sink.rows(["key", "value", "op"]):
            for line in batch.to_pylist():
                yield Row(str(line["key"]), line["value"], line["op"] or "put")

    def close(self) -> None:
        self._sink.close()


def make(
    kind: type[MemorySink] = MemorySink, key: tuple[str, ...] = ("key",), lanes: int = 0
) -> MemoryRig:
    return MemoryRig(kind(name=f"table {next(_NAMES)}", key=key, lanes=lanes))


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
@pytest.mark.parametrize(("key", "lanes"), [((), 0), (("key",), 0), (("key",), 16)])
def test_memory(check: Check, key: tuple[str, ...], lanes: int) -> None:
    check(make(key=key, lanes=lanes))


# --- Sinks that break a rule ----------------------------------------------------------------------


class Forgetful(MemorySink, frozen=True):
    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        done = super().commit(held, span, staged)
        self.table.flows[held.flow].boundary = held.boundary
        return done


class Repeating(MemorySink, frozen=True):
    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        done = super().commit(held, span, staged)
        self._apply([self.table.staged[part.decode()] for part in staged])
        return done


class Believing(MemorySink, frozen=True):
    """It goes by what its holder remembers of the boundary."""

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        self._flow(held)
        if goes_on(held.boundary, span):
            self._apply([self.table.staged[part.decode()] for part in staged])
            self.table.flows[held.flow].boundary = span.upto
        return msgspec.structs.replace(held, boundary=self.table.flows[held.flow].boundary)


class ByItsSum(MemorySink, frozen=True):
    """It goes by the number of a boundary, which is no place."""

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        flow = self._flow(held)
        if flow.boundary is None or span.upto.number > flow.boundary.number:
            self._apply([self.table.staged[part.decode()] for part in staged])
            flow.boundary = span.upto
        return msgspec.structs.replace(held, boundary=flow.boundary)


class Unfenced(MemorySink, frozen=True):
    def _flow(self, held: Held) -> Flow:
        return self.table.flows[held.flow]


class Hasty(MemorySink, frozen=True):
    """Rows count when they are staged."""

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        token = super().stage(task, batches)
        self._apply([self.table.staged[task.part]])
        return token


class Greedy(MemorySink, frozen=True):
    """It commits whatever was staged, also what nobody named."""

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        if not goes_on(self._flow(held).boundary, span):
            return super().commit(held, span, staged)
        done = super().commit(held, span, [part.encode() for part in self.table.staged])
        self.table.staged.clear()
        return done


class Merging(MemorySink, frozen=True):
    """Null is a key like any other: rows without a key take each other's place."""

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        self._flow(task.held)
        lines = [line for batch in batches for line in batch.to_pylist()]
        self.table.staged[task.part] = lines
        return task.part.encode()


class Skipping(MemorySink, frozen=True):
    """Rows without a key are left out, and nobody is told."""

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        return super().stage(task, with_key(batches, self.key))


class OneFlow(MemorySink, frozen=True):
    def open(self, flow: str, schema: pa.Schema) -> Held:
        held = super().open("all", schema)
        return msgspec.structs.replace(held, flow=flow)

    def _flow(self, held: Held) -> Flow:
        return super()._flow(msgspec.structs.replace(held, flow="all"))


class Undead(MemorySink, frozen=True):
    """Deletes are dropped."""

    def _apply(self, parts: Sequence[list[Line]]) -> None:
        super()._apply([[line for line in part if line.get(OP) != DELETE] for part in parts])


class InOrder(MemorySink, frozen=True):
    """The row that came last wins, whatever its seq says."""

    def _apply(self, parts: Sequence[list[Line]]) -> None:
        super()._apply([[{**line, "seq": 0} for line in part] for part in parts])


class FirstPart(MemorySink, frozen=True):
    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        return super().commit(held, span, staged[:1])


class FirstBatch(MemorySink, frozen=True):
    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        return super().stage(task, [*batches][:1])


class Idle(MemorySink, frozen=True):
    """A span without rows is thought to be no span."""

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        return super().commit(held, span, staged) if staged else held


class Trusting(MemorySink, frozen=True):
    """It does not look which queue the rows are of."""

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        try:
            return super().commit(held, span, staged)
        except Refused as error:
            if error.code != "refused":
                raise
            self.table.flows[held.flow].boundary = None
            return super().commit(held, span, staged)


class Tidy(MemorySink, frozen=True):
    def clean(self, held: Held) -> None:
        self.table.staged.clear()


class Chatty(MemorySink, frozen=True):
    """What it hands to the commit is all rows."""

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        token = super().stage(task, batches)
        return token + b" " * 100 * len(self.table.staged[task.part])


class Easy(MemorySink, frozen=True):
    def check(self, schema: pa.Schema) -> None:
        """Anything will do."""


BROKEN = [
    Forgetful,
    Repeating,
    Believing,
    ByItsSum,
    Unfenced,
    Hasty,
    Greedy,
    OneFlow,
    Undead,
    InOrder,
    FirstPart,
    FirstBatch,
    Idle,
    Trusting,
    Tidy,
    Chatty,
    Easy,
    Merging,
    Skipping,
]

KEYED_ONLY = [InOrder, Easy, Merging, Skipping]
ADDED_ONLY = [Believing]


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("key", [(), ("key",)], ids=["added", "keyed"])
def test_a_sink_that_breaks_a_rule_is_found_out(
    kind: type[MemorySink], key: tuple[str, ...]
) -> None:
    if kind in KEYED_ONLY and not key:
        pytest.skip("the rule is one of keys")
    if kind in ADDED_ONLY and key:
        pytest.skip("rows that replace each other do so once more")
    with pytest.raises((AssertionError, Refused, KeyError)):
        check_sink(lambda: make(kind, key))
