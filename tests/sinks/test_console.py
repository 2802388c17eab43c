"""Rows on the terminal."""

from __future__ import annotations

import pytest

from millrace.errors import Invalid
from millrace.sinks.base import DELETE, Task
from millrace.sinks.console import Console
from millrace.sinks.kinds import make_sink
from millrace.testing.check_sink import (
    SCHEMA,
    SinkChange,
    batch_of,
    puts,
    span,
)


def carry(sink: Console, *parts: list[SinkChange]) -> None:
    held = sink.open("orders/console", SCHEMA)
    assert held.boundary is None
    piece = span(0, 9)
    tokens = [
        sink.stage(Task(held, piece, str(at)), (batch_of([row]) for row in rows))
        for at, rows in enumerate(parts)
    ]
    done = sink.commit(held, piece, tokens)
    assert done.boundary == piece.upto
    assert sink.commit(done, piece, tokens) == done


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    carry(Console(), puts("a"), [SinkChange("b", None, DELETE, 2)])
    assert capsys.readouterr().out == "seq=1 key=a value=a1 op=put\n- seq=2 key=b op=delete\n"


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    carry(Console(form="table"), puts("a", "long"))
    assert capsys.readouterr().out.splitlines() == [
        "seq  key   value  op",
        "---  ----  -----  ---",
        "1    a     a1     put",
        "2    long  long1  put",
    ]


def test_no_more_than_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    carry(Console(rows=2), puts("a", "b", "c"), puts("d", "e"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[-1] == "… and 3 more rows"


def test_nothing_moves_the_cursor_of_who_looks_on(capsys: pytest.CaptureFixture[str]) -> None:
    carry(Console(width=8), [SinkChange("a", "\x1b[2J" + "x" * 20, seq=1)])
    assert "value=\\x1b[2J… " in capsys.readouterr().out


def test_a_setting_that_cannot_be() -> None:
    with pytest.raises(Invalid, match="sink 'console': rows: Expected `int` >= 1"):
        make_sink("console", {"rows": 0})
