"""The source of a pipeline: a retaining cursor of the pipeline's name, and its pinned rows.

Rule 1: the sinks determine where the pipeline resumes, not the cursor. The cursor retains rows.

Rule 2: rows that a sink needs and that were removed end the run; they are never skipped. The cursor
retains them as long as it is not ahead of the sinks. If it has to be created again or set back, the
rows of a work queue are counted: its seqs have gaps only where rows were removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.client.cursor import Cursor as AsyncCursor
from millrace.client.cursor import Snapshot
from millrace.client.multi_shard_cursor import (
    claim_cursor,
    commit_at,
    find_cursor,
    is_dropped,
    open_at,
    reset_at,
)
from millrace.client.snapshot_token import (
    narrow_snapshot,
    resume_at,
    with_retained,
    write_snapshot_token,
)
from millrace.errors import CursorExpired, Exists, Fenced, NotFound, Refused, SnapshotExpired, Stale
from millrace.sinks.boundary import Boundary, Place, Span, begins
from millrace.spark.columns import Shaper
from millrace.sync.queue import Queue

T = TypeVar("T")


class Lost(Exception):
    """The cursor or its pin was replaced: resume at the sinks' boundaries.

    The cursor was deleted or reset, another run has moved it, or the pin has expired.
    """


@contextmanager
def _found() -> Iterator[None]:
    try:
        yield
    except CursorExpired as error:
        raise _gone(error) from error
    except Fenced as error:
        raise Fenced(
            "another run of this pipeline has taken over, and has its cursor; end this one",
            field=error.field,
        ) from error
    except (NotFound, SnapshotExpired, Stale) as error:
        raise Lost(error.message) from error


def _gone(error: CursorExpired) -> CursorExpired:
    """Return the error for rows that are gone; resetting the cursor does not help, since the sinks
    determine where to resume.
    """
    return CursorExpired(
        f"rows that a sink needs are gone from the queue ({error.message}); rewind it to the "
        "beginning, and it gets all that the queue still has, or to the end, and it goes on with "
        "what comes",
        field="boundary",
    )


class Stretch:
    """A pinned range of rows after the cursor, immutable until it is committed."""

    def __init__(self, queue: Queue, snapshot: Snapshot) -> None:
        self._queue = queue
        self._snapshot = snapshot
        self.after = _boundary(queue, snapshot, snapshot.afters)
        self.upto = _boundary(queue, snapshot, snapshot.boundaries)

    def read(self, span: Span) -> pa.RecordBatchReader:
        """Return a reader of the rows of a span within it; reading raises if the pin is lost."""
        return self._part(span).arrow()

    def rows(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span with the columns that sinks see."""
        with _found():
            yield from shaped(self.read(span), span.upto.number)

    def small(self, span: Span) -> pa.Table | None:
        """Return the rows of a span if they are few enough to be held in this process, else
        None.
        """
        with _found():
            return small(self.read(span), span.upto.number)

    def whole(self) -> Span:
        """Return the span of all rows of the queue, as of the pin."""
        return Span(begins(self.upto), self.upto)

    def ticket(self, span: Span) -> str:
        """Return a snapshot token of the span, for readers in other processes."""
        return write_snapshot_token(self._part(span))

    def _part(self, span: Span) -> Snapshot:
        return narrow_snapshot(self._snapshot, _seqs(span.after), _seqs(span.upto))

    def commit(self, upto: Boundary) -> None:
        """Move the cursor to `upto`, up to which every sink has the rows."""
        with _found():
            self._queue._portal.run(partial(commit_at, self._snapshot, _seqs(upto)))


