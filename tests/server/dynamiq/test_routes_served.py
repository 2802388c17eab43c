"""Dynamiq's routes of a server in a process of its own, which is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.dynamiq.harness import MAIL, NEWS
from tests.server.server_process import Process

pytestmark = pytest.mark.process


@pytest.mark.parametrize("frontends", [0, 1])
def test_messages_settings_and_locks_survive_a_kill(tmp_path: Path, frontends: int) -> None:
    options = ("--frontends", frontends)
    with Process(tmp_path, *options) as server:
        # A number in JSON is a body like any other.
        settings = {"visibility_timeout": 600, "max_partitions": 1}
        assert server.ask("PUT", MAIL, settings).status == 201
        ids = [server.ask("PUT", f"{MAIL}/message", number).body.decode() for number in range(3)]
        assert len(json.loads(server.ask("GET", f"{MAIL}/messages/3").body)) == 3
        assert server.ask("DELETE", f"{MAIL}/message/{ids[0]}").body == b"true"
        assert server.ask("PUT", NEWS).status == 201
        assert server.ask("PUT", f"{NEWS}/queues/mail").status == 200
        [more] = server.ask("PUT", f"{NEWS}/message", 3).json.values()
        server.kill()
    with Process(tmp_path, *options) as server:
        assert server.ask("GET", MAIL).json["VisibilityTimeout"] == 600
        assert server.ask("GET", NEWS).json == {"Queues": ["mail"]}
        assert server.ask("GET", f"{MAIL}/messages/10").body == b"[]", "it is still locked"
        assert server.ask("GET", f"{MAIL}/message/{ids[0]}").status == 404
        for number, known in ((1, ids[1]), (2, ids[2]), (3, str(more))):
            found = server.ask("GET", f"{MAIL}/message/{known}")
            assert found.json == {"messages": [{"id": known, "body": str(number)}]}
        gone = server.ask("DELETE", f"{MAIL}/messages/{ids[1]},{ids[2]}")
        assert gone.json == {"deleted": 2}
        assert json.loads(server.ask("GET", f"{MAIL}/messages/10").body) == [
            {"id": more, "body": "3"}
        ]
        assert server.stop() == 0
