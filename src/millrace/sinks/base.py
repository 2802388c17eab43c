"""The contract of sinks.

A sink writes in two phases, so that many processes write and one commits. `stage` runs wherever the
rows are, in many processes concurrently, perhaps twice for the same rows, and its writes have no
effect until `commit`, which runs in one process and applies all rows of a span together with its
boundary. `millrace.testing.check_sink` tests every sink against this contract.

Rule 1: after `commit` has returned, rows and boundary are both durable. If it was interrupted,
`open` shows the result: never one without the other, or, if the store has no transactions, with
rows whose repetition is idempotent.

Rule 2: a span that was applied is never applied again (`goes_on`).

Rule 3: a fenced run changes nothing. `open` takes the sink over: it raises the fence, and runs that
opened it earlier are refused from then on (`Stale`).

Rule 4: rows are streamed in batches and never held in memory as a whole.

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
"""The column with the operation of a row: `put`, or `delete`. Without it, every row is a put."""

PUT, DELETE = "put", "delete"


class Held(msgspec.Struct, frozen=True):
    """A sink opened by one run: its flow, fence and boundary."""

    flow: str
    """Name of the flow: "pipeline/sink". Several flows may share a table; each has its own
    boundary.
    """
    fence: int
    """Rises with each opening of the flow; 0: the sink stores nothing and has no fence."""
    boundary: Boundary | None
    """The boundary up to which the sink has rows; None: it has none."""
    state: str = ""
    """State that the sink itself keeps until the next commit, such as a table's version."""


def overtaken(held: Held) -> Stale:
    """Return the error for a run whose flow was opened by another run."""
    return Stale(f"flow {held.flow!r} was opened again since; this run is over", field="fence")


class Task(msgspec.Struct, frozen=True):
    """Rows that are staged together: a part of a span."""

    held: Held
    span: Span
    part: str
    """Unique name of the attempt: no two calls of `stage` have the same."""


class Sink(Protocol):
    """A destination of rows. It is pickled to the processes that stage, without its connections."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify the row to replace or delete; empty: rows are only appended."""
        ...

    @property
    def lanes(self) -> int:
        """Number of lanes: rows of the same lane (`lane.py`) must be passed to one call of `stage`;
        0: any distribution is allowed.
        """
        ...

    def check(self, schema: pa.Schema) -> None:
        """Check that rows of this schema can be stored; nothing is written.

        Raises:
            Refused: a column is missing, or of a type that cannot be stored.
        """
        ...

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """Take the flow over, and create the table or index if it is missing.

        Raises:
            Retry: the server does not respond.
        """
        ...

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Write rows without effect until the commit; return the token that `commit` needs, which
        is small for any number of rows.

        Raises:
            Refused: the sink has a key, and that of a row is null.
            Stale: the flow was opened again by another run.
            Retry: the server does not respond; the same rows may be staged again, as another part.
        """
        ...

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """Apply the staged rows together with the boundary; a repeated call changes nothing.

        Raises:
            Stale: the flow was opened again by another run, or the span does not follow the sink's
                boundary.
            Retry: the server does not respond; `open` shows if the commit was done.
        """
        ...

    def clean(self, held: Held) -> None:
        """Remove staged data of interrupted runs, if it is old enough."""
        ...

    def close(self) -> None:
        """Close the connections of the sink."""
        ...


class Readable(Protocol):
    """A sink whose rows can be read back: `verify` compares them with the queue."""

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the sink, in any order; a column that it does not have is null."""
        ...


class Choosy(Protocol):
    """A readable sink that returns only some of the columns it was given."""

    def kept(self, columns: Sequence[str]) -> Sequence[str]:
        """Return the columns that `rows` returns unchanged."""
        ...


class Asked(Protocol):
    """A sink that reports its boundary without being opened."""

    def stands(self, flow: str) -> Boundary | None:
        """Return the boundary of a flow without taking it over; None: the flow or the table does
        not exist.

        Raises:
            Retry: the server does not respond.
        """
        ...


class Filed(Protocol):
    """A sink that is a table of Parquet files."""

    def files(self) -> tuple[Sequence[str], pa.Schema]:
        """Return the files that hold its rows now, and the columns of the table, for direct
        readers; a file may lack columns that were added after it.

        Raises:
            NotFound: the table does not exist.
            Invalid: its rows cannot be read from its files alone.
        """
        ...