class Feed:
    """A queue and the cursor with which a pipeline reads it."""

    def __init__(self, queue: Queue, name: str) -> None:
        self._queue = queue
        self._name = name
        self._cursor: AsyncCursor | None = None

    @property
    def queue(self) -> Queue:
        """The queue that is read."""
        return self._queue

    def end(self) -> Boundary:
        """Return the present end of the queue."""
        with self._queue.snapshot() as snapshot:
            return _boundary(self._queue, snapshot._twin, snapshot.boundaries)

    def begin(self, lowest: Boundary | None, held: Boundary | None = None) -> None:
        """Start reading after `lowest`, the boundary of the sink that is furthest behind; None:
        from the beginning.

        `held` is the lowest boundary that sinks hold: rows after it must all be there.

        Raises:
            CursorExpired: some of them were removed.
            Exists: there is a cursor of this name that is not the pipeline's.
        """
        seqs = _seqs(lowest) if lowest is not None else (0,) * len(self._queue.shards.ids)
        try:
            cursor = self._find(held)
            if held is not None and (cursor is None or lowest != held):
                self._see_floor(held)
            if cursor is None or any(map(int.__gt__, _stands(cursor), seqs)):
                cursor = self._set(cursor, seqs, held)
        except CursorExpired as error:
            raise _gone(error) from error
        with _found():
            cursor = self._run(claim_cursor, self._queue._twin, cursor)
        resume_at(cursor, seqs)
        self._cursor = cursor

    def _find(self, held: Boundary | None) -> AsyncCursor | None:
        """Return the cursor if it exists and retains rows."""
        cursor = self._run(find_cursor, self._queue._twin, self._name)
        if cursor is not None and not cursor.retain:
            raise Exists(
                f"queue {self._queue.name!r} has a cursor {self._name!r} that does not retain, so "
                "it is none of a pipeline; delete it, or give the pipeline another name",
                field="name",
            )
        if cursor is None or not is_dropped(cursor):
            return cursor
        spec = self._queue.spec()
        if held is not None and spec.keyed and spec.retention != "log":
            raise CursorExpired(
                f"cursor {self._name!r} held rows back for longer, or more of them, than the queue "
                "allows, and was dropped",
                field="boundary",
            )
        return None

    def _set(
        self, cursor: AsyncCursor | None, seqs: Sequence[int], held: Boundary | None
    ) -> AsyncCursor:
        """Create or reset the cursor to these seqs, where it stands elsewhere."""
        kept = None if cursor is None else _stands(cursor)
        self._see_whole(held, kept)
        queue = self._queue._twin
        found = self._run(partial(open_at, retain=True), queue, self._name, seqs)
        if _stands(found) != list(seqs) or is_dropped(found):
            found = self._run(reset_at, queue, self._name, seqs)
        # Checked again: rows may have been removed just before the cursor retained them.
        self._see_whole(held, kept)
        return found

    def _see_floor(self, held: Boundary) -> None:
        """Check that rows after `held` were not purged, by opening a cursor there."""
        name = f"look-{hashlib.sha256(self._name.encode()).hexdigest()[:24]}"
        cursor = self._run(partial(open_at, retain=False), self._queue._twin, name, _seqs(held))
        self._run(cursor.delete)

    def _see_whole(self, held: Boundary | None, kept: Sequence[int] | None) -> None:
        """Check that no rows after `held` were settled and removed; those after `kept` were
        retained.
        """
        spec = self._queue.spec()
        if held is None or spec.keyed or spec.retention == "log":
            # Removal from a log raises its floor, which is checked elsewhere; of a key, the newest
            # row counts.
            return
        with self._queue.snapshot() as snapshot:
            ends = snapshot.boundaries if kept is None else kept
            upto = at_seqs(held, list(map(max, _seqs(held), ends)))
            found = with_retained(narrow_snapshot(snapshot._twin, _seqs(held), _seqs(upto)))
            gone = rows_between(held, upto) - sum(batch.num_rows for batch in found.arrow())
        if gone:
            raise CursorExpired(
                f"{gone} rows after {_shown(held)} were settled, or expired, while no cursor kept "
                "them",
                field="boundary",
            )

    def _run(self, call: Callable[..., Coroutine[object, object, T]], *given: object) -> T:
        return self._queue._portal.run(partial(call, *given))

    def next(self, wait: float, seconds: float = limits.PIPELINE_PIN_SECONDS) -> Stretch | None:
        """Return the rows after the cursor, pinned for `seconds`, or None if no row arrives within
        `wait` seconds.
        """
        if self._cursor is None:
            raise Refused("the feed was not begun")
        call = partial(self._cursor.next, wait=wait, seconds=seconds)
        with _found():
            snapshot = self._queue._portal.run(call)
        return None if snapshot is None else Stretch(self._queue, snapshot)


