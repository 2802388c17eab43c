"""What makes views of rows: nothing at all, or Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from millrace.pipeline.dead import LETTERS, keyless_letters, keyless_rows, told_of
from millrace.pipeline.declaration import SOURCE, Pipeline
from millrace.pipeline.feed import Stretch
from millrace.pipeline.outlet import Brought, Outlet
from millrace.pipeline.rows import COLUMNS
from millrace.sinks.base import Held
from millrace.sinks.boundary import Span


class Maker(Protocol):
    """Makes the views of a pipeline."""

    @property
    def is_stateful(self) -> bool:
        """Whether a view depends on more than the rows of one span."""
        ...

    @property
    def is_parsing(self) -> bool:
        """Whether only Spark knows what the columns of the source are."""
        ...

    def views(self) -> Sequence[str]:
        """The names of all views."""
        ...

    def schema(self, view: str) -> pa.Schema:
        """The columns of a view."""
        ...

    def here(self, table: pa.Table, views: Sequence[str]) -> Mapping[str, pa.Table | None]:
        """These views of few rows, in this process; None: a step makes too many of them."""
        ...

    def stage(self, stretch: Stretch, span: Span, view: str, outlet: Outlet, held: Held) -> Brought:
        """Stage a view of many rows; they are never all in one place."""
        ...

    def batches(self, stretch: Stretch, view: str) -> Iterator[pa.RecordBatch]:
        """A view of all rows of the queue, as of a pin, batch by batch."""
        ...


class Plain:
    """A pipeline without steps: its sinks get the rows as they are."""

    is_stateful = False
    is_parsing = False

    def __init__(self, pipeline: Pipeline, keys: Mapping[str, Sequence[str]]) -> None:
        """`keys` has the key of each sink whose rows without one become dead letters."""
        self._letters = {
            keyless_rows(name): partial(
                keyless_letters, key=key, told=told_of(pipeline, view=SOURCE, sink=name)
            )
            for name, key in keys.items()
        }

    def views(self) -> Sequence[str]:
        """See `Maker.views`."""
        return [SOURCE, *self._letters]

    def schema(self, view: str) -> pa.Schema:
        """See `Maker.schema`."""
        return LETTERS if view in self._letters else COLUMNS

    def here(self, table: pa.Table, views: Sequence[str]) -> Mapping[str, pa.Table | None]:
        """See `Maker.here`."""
        return {
            view: pa.Table.from_batches(self._made(view, table.to_batches()), self.schema(view))
            if view in self._letters
            else table
            for view in views
        }

    def stage(self, stretch: Stretch, span: Span, view: str, outlet: Outlet, held: Held) -> Brought:
        """See `Maker.stage`: they pass through batch by batch."""
        return outlet.stage_here(span, self._made(view, stretch.rows(span)), held)

    def batches(self, stretch: Stretch, view: str) -> Iterator[pa.RecordBatch]:
        """See `Maker.batches`."""
        return iter(self._made(view, stretch.rows(stretch.whole())))

    def _made(self, view: str, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        make = self._letters.get(view)
        return batches if make is None else make(batches)
