"""Whether sinks have what the queue says that they should.

Sinks are first brought to a pinned boundary; then the steps are run once more over all rows of the
queue as of that pin, and what comes out is compared with what the sinks hold.

Rule 1: a sink with a key is compared row by row, where the queue still has every row that counts:
one that is keyed, or a log. A sink that only adds rows is compared as a whole, where the queue is
a log without keys.
Rule 2: whatever else there is, aggregates, and rows of queues whose older revisions or settled
messages are gone, is judged by its count alone.
Rule 3: rows are compared by digests, which do not depend on their order, of those columns that the
sink gives back.
Rule 4: a sink with a key holds no row whose key is null, and none should be made for it: such rows
are counted apart, on both sides, and the sink is wrong if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Literal, cast

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.errors import Retry
from millrace.pipeline.comparing import What, compare
from millrace.pipeline.declaration import Pipeline
from millrace.pipeline.digest import lines_of
from millrace.pipeline.feed import Lost, Stretch
from millrace.pipeline.outlet import Outlet
from millrace.pipeline.runner import Runner
from millrace.pipeline.running import Ready, Setting, prepared
from millrace.sinks.base import OP, Choosy, Readable, Sink
from millrace.sinks.boundary import begins
from millrace.sinks.null_key import count_null_keys, with_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PASSING = (OP, "snapshot")
"""Columns that say how a row came, not what it is."""


class Difference(msgspec.Struct, frozen=True):
    """A row that is not as it should be."""

    key: str
    what: What


class Verified(msgspec.Struct, frozen=True):
    """What was found of a sink."""

    sink: str
    method: Literal["rows", "count", "nothing"]
    is_right: bool
    expected: int = 0
    """Rows that should be there; 0, where they are only counted."""
    found: int = 0
    wrong: int = 0
    """Rows that are not as they should be."""
    keyless: int = 0
    """Rows that are made for it without a key, which no sink with a key can hold; where they become
    dead letters, they are no fault of it."""
    keyless_found: int = 0
    """Rows without a key that it holds; others may have been lost in their place."""
    differences: tuple[Difference, ...] = ()
    """The first of them."""
    why: str = ""
    """Why rows were not compared."""


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
            return [_counted(outlet, why) for outlet in ready.outlets]
        try:
            with _pinned(ready, runner) as stretch:
                return [_verified(ready, outlet, stretch) for outlet in ready.outlets]
        except Lost as error:
            raise Retry(
                f"the cursor was moved, or its rows were let go, while sinks were compared: "
                f"{error}; see that the pipeline runs nowhere else, and verify again",
                field="verify",
            ) from error


@contextmanager
def _pinned(ready: Ready, runner: Runner) -> Iterator[Stretch]:
    """All sinks at the end of a stretch that is pinned."""
    for _ in range(limits.PIPELINE_VERIFY_TRIES):
        stretch = runner.bring(limits.PIPELINE_VERIFY_PIN_SECONDS)
        if stretch is not None:
            yield stretch
            stretch.commit(stretch.upto)
            return
        with ready.queue.snapshot(seconds=limits.PIPELINE_VERIFY_PIN_SECONDS) as snapshot:
            whole = Stretch(ready.queue, snapshot._twin)
            begin = begins(whole.upto)
            if all((outlet.place or begin) == whole.upto for outlet in ready.outlets):
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
    if outlet.record.start is not None and outlet.record.start.number > 0:
        return _counted(outlet, "it was begun in the middle of the queue")
    if not is_whole or (not key and spec.keyed):
        return _counted(outlet, "the queue does not keep every row that was carried")
    if ready.pipeline.sources:
        return _counted(outlet, "it was joined with what was there at the time")
    sink = _readable(outlet.sink)
    if sink is None:
        return _unread(outlet)
    schema = ready.maker.schema(outlet.declared.rows)
    columns = _kept(outlet.sink, [name for name in schema.names if name not in _PASSING])
    if not columns or not set(key) <= set(columns):
        return _counted(outlet, "it keeps rows in another form")
    made = _Keyed(ready.maker.batches(stretch, outlet.declared.rows), key)
    held = _Keyed(sink.rows(columns), key)
    found = compare(
        lines_of(made, schema, columns, key),
        lines_of(held, schema, columns, key),
        is_keyed=bool(key),
    )
    # Those that become dead letters are in the queue that takes them.
    lost = made.keyless if outlet.declared.null_key == "refuse" else 0
    return Verified(
        outlet.name,
        "rows",
        is_right=not (found.wrong or lost or held.keyless),
        expected=found.expected,
        found=found.found,
        wrong=found.wrong,
        keyless=made.keyless,
        keyless_found=held.keyless,
        differences=tuple(Difference(key, what) for key, what in found.differences),
    )


def _counted(outlet: Outlet, why: str) -> Verified:
    sink = _readable(outlet.sink)
    if sink is None:
        return _unread(outlet)
    key = outlet.sink.key
    columns = key[:1] or _kept(outlet.sink, outlet.columns)[:1]
    if set(key) <= set(_kept(outlet.sink, key)):
        columns = key or columns
    else:
        # It does not give its key back, so that nothing is known of it.
        key = ()
    found = keyless = 0
    for batch in sink.rows(columns):
        found += batch.num_rows
        keyless += count_null_keys(batch, key)
    return Verified(
        outlet.name, "count", is_right=not keyless, found=found, keyless_found=keyless, why=why
    )


class _Keyed:
    """The rows that have a key, while those without one are counted."""

    def __init__(self, batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> None:
        self._batches = batches
        self._key = key
        self.keyless = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.keyless += count_null_keys(batch, self._key)
            yield from with_key([batch], self._key)


def _unread(outlet: Outlet) -> Verified:
    return Verified(outlet.name, "nothing", is_right=True, why="its rows cannot be read back")


def _readable(sink: Sink) -> Readable | None:
    # A setting may have the same name.
    return cast("Readable", sink) if callable(getattr(sink, "rows", None)) else None


def _kept(sink: Sink, columns: Sequence[str]) -> Sequence[str]:
    """Those of the columns that a sink gives back as they came."""
    return cast("Choosy", sink).kept(columns) if hasattr(sink, "kept") else columns
