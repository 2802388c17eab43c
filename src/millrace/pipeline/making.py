"""Makers of the views that sinks read: `Plain` without steps; with Spark, see `sparked.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from millrace.pipeline.dead import LETTERS, keyless_letters, keyless_rows, told_of
from millrace.pipeline.declaration import SOURCE, Pipeline
from millrace.pipeline.sink_session import Brought, SinkSession
from millrace.pipeline.source import COLUMNS, Stretch
from millrace.sinks.base import Held
from millrace.sinks.boundary import Span


class Maker(Protocol):
    """Makes the views of a pipeline."""

    @property
    def is_stateful(self) -> bool:
        """True if a view depends on more than the rows of one span."""
        ...

    @property
    def is_parsing(self) -> bool:
        """True if only Spark knows the columns of the source, because bodies are parsed."""
        ...

    def views(self) -> Sequence[str]:
        """Return the names of all views."""
        ...

    def schema(self, view: str) -> pa.Schema:
        """Return the columns of a view."""
        ...

    def here(self, table: pa.Table, views: Sequence[str]) -> Mapping[str, pa.Table | None]:
        """Make these views of few rows in this process; None in place of a view with too many
        rows.
        """
        ...

    def stage(
        self, stretch: Stretch, span: Span, view: str, outlet: SinkSession, held: Held
    ) -> Brought:
        """Stage a view of many rows, which are never held in one process at once."""
        ...

    def batches(self, stretch: Stretch, view: str) -> Iterator[pa.RecordBatch]:
        """Yield a view of all rows of the queue, as of a pin, batch by batch."""
        ...


class Plain:
    """The views of a pipeline without steps: sinks get the rows unchanged."""

    is_stateful = False
    is_parsing = False

    def __init__(self, pipeline: Pipeline, keys: Mapping[str, Sequence[str]]) -> None:
        """`keys` has the key columns of each sink whose rows with a null key become dead
        letters.
        """
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

    def stage(
        self, stretch: Stretch, span: Span, view: str, outlet: SinkSession, held: Held
    ) -> Brought:
        """See `Maker.stage`: rows pass through batch by batch."""
        return outlet.stage_here(span, self._made(view, stretch.rows(span)), held)

    def batches(self, stretch: Stretch, view: str) -> Iterator[pa.RecordBatch]:
        """See `Maker.batches`."""
        return iter(self._made(view, stretch.rows(stretch.whole())))

    def _made(self, view: str, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        make = self._letters.get(view)
        return batches if make is None else make(batches)
