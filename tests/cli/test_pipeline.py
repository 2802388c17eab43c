"""`millrace pipeline`: from the command line to a sink."""

from __future__ import annotations

from pathlib import Path

from tests.cli.desk import Desk
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import KIND


def declared(desk: Desk, more: str = "") -> Path:
    path = desk.home / "orders.toml"
    path.write_text(
        f'name = "orders"\n[source]\nqueue = "mail"\n[sinks.one]\nkind = "{KIND}"\n'
        f'path = "{desk.home / "one.db"}"\n{more}'
    )
    return path


def test_rows_are_carried(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    path = declared(desk)
    assert "nothing is wrong" in desk.text("pipeline", "validate", path)
    told = desk.one("pipeline", "run", path, "--once")
    ledger = Ledger(path=str(tmp_path / "one.db"))
    assert told["rows"] == len(ledger.lines()) > 0
    assert told["sinks"] == {"one": told["rows"]}
    assert desk.lines("pipeline", "run", path, "--once") == []


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    result = desk.call("pipeline", "validate", declared(desk, "stray = 1"))
    assert result.exit_code == 1
    assert "orders.toml, line 4: [sinks.one]" in result.stderr
