"""How values look on a terminal and in JSON.

Rule 1: what comes from a message or from a file is never shown raw: control characters could
command the terminal.
Rule 2: text is shortened, JSON is not, but for bodies: they may be large, and whole ones are had
from the engine.
Rule 3: with `--json`, each line is one object, whose `type` says what it describes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import click

from millrace.cli.bounds import SHOWN_BYTES, SHOWN_RANGES, TABLE_ROWS

if TYPE_CHECKING:
    from pyroaring import BitMap64

Value: TypeAlias = str | int | float | bool | Sequence["Value"] | Mapping[str, "Value"] | None
"""What JSON can say."""

Fields = Mapping[str, Value]


class Column(NamedTuple):
    """A column of a table: which field it shows, and under what heading."""

    field: str
    heading: str
    is_number: bool = False


class Output:
    """Where a verb's answers go: lines of text, or lines of JSON."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def write(self, kind: str, fields: Fields, lines: Iterable[str]) -> None:
        """Say one thing: `fields` in JSON, `lines` as text."""
        if self.is_json:
            click.echo(json.dumps({"type": kind, **fields}, ensure_ascii=True))
            return
        for line in lines:
            click.echo(line)

    def table(
        self, kind: str, columns: Sequence[Column], rows: Iterable[tuple[Fields, Fields]]
    ) -> int:
        """Say many things of a kind: each as the fields for JSON and the texts of its columns.

        Returns how many there were.
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

    def _page(self, columns: Sequence[Column], page: list[list[str]]) -> None:
        lines = [[column.heading for column in columns], *page]
        widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
        for line in lines:
            cells = [
                text.rjust(width) if column.is_number else text.ljust(width)
                for text, width, column in zip(line, widths, columns, strict=True)
            ]
            click.echo("  ".join(cells).rstrip())

    def heading(self, text: str) -> None:
        """Begin a part; in JSON every line says by itself what it is."""
        if not self.is_json:
            click.echo(f"\n{text}")


def note(text: str) -> None:
    """Say something about the answer that is not part of it."""
    click.echo(f"note: {text}", err=True)


# --- Values ------------------------------------------------------------------------------------


def escaped(data: bytes | str) -> str:
    """The text with everything escaped that is not printable, so that no two look the same."""
    return "".join(map(_shown, _characters(data)))


def _characters(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def _shown(character: str) -> str:
    if character.isprintable() and character != "\\":
        return character
    if "\udc80" <= character <= "\udcff":
        # A byte that is not part of any character.
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def shortened(data: bytes | None) -> str:
    """A body, key or header as text: its beginning, and how long it is if that is not all."""
    if data is None:
        return "null"
    pieces = [_shown(character) for character in _characters(data[:SHOWN_BYTES])]
    lengths = list(accumulate(map(len, pieces)))
    text = "".join(pieces[: bisect_right(lengths, SHOWN_BYTES)])
    if len(data) <= SHOWN_BYTES and len(text) == sum(map(len, pieces)):
        return f'"{text}"'
    return f'"{text}"… ({len(data)} bytes)'


def shown_bytes(data: bytes | None) -> Value:
    """A body, key or header for JSON: how long it is, and its beginning."""
    if data is None:
        return None
    return {"bytes": len(data), "text": escaped(data[:SHOWN_BYTES])}


def ranges(seqs: BitMap64) -> list[tuple[int, int]]:
    """The set as ranges, both ends included."""
    if not seqs:
        return []
    # Verbs that show no sets need not wait for it.
    import numpy as np

    numbers = np.frombuffer(seqs.to_array(), np.uint64)
    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts = [int(numbers[0]), *numbers[ends + 1].tolist()]
    lasts = [*numbers[ends].tolist(), int(numbers[-1])]
    return list(zip(firsts, lasts, strict=True))


def ranges_text(found: Sequence[tuple[int, int]]) -> str:
    """Ranges of seqs as text, shortened."""
    if not found:
        return "none"
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in found[:SHOWN_RANGES]]
    count = sum(high - low + 1 for low, high in found)
    if len(found) > SHOWN_RANGES:
        shown.append(f"… ({count} in all)")
    return ", ".join(shown)


def time_text(time_ms: int) -> str:
    """Milliseconds since 1970 as a date, in UTC; the number itself where it is no date."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def size_text(count: int) -> str:
    """A number of bytes, in the largest unit that keeps three digits."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _text(value: Value) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
