"""The queue that a pipeline reads: a retaining cursor of the pipeline's name, and its pinned rows.

Rule 1: where the pipeline goes on is said by its sinks, not by the cursor. The cursor keeps rows
from going, and never stands further than the sink that is furthest behind.
Rule 2: rows that a sink needs and that are gone end the run; they are never skipped. While the
cursor stands where it should, it keeps them. Where it has to be made anew or set back, those of a
queue that is worked on are counted: its seqs have no holes but rows that went.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.client.cursor import Cursor as AsyncCursor
from millrace.client.cursor import Snapshot
from millrace.client.ticket import go_on_at, narrowed, with_kept, write_ticket
from millrace.client.vector import (
    claim_cursor,
    commit_at,
    find_cursor,
    is_dropped,
    open_at,
    reset_at,
)
from millrace.errors import (
    CursorExpired,
    Exists,
    Fenced,
    NotFound,
    Refused,
    SnapshotExpired,
    Stale,
)
from millrace.pipeline.rows import shaped, small
from millrace.sinks.boundary import Boundary, Place, Span, begins
from millrace.sync.queue import Queue

T = TypeVar("T")


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
    except Fenced as error:
        raise Fenced(
            "another run of this pipeline has taken over, and has its cursor; end this one",
            field=error.field,
        ) from error
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

    def begin(self, lowest: Boundary | None, held: Boundary | None = None) -> None:
        """Read on after `lowest`, where the sink that is furthest behind goes on; None: from the
        beginning.

        `held` is the lowest of what sinks hold: rows after it must all be there.

        Raises:
            CursorExpired: some are gone.
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
        go_on_at(cursor, seqs)
        self._cursor = cursor

    def _find(self, held: Boundary | None) -> AsyncCursor | None:
        """The cursor, if it is there and keeps rows."""
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
        """The cursor at these seqs, where it does not stand."""
        kept = None if cursor is None else _stands(cursor)
        self._see_whole(held, kept)
        queue = self._queue._twin
        found = self._run(partial(open_at, retain=True), queue, self._name, seqs)
        if _stands(found) != list(seqs) or is_dropped(found):
            found = self._run(reset_at, queue, self._name, seqs)
        # What went just before the cursor kept it.
        self._see_whole(held, kept)
        return found

    def _see_floor(self, held: Boundary) -> None:
        """See that rows after `held` were not purged, by a cursor that begins there."""
        name = f"look-{hashlib.sha256(self._name.encode()).hexdigest()[:24]}"
        cursor = self._run(partial(open_at, retain=False), self._queue._twin, name, _seqs(held))
        self._run(cursor.delete)

    def _see_whole(self, held: Boundary | None, kept: Sequence[int] | None) -> None:
        """See that rows after `held` were not settled and let go; those after `kept` were not."""
        spec = self._queue.spec()
        if held is None or spec.keyed or spec.retention == "log":
            # What goes from a log raises its floor; of a key the newest row counts.
            return
        with self._queue.snapshot() as snapshot:
            ends = snapshot.boundaries if kept is None else kept
            upto = at_seqs(held, list(map(max, _seqs(held), ends)))
            found = with_kept(narrowed(snapshot._twin, _seqs(held), _seqs(upto)))
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
        """What comes after the sinks' boundary, pinned for `seconds`; None: nothing within `wait`
        seconds."""
        if self._cursor is None:
            raise Refused("the feed was not begun")
        call = partial(self._cursor.next, wait=wait, seconds=seconds)
        with _found():
            snapshot = self._queue._portal.run(call)
        return None if snapshot is None else Stretch(self._queue, snapshot)


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


def highest_of(boundaries: Sequence[Boundary]) -> Boundary:
    """How far the furthest is."""
    return max(boundaries, key=lambda boundary: boundary.number)


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


def _stands(cursor: AsyncCursor) -> list[int]:
    return [position.seq for position in cursor.positions]


def _shown(boundary: Boundary) -> str:
    return "+".join(map(str, _seqs(boundary)))


def _boundary(queue: Queue, snapshot: Snapshot, seqs: Sequence[int]) -> Boundary:
    history, _ = snapshot.id
    shards = tuple(int(shard) for shard in queue.shards.ids)
    return Boundary((Place(queue.space, queue.name, shards, history.hex(), tuple(seqs)),))
