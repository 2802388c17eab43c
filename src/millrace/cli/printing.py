"""Output of verbs: tables and progress bars for people, JSON lines for programs.

Rule 1: with JSON, each line is one object, whose `type` says what it describes.
Rule 2: in a pipe no text is cut, coloured or folded; on a terminal, a row is one line.
Rule 3: a place is SHARD:SEQ in JSON as well: as a number, many readers would round it.
Rule 4: text from messages is escaped before it is printed, and never parsed as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import click

from millrace import Place
from millrace.cli.bounds import COLUMN_CHARACTERS_MIN

if TYPE_CHECKING:
    from rich.progress import Progress


class TableColumn(NamedTuple):
    """A column of a table."""

    heading: str
    is_number: bool = False
    is_long: bool = False
    """True if the column may be cut on a narrow terminal; the last such column is cut first."""


class Printer:
    """Prints the results of a verb: text for people, or JSON lines."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def line(self, kind: str, fields: Mapping[str, object], text: str) -> None:
        """Print one result: `fields` as JSON, or the line of text."""
        click.echo(self.line_of(kind, fields, text))

    def line_of(self, kind: str, fields: Mapping[str, object], text: str) -> str:
        """Return the line that `line` prints, so that callers can write many at once."""
        return json.dumps({"type": kind, **_said(fields)}) if self.is_json else text

    def listing(self, kind: str, fields: Mapping[str, object], texts: Mapping[str, str]) -> None:
        """Print one result with many parts, one below the other."""
        if self.is_json:
            self.line(kind, fields, "")
            return
        width = max(map(len, texts))
        for name, text in texts.items():
            click.echo(f"{name.ljust(width)}  {text}")

    def table(
        self,
        kind: str,
        columns: Sequence[TableColumn],
        rows: Iterable[tuple[Mapping[str, object], Sequence[str]]],
        *,
        empty: str,
    ) -> None:
        """Print results of one kind as a table, or the note `empty` if there are none."""
        if self.is_json:
            for fields, _ in rows:
                self.line(kind, fields, "")
            return
        lines = [list(texts) for _, texts in rows]
        if lines:
            click.echo(_table(columns, lines))
        else:
            self.note(empty)

    def note(self, text: str) -> None:
        """Print a note to the error stream; with JSON, nothing."""
        if not self.is_json:
            click.echo(text, err=True)

    def aside(self, text: str) -> None:
        """Print a note that names this program, such as what it waits for."""
        self.note(f"millrace: {text}")

    def raw(self, data: bytes) -> None:
        """Write bytes to standard output, unchanged."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _said(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: object) -> object:
    if isinstance(value, Place):
        return str(value)
    if isinstance(value, Mapping):
        return _said(value)
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


def _fitting(columns: Sequence[TableColumn], widths: Sequence[int], room: int) -> list[int]:
    """Return column widths reduced to fit, as far as columns may be cut."""
    fitting = list(widths)
    for at in reversed(range(len(columns))):
        excess = sum(fitting) + 2 * (len(fitting) - 1) - room
        if columns[at].is_long and excess > 0:
            fitting[at] = min(fitting[at], max(fitting[at] - excess, COLUMN_CHARACTERS_MIN))
    return fitting


def _table(columns: Sequence[TableColumn], lines: list[list[str]]) -> str:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    widths = [
        max(cell_len(column.heading), *(cell_len(line[at]) for line in lines))
        for at, column in enumerate(columns)
    ]
    whole = sum(widths) + 2 * (len(widths) - 1)
    console = Console(
        width=None if is_terminal else whole, force_terminal=is_terminal, highlight=False
    )
    if is_terminal:
        widths = _fitting(columns, widths, console.width)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis" if column.is_long else "crop",
            width=width,
        )
    for line in lines:
        table.add_row(*map(Text, line))
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


class ProgressBar:
    """A progress bar on the error stream, if that is a terminal; without `total`, indeterminate."""

    def __init__(self, what: str, *, total: float | None) -> None:
        self._what = what
        self._total = total
        self._progress: Progress | None = None

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
            self._progress.add_task(self._what, total=self._total)
        return self

    def advance(self, by: float) -> None:
        """Add to the completed amount."""
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0], by)

    def reach(self, done: float, total: float) -> None:
        """Set the completed amount and the total."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
