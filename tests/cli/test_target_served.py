"""The verbs beside a server that has the folder: all of them ask it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import sync
from tests.cli.desk import Desk
from tests.server.server_process import Process

pytestmark = pytest.mark.process


def test_verbs_ask_the_server_that_has_the_folder(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.text("demo")
    with Process(desk.data) as server:
        desk.text("queue", "make", "jobs", "--dead-letter", "mail")
        desk.text("publish", "jobs", "one")
        [leased] = desk.lines("lease", "jobs")
        desk.text("settle", "jobs", leased["receipt"])
        assert [line["queue"] for line in desk.lines("top", "--times", 1)] != []
        assert len(desk.lines("peek", "mail")) == 4
        assert desk.lines("follow", "mail", "--once", "--name", "report")
        desk.text("topic", "make", "news")
        desk.text("topic", "subscribe", "news", "jobs")
        desk.text("topic", "publish", "news", "hello")
        assert desk.one("health")["damaged"] == []
        desk.text("backup", desk.data, tmp_path / "backups")
        assert "5" in desk.text("sql", "select count(*) as n from orders").split()
        assert desk.text("explain", "mail", 1)
        assert desk.lines("user", "list")
        assert server.stop() == 0
    with sync.open(desk.data) as m:
        assert m.find("jobs").stats()["settled"] == 1
