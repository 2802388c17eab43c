"""`millrace demo` and `millrace bench`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.desk import Desk


def test_the_demo_tells_what_to_try(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    lines = desk.text("demo").splitlines()[1:]
    assert len(lines) == 7
    assert all(line.startswith("  millrace ") for line in lines)


def test_the_demo_begins_with_a_new_folder(desk: Desk) -> None:
    result = desk.call("demo")
    assert result.exit_code == 1
    assert "--data PATH" in result.stderr


def test_the_bench_leaves_nothing_behind(desk: Desk) -> None:
    lines = desk.lines("bench", "--here", "--time", "50ms", "--size", 100)
    assert [line["name"] for line in lines] == ["publish_one", "publish_batches", "lease_settle"]
    assert all(
        isinstance(rate := line["messages_per_second"], float) and rate > 0 for line in lines
    )
    assert lines[2]["share"] is None
    assert [line["queue"] for line in desk.lines("queue", "list")] == ["mail", "orders"]


def test_the_bench_says_what_it_is_worth(tmp_path: Path) -> None:
    result = Desk(tmp_path).call("bench", "--time", "10ms")
    assert result.exit_code == 0
    assert "one short run" in result.stderr
    assert "publish, one by one" in result.stdout
