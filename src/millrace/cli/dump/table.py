"""Output of `millrace dump`: tables of plain text, or JSON lines.

Rule 1: tables of any length are printed in pages, whose column widths are found page by page.
Rule 2: with `--json`, each line is one object, whose `type` says what it describes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click

from millrace.cli.bounds import TABLE_ROWS
from millrace.cli.formatting import Fields, Value


class DumpColumn(NamedTuple):
    """A column of a table: its field and its heading."""

    field: str
    heading: str
    is_number: bool = False


class DumpOutput:
    """Prints results as lines of text or of JSON."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def write(self, kind: str, fields: Fields, lines: Iterable[str]) -> None:
        """Print one result: `fields` as JSON, or `lines` as text."""
        if self.is_json:
            click.echo(json.dumps({"type": kind, **fields}, ensure_ascii=True))
            return
        for line in lines:
            click.echo(line)

    def table(
        self, kind: str, columns: Sequence[DumpColumn], rows: Iterable[tuple[Fields, Fields]]
    ) -> int:
        """Print results of one kind: each as the fields for JSON and the texts of its columns.

        Returns the number of results.
        """
        count = 0
        page: list[list[str]] = []
        for fields, texts in rows:
            count += 1
            if self.is_json:
                self.write(kind, fields, ())
                continue
            page.append([_text(texts.get(column.field)) for column in columns])
            if len(page) == TABLE_ROWS:
                self._page(columns, page)
                page = []
        if page:
            self._page(columns, page)
        return count

    def _page(self, columns: Sequence[DumpColumn], page: list[list[str]]) -> None:
        lines = [[column.heading for column in columns], *page]
        widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
        for line in lines:
            cells = [
                text.rjust(width) if column.is_number else text.ljust(width)
                for text, width, column in zip(line, widths, columns, strict=True)
            ]
            click.echo("  ".join(cells).rstrip())

    def heading(self, text: str) -> None:
        """Print a heading; JSON needs none, since each line has a `type`."""
        if not self.is_json:
            click.echo(f"\n{text}")


def note(text: str) -> None:
    """Print a note to the error stream, beside the result."""
    click.echo(f"note: {text}", err=True)


def _text(value: Value) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
