"""The queue that a pipeline reads: a retaining cursor of the pipeline's name, and its pinned rows.

Rule 1: where the pipeline goes on is said by its sinks, not by the cursor. The cursor keeps rows
from going, and never stands further than the sink that is furthest behind.
Rule 2: rows that a sink needs and that are gone end the run; they are never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.client.cursor import Cursor as AsyncCursor
from millrace.client.cursor import Snapshot
from millrace.client.ticket import go_on_at, narrowed, write_ticket
from millrace.client.vector import commit_at, open_at
from millrace.errors import CursorExpired, Exists, NotFound, Refused, SnapshotExpired, Stale
from millrace.pipeline.rows import shaped, small
from millrace.sinks.boundary import Boundary, Place, Span, begins
from millrace.sync.queue import Queue


class Lost(Exception):
    """The cursor or its pin is another one than it was: begin again where the sinks are.

    Somebody has deleted or reset the cursor, another run has moved it, or the pin's time is over.
    """


@contextmanager
def _found() -> Iterator[None]:
    try:
        yield
    except CursorExpired as error:
        raise _gone(error) from error
    except (NotFound, SnapshotExpired, Stale) as error:
        raise Lost(error.message) from error


def _gone(error: CursorExpired) -> CursorExpired:
    """Resetting the cursor would not help: the sinks say where to go on."""
    return CursorExpired(
        f"rows that a sink needs are gone from the queue ({error.message}); rewind it to the "
        "beginning, and it gets all that the queue still has, or to the end, and it goes on with "
        "what comes",
        field="boundary",
    )


class Stretch:
    """What the cursor offers: rows that stay as they are until they are committed."""

    def __init__(self, queue: Queue, snapshot: Snapshot) -> None:
        self._queue = queue
        self._snapshot = snapshot
        self.after = _boundary(queue, snapshot, snapshot.afters)
        self.upto = _boundary(queue, snapshot, snapshot.boundaries)

    def read(self, span: Span) -> pa.RecordBatchReader:
        """The rows of a span within it; whoever pulls them is told of a lost pin."""
        return self._part(span).arrow()

    def rows(self, span: Span) -> Iterator[pa.RecordBatch]:
        """The same, with the columns that sinks see."""
        with _found():
            yield from shaped(self.read(span), span.upto.number)

    def small(self, span: Span) -> pa.Table | None:
        """The same, where they are few enough to be held here; else None."""
        with _found():
            return small(self.read(span), span.upto.number)

    def whole(self) -> Span:
        """All rows of the queue up to its end, as of the pin."""
        return Span(begins(self.upto), self.upto)

    def ticket(self, span: Span) -> str:
        """The same, as text for those who read elsewhere."""
        return write_ticket(self._part(span))

    def _part(self, span: Span) -> Snapshot:
        return narrowed(self._snapshot, _seqs(span.after), _seqs(span.upto))

    def commit(self, upto: Boundary) -> None:
        """Every sink has what came up to here."""
        with _found():
            self._queue._portal.run(partial(commit_at, self._snapshot, _seqs(upto)))


class Feed:
    """A queue, and how far a pipeline has come in it."""

    def __init__(self, queue: Queue, name: str) -> None:
        self._queue = queue
        self._name = name
        self._cursor: AsyncCursor | None = None

    @property
    def queue(self) -> Queue:
        """The queue itself."""
        return self._queue

    def end(self) -> Boundary:
        """Where the queue ends now."""
        with self._queue.snapshot() as snapshot:
            return _boundary(self._queue, snapshot._twin, snapshot.boundaries)

    def begin(self, lowest: Boundary | None) -> None:
        """Read on after this boundary, the lowest of all sinks; None: from the beginning.

        Raises:
            CursorExpired: rows after it are gone.
            Exists: there is a cursor of this name that is not the pipeline's.
        """
        seqs = _seqs(lowest) if lowest is not None else (0,) * len(self._queue.shards.ids)
        try:
            self._cursor = self._queue._portal.run(partial(self._open, seqs))
        except CursorExpired as error:
            raise _gone(error) from error

    async def _open(self, seqs: Sequence[int]) -> AsyncCursor:
        queue = self._queue._twin
        try:
            cursor = await open_at(queue, self._name, seqs, retain=True)
        except Exists:
            raise Exists(
                f"queue {self._queue.name!r} has a cursor {self._name!r} that does not retain, so "
                "it is none of a pipeline; delete it, or give the pipeline another name",
                field="name",
            ) from None
        stands = [position.seq for position in cursor.positions]
        if any(seq > wanted for seq, wanted in zip(stands, seqs, strict=True)):
            await cursor.delete()
            cursor = await open_at(queue, self._name, seqs, retain=True)
        go_on_at(cursor, seqs)
        return cursor

    def next(self, wait: float) -> Stretch | None:
        """What comes after the sinks' boundary; None: nothing within `wait` seconds."""
        if self._cursor is None:
            raise Refused("the feed was not begun")
        call = partial(self._cursor.next, wait=wait, seconds=limits.PIPELINE_PIN_SECONDS)
        with _found():
            snapshot = self._queue._portal.run(call)
        return None if snapshot is None else Stretch(self._queue, snapshot)

    def forget(self) -> None:
        """Delete the cursor: rows are kept for it no longer."""
        with suppress(NotFound):
            self._queue.cursor(self._name, retain=True).delete()


def judge(name: str, boundary: Boundary, end: Boundary) -> None:
    """See that a sink was filled from this queue, and not beyond its end.

    Raises:
        Refused: it was not.
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
    """What all of them cover; None: one of them has nothing."""
    lowest: Boundary | None = None
    for boundary in boundaries:
        if boundary is None:
            return None
        lowest = boundary if lowest is None else _least(lowest, boundary)
    return lowest


def highest_of(boundaries: Sequence[Boundary | None]) -> Boundary | None:
    """How far the furthest is."""
    found = [boundary for boundary in boundaries if boundary is not None]
    return max(found, key=lambda boundary: boundary.number, default=None)


def rows_between(after: Boundary | None, upto: Boundary) -> int:
    """Seqs between two boundaries."""
    return upto.number - (after.number if after is not None else 0)


def cut(after: Boundary, upto: Boundary, rows: int) -> Boundary:
    """Where a span ends that begins here and holds so many seqs at most, shard by shard."""
    if not rows or rows_between(after, upto) <= rows:
        return upto
    seqs: list[int] = []
    for begin, end in zip(_seqs(after), _seqs(upto), strict=True):
        taken = min(rows, end - begin)
        rows -= taken
        seqs.append(begin + taken)
    return at_seqs(after, seqs)


def at_seqs(boundary: Boundary, seqs: Sequence[int]) -> Boundary:
    """The same queue, at other places."""
    [place] = boundary.places
    return Boundary((msgspec.structs.replace(place, seqs=tuple(seqs)),))


def _least(one: Boundary, other: Boundary) -> Boundary:
    return at_seqs(one, [min(pair) for pair in zip(_seqs(one), _seqs(other), strict=True)])


def _seqs(boundary: Boundary) -> tuple[int, ...]:
    [place] = boundary.places
    return place.seqs


def _shown(boundary: Boundary) -> str:
    return "+".join(map(str, _seqs(boundary)))


def _boundary(queue: Queue, snapshot: Snapshot, seqs: Sequence[int]) -> Boundary:
    history, _ = snapshot.id
    shards = tuple(int(shard) for shard in queue.shards.ids)
    return Boundary((Place(queue.space, queue.name, shards, history.hex(), tuple(seqs)),))
