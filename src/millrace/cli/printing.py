"""Where the answers of verbs go: tables for people, lines of JSON for programs.

Rule 1: with JSON, each line is one object, whose `type` says what it describes.
Rule 2: in a pipe no text is cut, coloured or folded; on a terminal, a row is one line.
Rule 3: a place is SHARD:SEQ in JSON as well: as a number, many readers would round it.
Rule 4: what comes from a message was escaped before it came here, and is never read as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import click

from millrace import Place
from millrace.cli.bounds import COLUMN_CHARACTERS_MIN


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    is_number: bool = False
    is_long: bool = False
    """It may be cut where the terminal is too narrow; the last such column first."""


class Printer:
    """Says what a verb has to say."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def line(self, kind: str, fields: Mapping[str, object], text: str) -> None:
        """Say one thing: `fields` in JSON, or the line of text."""
        click.echo(self.line_of(kind, fields, text))

    def line_of(self, kind: str, fields: Mapping[str, object], text: str) -> str:
        """The line that `line` says, for those who say many at once."""
        return json.dumps({"type": kind, **_said(fields)}) if self.is_json else text

    def listing(self, kind: str, fields: Mapping[str, object], texts: Mapping[str, str]) -> None:
        """Say one thing with many parts, one below the other."""
        if self.is_json:
            self.line(kind, fields, "")
            return
        width = max(map(len, texts))
        for name, text in texts.items():
            click.echo(f"{name.ljust(width)}  {text}")

    def table(
        self,
        kind: str,
        columns: Sequence[Column],
        rows: Iterable[tuple[Mapping[str, object], Sequence[str]]],
        *,
        empty: str,
    ) -> None:
        """Say many things of a kind, or `empty` if there are none."""
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
        """Say something to people that is not part of the answer."""
        if not self.is_json:
            click.echo(text, err=True)

    def aside(self, text: str) -> None:
        """Say to people what the work waits for."""
        self.note(f"millrace: {text}")

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
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


def _fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Widths that fit, as far as columns may be cut."""
    fitting = list(widths)
    for at in reversed(range(len(columns))):
        excess = sum(fitting) + 2 * (len(fitting) - 1) - room
        if columns[at].is_long and excess > 0:
            fitting[at] = min(fitting[at], max(fitting[at] - excess, COLUMN_CHARACTERS_MIN))
    return fitting


def _table(columns: Sequence[Column], lines: list[list[str]]) -> str:
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
