"""CassieQ's routes of `millrace serve` itself: a process that is killed, and several front ends."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest

from tests.server.rest.harness import Answer
from tests.server.server_process import Process
from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

ACCOUNTS = "/api/v1/accounts"
QUEUES = f"{ACCOUNTS}/acme/queues"


def ask(server: Process, key: str, method: str, path: str, data: str | None = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=scaled(60))
    try:
        connection.request(method, f"{QUEUES}{path}", data, {"authorization": f"Key {key}"})
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


def test_keys_messages_and_receipts_survive_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Process(folder) as server:
        made = server.ask("POST", ACCOUNTS, "acme")
        assert made.status == 201
        keys = made.json["keys"]
        assert isinstance(keys, dict)
        key = keys["primary"]
        told = {"queueName": "jobs", "bucketSize": 7}
        assert ask(server, key, "POST", "", json.dumps(told)).status == 201
        for number in range(5):
            assert ask(server, key, "POST", "/jobs/messages", f"job {number}").status == 201
        held = [
            ask(server, key, "GET", "/jobs/messages/next?invisibilityTimeSeconds=600").json
            for _ in range(2)
        ]
        server.kill()
    with Process(folder) as server:
        assert ask(server, key, "GET", "/jobs").json["bucketSize"] == 7
        assert ask(server, key, "GET", "/jobs/statistics").json == {"size": 5}
        at = f"/jobs/messages?popReceipt={held[0]['popReceipt']}"
        assert ask(server, key, "DELETE", at).status == 204
        at = f"/jobs/messages?popReceipt={held[1]['popReceipt']}"
        after = ask(server, key, "PUT", at, json.dumps({"message": "more"}))
        assert after.json["messageTag"] == held[1]["messageTag"]
        found = []
        while body := ask(server, key, "GET", "/jobs/messages/next").body:
            found.append(json.loads(body)["message"])
        assert sorted(found) == ["job 2", "job 3", "job 4", "more"]
        assert server.stop() == 0


def test_every_front_end_knows_the_accounts(tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--frontends", 2) as server:
        made = server.ask("POST", ACCOUNTS, "acme")
        keys = made.json["keys"]
        assert isinstance(keys, dict)
        key = keys["primary"]
        # Those that did not make it hear of it a moment later.
        for _ in range(10):
            while (status := ask(server, key, "GET", "").status) != 200:
                assert status in (401, 429)
        assert ask(server, key, "POST", "", '{"queueName": "jobs"}').status == 201
        assert ask(server, key, "POST", "/jobs/messages", "x").status == 201
        assert ask(server, key, "GET", "/jobs/messages/next").json["message"] == "x"
        assert server.stop() == 0
