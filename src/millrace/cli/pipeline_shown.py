"""How pipelines look on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from millrace.cli.printing import Column, Printer
from millrace.cli.words import counted

if TYPE_CHECKING:
    from rich.live import Live as RichLive
    from rich.table import Table

    from millrace.pipeline import Progress, SinkStatus

LAG_COLUMNS = [
    Column("SINK", is_long=True),
    Column("FROM"),
    Column("KIND"),
    Column("METHOD"),
    Column("AT", is_long=True),
    Column("LAG", is_number=True),
    Column("BYTES", is_number=True),
    Column("SECONDS", is_number=True),
]


def lag_fields(sink: SinkStatus) -> dict[str, object]:
    """A sink for programs."""
    lag = sink.lag
    return {
        "sink": sink.name,
        "from": sink.rows,
        "kind": sink.kind,
        "method": sink.method,
        "boundary": [list(place.seqs) for place in sink.boundary.places] if sink.boundary else None,
        "lag_rows": None if lag is None else lag.rows,
        "lag_bytes": None if lag is None else lag.bytes,
        "lag_seconds": None if lag is None else round(lag.seconds, 3),
        "why": sink.why,
        "is_asked": sink.is_asked,
    }


def lag_texts(sink: SinkStatus) -> tuple[str, ...]:
    """A sink for people."""
    at = "nothing yet"
    if sink.boundary is not None:
        at = " ".join("+".join(map(str, place.seqs)) for place in sink.boundary.places)
    lag = sink.lag
    behind = ("?", "?", sink.why or "?")
    if lag is not None:
        behind = (f"{lag.rows:,}", f"{lag.bytes:,}", f"{lag.seconds:,.1f}")
    if sink.boundary is not None and not sink.is_asked:
        at += " at least"
    return (sink.name, sink.rows, sink.kind, sink.method, at, *behind)


def progress_fields(progress: Progress) -> dict[str, object]:
    """What was carried, for programs."""
    return {
        "pipeline": progress.pipeline,
        "rows": progress.rows,
        "seconds": round(progress.seconds, 3),
        "lag": progress.lag,
        "sinks": {sink.name: sink.rows for sink in progress.sinks},
    }


def progress_line(progress: Progress) -> str:
    """What was carried, for people who read a log."""
    rate = progress.rows / progress.seconds if progress.seconds else 0
    sinks = ", ".join(f"{sink.name} {sink.rows:,}" for sink in progress.sinks)
    return f"{counted(progress.rows, 'row')}, {rate:,.0f}/s; {sinks}; {progress.lag:,} wait"


class Live:
    """Progress as it comes: a table that changes on a terminal, else lines."""

    def __init__(self, out: Printer) -> None:
        self._out = out
        self._live: RichLive | None = None
        self._rows = 0
        self._began = time.monotonic()

    def __enter__(self) -> Live:
        if not self._out.is_json and sys.stdout.isatty():
            from rich.live import Live as RichLive

            self._live = RichLive(refresh_per_second=4)
            self._live.start()
        return self

    def tell(self, progress: Progress) -> None:
        """Show how far it is."""
        self._rows += progress.rows
        if self._live is None:
            self._out.line("progress", progress_fields(progress), progress_line(progress))
        else:
            self._live.update(self._table(progress))

    def _table(self, progress: Progress) -> Table:
        from rich.table import Table

        passed = time.monotonic() - self._began
        now = progress.rows / progress.seconds if progress.seconds else 0
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("PIPELINE", "ROWS", "ROWS/S", "OVERALL/S", "LAG"):
            table.add_column(heading, justify="left" if heading == "PIPELINE" else "right")
        table.add_row(
            progress.pipeline,
            f"{self._rows:,}",
            f"{now:,.0f}",
            f"{self._rows / passed:,.0f}",
            f"{progress.lag:,}",
        )
        for sink in progress.sinks:
            table.add_row(f"  {sink.name}", f"{sink.rows:,}", "", "", "")
        return table

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
