"""`millrace pipeline`: from the command line to a sink."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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
    assert "orders: 0 steps, 1 sink; the declaration is valid" in desk.text(
        "pipeline", "validate", path
    )
    told = desk.one("pipeline", "run", path, "--once")
    ledger = Ledger(path=str(tmp_path / "one.db"))
    assert told["rows"] == len(ledger.lines()) > 0
    assert told["sinks"] == {"one": told["rows"]}
    assert desk.lines("pipeline", "run", path, "--once") == []


def test_runs_are_looked_at_judged_and_sent_back(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    path = declared(desk)
    plan = desk.lines("pipeline", "plan", path)
    assert [line["type"] for line in plan] == ["plan", "view", "sink"]
    assert plan[2]["boundary"] is None
    rows = desk.one("pipeline", "run", path, "--once")["rows"]
    desk.text("publish", "mail", "more")
    about, sink = desk.lines("pipeline", "status", path)
    assert (about["state"], sink["lag_rows"]) == ("stopped", 1)
    [line] = [line for line in desk.lines("top", "--times", 1) if line["type"] == "pipeline"]
    assert (line["pipeline"], line["sink"], line["lag"]) == ("orders", "one", 1)
    assert "1 wait" not in desk.text("pipeline", "status", path)
    verified = desk.one("pipeline", "verify", path)
    assert verified["is_right"]
    result = desk.call("pipeline", "rewind", path, "--to", "beginning", given="n\n")
    assert (result.exit_code, "one will have rows twice" in result.stderr) == (2, True)
    assert desk.one("pipeline", "rewind", path, "--to", "end", "--yes")["sinks"] == ["one"]
    assert desk.lines("pipeline", "run", path, "--once") == []
    assert isinstance(rows, int)


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    desk.text("pipeline", "run", declared(desk), "--once")
    desk.text("publish", "millrace/pipelines", "no record", "--key", "other")
    lines = [line for line in desk.lines("top", "--times", 1) if line["type"] == "pipeline"]
    assert [line["pipeline"] for line in lines] == ["orders"]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    result = desk.call("pipeline", "validate", declared(desk, "stray = 1"))
    assert result.exit_code == 1
    assert "orders.toml, line 7: [sinks.one] stray" in result.stderr
    assert "Hint: docs/guide/pipelines.md" in result.stderr
    path = declared(desk)
    result = desk.call("pipeline", "rewind", path, "--to", "end", "--sink", "two")
    assert (result.exit_code, "Hint: there are one\n" in result.stderr) == (1, True)
    path.write_text(path.read_text().replace("mail", "male"))
    result = desk.call("pipeline", "run", path, "--once")
    assert "Hint: `millrace queue list` lists the queues" in result.stderr


def test_rows_that_are_gone_come_with_a_way_on(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    path = declared(desk)
    desk.text("pipeline", "run", path, "--once")
    desk.text("publish", "mail", "never read")
    desk.text("queue", "purge", "mail", "--yes")
    result = desk.call("pipeline", "run", path, "--once")
    assert result.exit_code == 1
    assert "Hint: `millrace pipeline rewind FILE --to beginning`, or `--to end`" in result.stderr
    desk.text("pipeline", "rewind", path, "--to", "end", "--yes")
    assert desk.lines("pipeline", "run", path, "--once") == []
    assert "one: not compared: it was begun" in desk.text("pipeline", "verify", path)


def test_steps_without_spark_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    path = declared(desk, '[steps.all]\nsql = "SELECT * FROM source"\n')
    monkeypatch.delitem(sys.modules, "millrace.pipeline.sparked", raising=False)
    for name in ["pyspark", *(name for name in sys.modules if name.startswith("pyspark."))]:
        monkeypatch.setitem(sys.modules, name, None)
    result = desk.call("pipeline", "run", path, "--once")
    assert (result.exit_code, "install millrace[spark]" in result.stderr) == (1, True)
