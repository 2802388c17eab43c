"""Verifies that sinks hold the rows that the queue and the steps produce.

Sinks are first brought to a pinned boundary; then the steps run once more over all rows of the
queue as of that pin, and the result is compared with the rows of the sinks.

Rule 1: a sink with a key is compared row by row if the queue still has every row that counts: if it
is keyed, or a log. A sink that only appends is compared as a whole if the queue is a log without
keys.

Rule 2: everything else, such as aggregates, and rows of queues whose older revisions or settled
messages were removed, is only counted.

Rule 3: rows are compared by digests, independent of their order, over the columns that the sink
returns.

Rule 4: a sink with a key holds no row whose key is null, and none should be produced for it: such
rows are counted separately, on both sides, and the sink is wrong if it has one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Literal, cast

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.errors import Retry
from millrace.pipeline.declaration import Pipeline
from millrace.pipeline.digest import Line, lines_of
from millrace.pipeline.runner import Runner
from millrace.pipeline.running import PreparedPipeline, Setting, prepared
from millrace.pipeline.sink_session import SinkSession
from millrace.pipeline.source import Lost, Stretch
from millrace.sinks.base import OP, Choosy, Readable, Sink
from millrace.sinks.boundary import begins
from millrace.sinks.null_key import count_null_keys, with_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PASSING = (OP, "snapshot")
"""Columns that describe the delivery of a row, not its content."""


class Difference(msgspec.Struct, frozen=True):
    """A row that differs from the expected one."""

    key: str
    what: What


class SinkVerification(msgspec.Struct, frozen=True):
    """The result of verifying a sink."""

    sink: str
    method: Literal["rows", "count", "nothing"]
    is_right: bool
    expected: int = 0
    """Number of expected rows; 0 if rows are only counted."""
    found: int = 0
    wrong: int = 0
    """Number of rows that differ."""
    keyless: int = 0
    """Rows produced for it without a key, which no sink with a key can hold; if they become dead
    letters, the sink is not at fault.
    """
    keyless_found: int = 0
    """Rows without a key that it holds; others may have been lost in their place."""
    differences: tuple[Difference, ...] = ()
    """The first differences."""
    why: str = ""
    """The reason why rows were not compared."""


def verify_pipeline(
    pipeline: Pipeline, setting: Setting, spark: SparkSession | None = None
) -> list[SinkVerification]:
    """Bring the sinks to one boundary, and compare them with the queue at that boundary.

    A run elsewhere is overtaken and ends.

    Raises:
        Retry: new rows arrived at every attempt.
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
def _pinned(ready: PreparedPipeline, runner: Runner) -> Iterator[Stretch]:
    """Bring all sinks to the end of a stretch that stays pinned."""
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


def _verified(ready: PreparedPipeline, outlet: SinkSession, stretch: Stretch) -> SinkVerification:
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
    # Rows that become dead letters are in the queue that takes them.
    lost = made.keyless if outlet.declared.null_key == "refuse" else 0
    return SinkVerification(
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


def _counted(outlet: SinkSession, why: str) -> SinkVerification:
    sink = _readable(outlet.sink)
    if sink is None:
        return _unread(outlet)
    key = outlet.sink.key
    columns = key[:1] or _kept(outlet.sink, outlet.columns)[:1]
    if set(key) <= set(_kept(outlet.sink, key)):
        columns = key or columns
    else:
        # The sink does not return its key columns, so that null keys cannot be counted.
        key = ()
    found = keyless = 0
    for batch in sink.rows(columns):
        found += batch.num_rows
        keyless += count_null_keys(batch, key)
    return SinkVerification(
        outlet.name, "count", is_right=not keyless, found=found, keyless_found=keyless, why=why
    )


class _Keyed:
    """Passes on the rows that have a key, and counts those without one."""

    def __init__(self, batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> None:
        self._batches = batches
        self._key = key
        self.keyless = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.keyless += count_null_keys(batch, self._key)
            yield from with_key([batch], self._key)


def _unread(outlet: SinkSession) -> SinkVerification:
    return SinkVerification(
        outlet.name, "nothing", is_right=True, why="its rows cannot be read back"
    )


def _readable(sink: Sink) -> Readable | None:
    # A setting may have the same name.
    return cast("Readable", sink) if callable(getattr(sink, "rows", None)) else None


def _kept(sink: Sink, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns that a sink returns unchanged."""
    return cast("Choosy", sink).kept(columns) if hasattr(sink, "kept") else columns


# --- Compares two sets of rows by their digests, in a temporary database on disk of any size -----

What = Literal["missing", "too many", "different"]

_TABLES = """
    create table wanted (key text, digest integer, many integer, seq integer, primary key (key));
    create table there (key text, digest integer, many integer, primary key (key, digest));
"""
_WANT = """
    insert into wanted values (?, ?, 1, ?) on conflict do update
    set many = many + ?, digest = excluded.digest, seq = excluded.seq where excluded.seq >= seq
"""
_FIND = "insert into there values (?, ?, 1) on conflict do update set many = many + 1"
_WRONG = """
    create table wrong as select key, max(lacking) as lacking, max(extra) as extra from (
        select w.key, 1 as lacking, 0 as extra from wanted w
        left join there t on t.key = w.key and t.digest = w.digest
        where w.digest is not null and w.many > coalesce(t.many, 0)
        union all
        select t.key, 0, 1 from there t
        left join wanted w on w.key = t.key and w.digest = t.digest
        where t.many > coalesce(w.many, 0)
    ) group by key
"""


class Compared(msgspec.Struct, frozen=True):
    """The result of a comparison."""

    expected: int
    found: int
    wrong: int
    differences: tuple[tuple[str, What], ...]
    """The first differences, ordered by key."""


def compare(expected: Iterable[Line], held: Iterable[Line], *, is_keyed: bool) -> Compared:
    """Compare the expected rows with the rows that the sink holds.

    With a key, only the newest of several expected rows counts, unless it deletes; without a key,
    all rows count.
    """
    # An unnamed temporary file, which SQLite deletes with the connection.
    db = sqlite3.connect("")
    try:
        db.execute(f"pragma cache_size = -{limits.PIPELINE_VERIFY_KIB}")
        db.executescript(_TABLES)
        if is_keyed:
            db.executemany(_WANT, ((one.key, one.digest, one.seq, 0) for one in expected))
        else:
            db.executemany(_WANT, ((one.key, one.digest, 0, 1) for one in expected))
        db.executemany(_FIND, ((one.key, one.digest) for one in held))
        db.execute(_WRONG)
        [(wanted,)] = db.execute(
            "select coalesce(sum(many), 0) from wanted where digest is not null"
        )
        [(found,)] = db.execute("select coalesce(sum(many), 0) from there")
        [(wrong,)] = db.execute("select count(*) from wrong")
        first = db.execute(
            "select key, lacking, extra from wrong order by lacking + extra desc, extra, key "
            "limit ?",
            (limits.PIPELINE_DIFFERENCES_MAX,),
        )
        return Compared(wanted, found, wrong, tuple((key, _what(*how)) for key, *how in first))
    finally:
        db.close()


def _what(lacking: int, extra: int) -> What:
    if lacking and extra:
        return "different"
    return "missing" if lacking else "too many"
