"""Common settings of tables of files, and their validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.errors import Invalid, NotFound, Retry, Stale
from millrace.sinks.base import OP, Held
from millrace.sinks.boundary import Boundary, Span, goes_on
from millrace.sinks.columns import stored
from millrace.sinks.lane import check_key
from millrace.sinks.rewrite import Layout
from millrace.sinks.wording import masked


class FlowState(msgspec.Struct, frozen=True):
    """Fence and boundary of a flow, as stored in a table."""

    fence: int = 0
    """0: the flow was never opened."""
    boundary: Boundary | None = None


class Lake(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a table in a folder.

    Raises:
        Invalid: they contradict each other.
    """

    path: str
    """The folder, which must have the same path in every process that stages."""
    mode: Literal["append", "upsert"] = "append"
    """append: rows are only added; upsert: they replace rows with the same key."""
    key: tuple[str, ...] = ()
    """For upsert: the columns that identify the row to replace or delete."""
    lanes: int = 0
    """For upsert: number of hash buckets of the table, which is the maximum number of concurrent
    writers.
    """
    evolve: bool = True
    """True if columns of the rows that the table lacks are added to it."""

    def __post_init__(self) -> None:
        if not self.path or "://" in self.path:
            raise Invalid(
                f"path {masked(self.path)!r} is not a folder; mount the store that it is in",
                field="path",
            )
        if any(letter in self.path for letter in "%?#"):
            raise Invalid(
                f"path {self.path!r} has %, ? or #, which readers of lakes take for something "
                "else; use another name",
                field="path",
            )
        if self.mode == "append":
            if self.key or self.lanes:
                wrong = "key" if self.key else "lanes"
                raise Invalid(
                    f"{wrong} is for mode = 'upsert'; in mode 'append' rows are only added",
                    field=wrong,
                )
            return
        if not self.key:
            raise Invalid("mode = 'upsert' needs key: the columns that name a row", field="key")
        if not 0 <= self.lanes <= limits.LAKE_LANES_MAX:
            raise Invalid(
                f"lanes is {self.lanes}; it is between 1 and {limits.LAKE_LANES_MAX}",
                field="lanes",
                limit=limits.LAKE_LANES_MAX,
            )
        if not self.lanes:
            msgspec.structs.force_setattr(self, "lanes", limits.LAKE_LANES)

    @property
    def root(self) -> Path:
        """The absolute path of the folder."""
        return Path(self.path).absolute()

    @property
    def layout(self) -> Layout:
        """The layout of the files of an upserted table."""
        return Layout(self.key, self.lanes)

    def columns(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns that are stored: if deletes are applied, `op` is not."""
        if self.mode == "append" or OP not in rows.names:
            return rows
        return rows.remove(rows.get_field_index(OP))

    def busy(self) -> Retry:
        """Return the error after too many concurrent commits by other writers."""
        return Retry(
            f"others have committed to {self.path} {limits.LAKE_COMMIT_TRIES} times in between; "
            "try again",
            field="path",
            limit=limits.LAKE_COMMIT_TRIES,
        )

    def check_rows(self, schema: pa.Schema, lake: str) -> None:
        """Check that rows of this schema can be stored, and have the key.

        Raises:
            Invalid: they cannot, or have not.
        """
        check_key(schema, self.key)
        if OP in schema.names and not pa.types.is_string(stored(schema, lake).field(OP).type):
            raise Invalid(
                f"column {OP!r} is {schema.field(OP).type}; it is a text, put or delete", field=OP
            )
        stored(schema, lake)


@contextmanager
def answers(path: str, *errors: type[Exception]) -> Iterator[None]:
    """Translate errors of the disk and of a library into `Retry`."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *errors)):
            raise
        raise Retry(f"the table {path} does not answer: {error}", field="path") from error


def is_next(held: Held, span: Span, state: FlowState) -> bool:
    """Return True if the holder of a flow may apply a span now, False if it was applied already.

    Raises:
        Stale: the flow was opened again by another run, or the span does not follow its boundary.
    """
    if state.fence != held.fence:
        raise Stale(
            f"{held.flow} was opened again since (fence {state.fence}, this run has "
            f"{held.fence}): another run has taken over; stop this one",
            field="fence",
        )
    return goes_on(state.boundary, span)


def names_of(paths: Iterable[str]) -> str:
    """Format the first few of many names, for a message."""
    found = sorted(paths)
    return ", ".join(found[:3]) + (" …" if len(found) > 3 else "")


def no_table(path: str, lake: str) -> NotFound:
    """Return the error for reading a table that does not exist."""
    return NotFound(f"there is no {lake} table in {path}", field="path")
