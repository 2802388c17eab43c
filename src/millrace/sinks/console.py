"""A sink that prints rows on the terminal.

It stores nothing, so that it has no boundary: every run prints all rows from the beginning. Each
part carries its first rows to the commit, which prints them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Literal

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.decoding import decode_json
from millrace.sinks.base import DELETE, OP, Held, Task
from millrace.sinks.boundary import Span, goes_on
from millrace.sinks.wording import to_text


class _Staged(msgspec.Struct, frozen=True, array_like=True):
    rows: int
    names: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


class Console(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prints rows to the standard output of the process that commits."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=limits.CONSOLE_ROWS_MAX)] = limits.CONSOLE_ROWS
    """Number of rows of each span that are printed; the others are counted."""
    form: Literal["lines", "table"] = "lines"
    width: Annotated[int, msgspec.Meta(ge=1, le=limits.CONSOLE_WIDTH_MAX)] = limits.CONSOLE_WIDTH
    """Number of characters of a value that are printed."""

    @property
    def key(self) -> tuple[str, ...]:
        """Rows are only appended: deletes are printed as such."""
        return ()

    @property
    def lanes(self) -> int:
        """See `Sink.lanes`; any distribution is allowed."""
        return 0

    def check(self, schema: pa.Schema) -> None:
        """Accept every schema, since every type can be printed."""

    def open(self, flow: str, schema: pa.Schema) -> Held:
        """See `Sink.open`; it never has a boundary."""
        return Held(flow, 0, None)

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        """See `Sink.stage`."""
        rows, names = 0, tuple[str, ...]()
        lines: list[tuple[str, ...]] = []
        for batch in batches:
            names = tuple(batch.schema.names)
            for row in islice(batch.slice(0, self.rows).to_pylist(), self.rows - len(lines)):
                lines.append(tuple(self._text(value) for value in row.values()))
            rows += batch.num_rows
        return msgspec.json.encode(_Staged(rows, names, tuple(lines)))

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        """Print the rows, unless this run has printed the span already."""
        if goes_on(held.boundary, span):
            parts = [decode_json(one, _Staged) for one in staged]
            for line in self._lines(parts):
                sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        return msgspec.structs.replace(held, boundary=span.upto)

    def clean(self, held: Held) -> None:
        """Do nothing, since nothing is staged."""

    def close(self) -> None:
        """Do nothing, since the sink has no connection."""

    def _lines(self, parts: Sequence[_Staged]) -> Iterator[str]:
        names = next((part.names for part in parts if part.lines), ())
        lines = [line for part in parts for line in part.lines][: self.rows]
        if self.form == "table" and lines:
            widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
            yield _padded(names, widths)
            yield _padded(["-" * width for width in widths], widths)
            yield from (_padded(line, widths) for line in lines)
        else:
            at = names.index(OP) if OP in names else -1
            for line in lines:
                mark = "- " if at >= 0 and line[at] == DELETE else ""
                pairs = (f"{name}={text}" for name, text in zip(names, line, strict=True) if text)
                yield mark + " ".join(pairs)
        more = sum(part.rows for part in parts) - len(lines)
        if more > 0:
            yield f"… and {more:,} more rows"

    def _text(self, value: object) -> str:
        # Control characters in values could manipulate the terminal.
        text = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode()
            for letter in to_text(value)[: self.width + 1]
        )
        return text if len(text) <= self.width else f"{text[: self.width - 1]}…"


def _padded(texts: Sequence[str], widths: Sequence[int]) -> str:
    pairs = zip(texts, widths, strict=True)
    return "  ".join(text.ljust(width) for text, width in pairs).rstrip()
