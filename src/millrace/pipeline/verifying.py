"""Whether sinks have what the queue says that they should.

Sinks are first brought to a pinned boundary; then the steps are run once more over all rows of the
queue as of that pin, and what comes out is compared with what the sinks hold.

Rule 1: a sink with a key is compared row by row, where the queue still has every row that counts:
one that is keyed, or a log. A sink that only adds rows is compared as a whole, where the queue is
a log without keys.
Rule 2: whatever else there is, aggregates, and rows of queues whose older revisions or settled
messages are gone, is judged by its count alone.
Rule 3: rows are compared by digests, which do not depend on their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Literal, Protocol, cast

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.errors import Retry
from millrace.pipeline.declaration import Pipeline
from millrace.pipeline.digest import Line, fitted, lines_of
from millrace.pipeline.feed import Stretch
from millrace.pipeline.outlet import Outlet
from millrace.pipeline.runner import Runner
from millrace.pipeline.running import Ready, Setting, prepared
from millrace.sinks.base import OP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PASSING = (OP, "snapshot")
"""Columns that say how a row came, not what it is."""


class Difference(msgspec.Struct, frozen=True):
    """A row that is not as it should be."""

    key: str
    what: Literal["missing", "too many", "different"]


class Verified(msgspec.Struct, frozen=True):
    """What was found of a sink."""

    sink: str
    method: Literal["rows", "count", "nothing"]
    is_right: bool
    expected: int = 0
    """Rows that should be there; where only the count is judged, at least so many."""
    found: int = 0
    wrong: int = 0
    """Rows that are not as they should be."""
    differences: tuple[Difference, ...] = ()
    """The first of them."""
    why: str = ""
    """Why rows were not compared."""


class _Readable(Protocol):
    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]: ...


def verify_pipeline(
    pipeline: Pipeline, setting: Setting, spark: SparkSession | None = None
) -> list[Verified]:
    """Bring the sinks to one boundary, and compare them with the queue there.

    A run that goes on elsewhere is overtaken and ends.

    Raises:
        Retry: rows came at every moment that was tried.
    """
    stop = Event()
    with prepared(pipeline, setting, stop=stop, spark=spark) as ready:
        runner = ready.runner(stop, lambda _: None)
        if not isinstance(runner, Runner):
            runner.run(once=True)
            why = "its steps keep a state, which only Spark's checkpoint has"
            return [_counted(outlet, 0, why) for outlet in ready.outlets]
        with _pinned(ready, runner) as stretch:
            return [_verified(ready, outlet, stretch) for outlet in ready.outlets]


@contextmanager
def _pinned(ready: Ready, runner: Runner) -> Iterator[Stretch]:
    """All sinks at the end of a stretch that is pinned."""
    for _ in range(limits.PIPELINE_VERIFY_TRIES):
        stretch = runner.bring()
        if stretch is not None:
            yield stretch
            stretch.commit(stretch.upto)
            return
        with ready.queue.snapshot() as snapshot:
            whole = Stretch(ready.queue, snapshot._twin)
            if all(outlet.place in (None, whole.upto) for outlet in ready.outlets):
                yield whole
                return
    raise Retry(
        "rows came between any two looks at the queue; verify when less is published",
        field="verify",
    )


def _verified(ready: Ready, outlet: Outlet, stretch: Stretch) -> Verified:
    spec = ready.queue.spec()
    key = outlet.sink.key
    is_whole = spec.keyed or spec.retention == "log"
    if not hasattr(outlet.sink, "rows"):
        return Verified(outlet.name, "nothing", is_right=True, why="its rows cannot be read back")
    if outlet.record.start is not None and outlet.record.start.number > 0:
        return _counted(outlet, 0, "it was begun in the middle of the queue")
    if not is_whole or (not key and spec.keyed):
        return _counted(outlet, 0, "the queue does not keep every row that was carried")
    if ready.pipeline.sources:
        return _counted(outlet, 0, "it was joined with what was there at the time")
    schema = ready.maker.schema(outlet.declared.rows)
    columns = [name for name in schema.names if name not in _PASSING]
    made = ready.maker.batches(stretch, outlet.declared.rows)
    expected = _newest(lines_of(made, columns, key)) if key else lines_of(made, columns, ())
    sink = cast("_Readable", outlet.sink)
    held = (fitted(batch, _only(schema, columns)) for batch in sink.rows(columns))
    return _compared(outlet.name, expected, lines_of(held, columns, key))


def _only(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns])


def _newest(lines: Iterable[Line]) -> Iterator[Line]:
    """Of each key the newest row, unless it deletes."""
    found: dict[str, Line] = {}
    for line in lines:
        old = found.get(line.key)
        if old is None or line.seq >= old.seq:
            found[line.key] = line
    return (line for line in found.values() if line.digest is not None)


def _compared(name: str, expected: Iterable[Line], held: Iterable[Line]) -> Verified:
    wanted = Counter((line.key, line.digest) for line in expected)
    there = Counter((line.key, line.digest) for line in held)
    missing, more = wanted - there, there - wanted
    lacking, extra = {key for key, _ in missing}, {key for key, _ in more}
    differences = [Difference(key, "different") for key in sorted(lacking & extra)]
    differences += [Difference(key, "missing") for key in sorted(lacking - extra)]
    differences += [Difference(key, "too many") for key in sorted(extra - lacking)]
    return Verified(
        name,
        "rows",
        is_right=not differences,
        expected=wanted.total(),
        found=there.total(),
        wrong=len(differences),
        differences=tuple(differences[: limits.PIPELINE_DIFFERENCES_MAX]),
    )


def _counted(outlet: Outlet, least: int, why: str) -> Verified:
    if not hasattr(outlet.sink, "rows"):
        return Verified(outlet.name, "nothing", is_right=True, why="its rows cannot be read back")
    columns = [outlet.sink.key[0]] if outlet.sink.key else outlet.columns[:1]
    sink = cast("_Readable", outlet.sink)
    found = sum(batch.num_rows for batch in sink.rows(columns))
    return Verified(outlet.name, "count", found >= least, least, found, why=why)
