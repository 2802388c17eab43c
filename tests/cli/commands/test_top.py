"""`millrace top`: the queues as they are, and what has moved since the last look."""

from __future__ import annotations

from pathlib import Path

from millrace import sync
from tests.cli.desk import Desk


def test_it_shows_every_queue_the_deepest_first(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    desk.text("publish", "mail", "x")
    lines = desk.lines("top", "--times", 1)
    assert [line["queue"] for line in lines] == ["mail", "orders"]
    assert lines[0]["depth"] == 5
    assert lines[0]["published_per_second"] is None
    text = desk.text("top", "--times", 1)
    assert text.splitlines()[0].split()[:2] == ["QUEUE", "DEPTH"]
    assert [line["queue"] for line in desk.lines("top", "--times", 1, "--space", "none")] == []


def test_it_tells_what_has_moved_between_two_looks(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with sync.open(desk.data) as m:
        queue = m.queue("jobs")
        queue.publish(b"one")
        leased = queue.lease(1, seconds=600)
        assert len(leased) == 1
    lines = desk.lines("top", "--times", 2, "--every", "10ms")
    assert len(lines) == 2
    assert lines[1]["published_per_second"] == 0
    assert (lines[1]["in_flight"], lines[1]["depth"]) == (1, 1)
