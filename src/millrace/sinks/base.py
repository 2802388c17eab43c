"""What a sink promises.

A sink is told of rows in two steps, so that many may bring them and one makes them count. `stage`
runs wherever the rows are, in many processes at once, perhaps twice for the same rows, and what it
wrote counts for nothing until `commit`, which runs in one place and makes all of a span count
together with its boundary. `millrace.testing.check_sink` holds every sink to this.

Rule 1: after `commit` has returned, the rows and the boundary are both there, for good. If it was
cut off, `open` tells whether they are: never the one without the other, or, where the place knows
no transactions, with rows whose repetition is harmless.
Rule 2: a span that was applied is never applied again (`goes_on`).
Rule 3: who was overtaken changes nothing. `open` takes the sink over: it raises the fence, and
whoever opened it before is refused from then on (`Stale`).
Rule 4: nothing is read into memory whole: batches come one by one.
Rule 5: a sink with a key takes no row whose key is null (`null_key.py`), put or delete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from millrace.errors import Stale
from millrace.sinks.boundary import Boundary, Span

OP = "op"
"""The column that says what a row does: `put`, or `delete`. Without it, every row is a put."""

PUT, DELETE = "put", "delete"


class Held(msgspec.Struct, frozen=True):
    """A sink in the hands of one run."""

    flow: str
    """Whose: "pipeline/sink". Several flows may share a table; each has its own boundary."""
    fence: int
    """Rises each time that somebody opens the flow; 0: the sink keeps nothing, and knows none."""
    boundary: Boundary | None
    """What is in the sink; None: nothing came yet."""
    state: str = ""
    """What the sink itself wants to remember until the next commit, such as a table's version."""


def overtaken(held: Held) -> Stale:
    """The error for a run that somebody else has taken the flow over from."""
    return Stale(f"flow {held.flow!r} was opened again since; this run is over", field="fence")


class Task(msgspec.Struct, frozen=True):
    """Rows that are staged together: a part of a span."""

    held: Held
    span: Span
    part: str
    """Names the attempt: no two calls of `stage` ever have the same."""


class Sink(Protocol):
    """Where rows are carried to. It is pickled to those who stage; it holds no connection then."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that name what a row replaces, or deletes; empty: rows are only added."""
        ...

    @property
    def lanes(self) -> int:
        """Rows of the same lane (`lane.py`) must come to one call of `stage`; 0: it does not
        matter."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """See that rows like these can be taken; nothing is written.

        Raises:
            Refused: a column is missing, or of a type that cannot be stored.
        """
        ...

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """Take the flow over, making what is missing: a table, an index.

        Raises:
            Retry: nobody answers there.
        """
        ...

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Write rows that do not count yet; returns what `commit` has to know of them, which is
        little, however many they are.

        Raises:
            Refused: the sink has a key, and that of a row is null.
            Stale: somebody else has opened the flow since.
            Retry: nobody answers there; the same rows may be staged again, as another part.
        """
        ...

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """Make what was staged count, with the boundary; a repeat changes nothing.

        Raises:
            Stale: somebody else has opened the flow since, or the span does not go on where the
                sink stands.
            Retry: nobody answers there; whether it was done is told by `open`.
        """
        ...

    def clean(self, held: Held) -> None:
        """Drop what was staged by runs that were cut off, where it is old enough."""
        ...

    def close(self) -> None:
        """Let connections go."""
        ...


class Readable(Protocol):
    """A sink whose rows can be read back: `verify` compares them with the queue."""

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """What is in it, in no order; a column that it has not is null."""
        ...


class Choosy(Protocol):
    """A readable sink that does not give back all that it is brought."""

    def kept(self, columns: Sequence[str]) -> Sequence[str]:
        """Those of these columns that `rows` gives back as they came."""
        ...


class Asked(Protocol):
    """A sink that can be asked how far it is by those who do not run it."""

    def stands(self, flow: str) -> Boundary | None:
        """What is in it of a flow, which is not taken over; None: nothing, or there is no place.

        Raises:
            Retry: nobody answers there.
        """
        ...


class Filed(Protocol):
    """A sink that is a table of Parquet files."""

    def files(self) -> tuple[Sequence[str], pa.Schema]:
        """The files that hold its rows now, and the columns of the table, for those who read them
        themselves; a file may lack columns that were added after it.

        Raises:
            NotFound: there is no such table.
            Invalid: its rows are more than what stands in its files.
        """
        ...
