"""What makes views of rows: nothing at all, or Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from millrace.pipeline.feed import Stretch
from millrace.pipeline.outlet import Outlet
from millrace.pipeline.rows import COLUMNS
from millrace.sinks.base import Held
from millrace.sinks.boundary import Span


class Maker(Protocol):
    """Makes the views of a pipeline."""

    def schema(self, view: str) -> pa.Schema:
        """The columns of a view."""
        ...

    def here(self, table: pa.Table, views: Sequence[str]) -> Mapping[str, pa.Table]:
        """These views of few rows, in this process."""
        ...

    def stage(
        self, stretch: Stretch, span: Span, view: str, outlet: Outlet, held: Held
    ) -> Sequence[bytes]:
        """Stage a view of many rows; they are never all in one place."""
        ...


class Plain:
    """A pipeline without steps: its sinks get the rows as they are."""

    def schema(self, view: str) -> pa.Schema:
        """See `Maker.schema`."""
        return COLUMNS

    def here(self, table: pa.Table, views: Sequence[str]) -> Mapping[str, pa.Table]:
        """See `Maker.here`."""
        return dict.fromkeys(views, table)

    def stage(
        self, stretch: Stretch, span: Span, view: str, outlet: Outlet, held: Held
    ) -> Sequence[bytes]:
        """See `Maker.stage`: they pass through batch by batch."""
        return outlet.stage_here(span, stretch.rows(span), held)