def judge(name: str, boundary: Boundary, end: Boundary) -> None:
    """Check that a sink was filled from this queue, and not beyond its end.

    Raises:
        Refused: it was filled from another queue, or is ahead.
    """
    try:
        covered = end.covers(boundary)
    except Refused as error:
        raise Refused(f"sink {name!r}: {error.message}", field="boundary") from None
    if not covered:
        raise Refused(
            f"sink {name!r} is ahead of the queue: it holds rows up to "
            f"{_shown(boundary)}, and the queue ends at {_shown(end)}. The queue has lost rows; "
            "restore it, or rebuild the sink",
            field="boundary",
        )


def lowest_of(boundaries: Sequence[Boundary | None]) -> Boundary | None:
    """Return the boundary that all of them cover; None: one of them has no rows."""
    lowest: Boundary | None = None
    for boundary in boundaries:
        if boundary is None:
            return None
        lowest = boundary if lowest is None else _least(lowest, boundary)
    return lowest


def highest_of(boundaries: Sequence[Boundary]) -> Boundary:
    """Return the boundary that is furthest ahead."""
    return max(boundaries, key=lambda boundary: boundary.number)


def rows_between(after: Boundary | None, upto: Boundary) -> int:
    """Return the number of seqs between two boundaries."""
    return upto.number - (after.number if after is not None else 0)


def cut(after: Boundary, upto: Boundary, rows: int) -> Boundary:
    """Return the end of a span that begins at `after` and has at most `rows` seqs, taken shard by
    shard.
    """
    if not rows or rows_between(after, upto) <= rows:
        return upto
    seqs: list[int] = []
    for begin, end in zip(_seqs(after), _seqs(upto), strict=True):
        taken = min(rows, end - begin)
        rows -= taken
        seqs.append(begin + taken)
    return at_seqs(after, seqs)


def at_seqs(boundary: Boundary, seqs: Sequence[int]) -> Boundary:
    """Return the boundary moved to other seqs of the same queue."""
    [place] = boundary.places
    return Boundary((msgspec.structs.replace(place, seqs=tuple(seqs)),))


def _least(one: Boundary, other: Boundary) -> Boundary:
    return at_seqs(one, [min(pair) for pair in zip(_seqs(one), _seqs(other), strict=True)])


def _seqs(boundary: Boundary) -> tuple[int, ...]:
    [place] = boundary.places
    return place.seqs


def _stands(cursor: AsyncCursor) -> list[int]:
    return [position.seq for position in cursor.positions]


def _shown(boundary: Boundary) -> str:
    return "+".join(map(str, _seqs(boundary)))


def _boundary(queue: Queue, snapshot: Snapshot, seqs: Sequence[int]) -> Boundary:
    history, _ = snapshot.id
    shards = tuple(int(shard) for shard in queue.shards.ids)
    return Boundary((Place(queue.space, queue.name, shards, history.hex(), tuple(seqs)),))


# --- Rows of a queue with the columns of steps and sinks, converted without Spark ----------------

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.field("element", _HEADER))),
    pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("op", pa.string(), nullable=False),
    pa.field("snapshot", pa.int64(), nullable=False),
]
COLUMNS = pa.schema(_FIELDS)
"""The columns of a source's rows, as Spark's own reader returns them."""


def shaped(batches: Iterable[pa.RecordBatch], snapshot: int) -> Iterator[pa.RecordBatch]:
    """Convert rows of a snapshot to these columns, batch by batch; `snapshot` is its number."""
    for batch in batches:
        if batch.num_rows:
            shard: int = batch.column("shard")[0].as_py()
            yield Shaper(COLUMNS, shard, snapshot).shape(batch)


def small(batches: Iterable[pa.RecordBatch], snapshot: int) -> pa.Table | None:
    """Return all rows if they are few enough to be held in the driver, else None."""
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in shaped(batches, snapshot):
        rows += batch.num_rows
        size += batch.nbytes
        if rows > limits.PIPELINE_SMALL_ROWS or size > limits.PIPELINE_SMALL_BYTES:
            return None
        found.append(batch)
    # Spark does not accept a table without a batch.
    return pa.Table.from_batches(found, COLUMNS) if found else COLUMNS.empty_table()
