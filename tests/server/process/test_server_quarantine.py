"""A quarantined queue behind `millrace serve`: codes of REST and SQS, repair, other queues."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, real_ports
from tests.cli.desk import Desk
from tests.client.harness import SMALL
from tests.client.test_queue_repair import poisoned
from tests.engine.poison import publish_poison
from tests.server.server_process import Process

pytestmark = pytest.mark.process

QUEUES = "/v1/spaces/default/queues"


def sqs(server: Process, action: str, **fields: object) -> tuple[int, str]:
    """Status of a call in the JSON protocol, and the code or the address in its answer."""
    connection = server.connect()
    try:
        connection.request(
            "POST",
            "/",
            json.dumps(fields),
            {
                "content-type": "application/x-amz-json-1.0",
                "x-amz-target": f"AmazonSQS.{action}",
                "authorization": f"Bearer {server.token}",
            },
        )
        answer = connection.getresponse()
        told = json.loads(answer.read() or b"{}")
        return answer.status, told.get("QueueUrl") or told.get("__type", "").rpartition("#")[2]
    finally:
        connection.close()


def test_sec_01_a_server_with_an_unreadable_block_serves_everyone_else(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    asyncio.run(poisoned(desk.data))
    with Process(desk.data) as server:
        refused = server.ask("POST", f"{QUEUES}/bad/leases", {})
        if refused.status == 200:
            # The rows before the damage were handed out; these are what the next call comes to.
            refused = server.ask("POST", f"{QUEUES}/bad/leases", {"count": 100})
        assert refused.status == 503
        assert (refused.json["code"], refused.json["outcome"]) == ("quarantined", "refused")
        for method, path, body in (
            ("POST", "messages", {"messages": [{"body": "x"}]}),
            ("GET", "messages", None),
            ("POST", "leases", {}),
        ):
            answer = server.ask(method, f"{QUEUES}/bad/{path}", body)
            assert (answer.status, answer.json["code"]) == (503, "quarantined"), (method, path)
        _, url = sqs(server, "GetQueueUrl", QueueName="bad")
        for action, fields in (
            ("SendMessage", {"MessageBody": "x"}),
            ("ReceiveMessage", {}),
        ):
            assert sqs(server, action, QueueUrl=url, **fields) == (500, "InternalFailure")
        _, good = sqs(server, "GetQueueUrl", QueueName="good")
        assert sqs(server, "SendMessage", QueueUrl=good, MessageBody="x")[0] == 200
        assert sqs(server, "ReceiveMessage", QueueUrl=good)[0] == 200
        assert server.ask("POST", f"{QUEUES}/good/leases", {}).status == 200
        assert server.ask("GET", "/readyz").status == 200
        page = server.ask("GET", "/metrics").body.decode()
        assert 'millrace_quarantined{space="default",queue="bad"} 1' in page
        assert 'millrace_quarantined{space="default",queue="good"} 0' in page
        desk.text("backup", desk.data, tmp_path / "backups")
        kept = desk.call("repair", "bad", "--export", tmp_path / "saved", "--json")
        assert kept.exit_code == 4
        done = desk.one("repair", "bad", "--drop")
        assert (done["readable"], done["dropped"], done["is_open"]) == (8, 2, True)
        answer = server.ask("POST", f"{QUEUES}/bad/messages", {"messages": [{"body": "x"}]})
        assert answer.status in (200, 201)
        assert server.stop() == 0


def test_check_and_repair_of_a_closed_folder(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    asyncio.run(poisoned(desk.data))
    found = desk.call("check", desk.data)
    assert found.exit_code == 4
    assert "queue default/bad: unreadable rows 6-7" in found.stdout
    assert desk.call("lease", "bad", "--count", 100).exit_code == 4
    found = desk.call("check", desk.data)
    assert found.exit_code == 4
    assert "queue default/bad is quarantined since " in found.stdout
    assert desk.call("publish", "bad", "x").exit_code == 4
    assert desk.one("repair", "bad", "--export", tmp_path / "saved", "--drop")["dropped"] == 2
    desk.text("check", desk.data)
    desk.text("publish", "bad", "x")


async def _poison_audit(path: Path) -> None:
    """Make two notes of the audit unreadable, as a disk could."""
    node = await Node.open(real_ports(path), SMALL)
    async with Millrace(EmbeddedEngine(node)) as m:
        await m.queue("orders")
        audit = await m.queue("audit", space="system", retention="log")
        await publish_poison(node, audit)


def test_a_quarantined_audit_is_named_and_repaired_over_http(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    asyncio.run(_poison_audit(desk.data))
    with Process(desk.data) as server:
        notes = server.ask("GET", "/v1/spaces/system/queues/audit/messages")
        assert (notes.status, notes.json["code"]) == (503, "quarantined")
        refused = server.ask("DELETE", f"{QUEUES}/orders")
        assert (refused.status, refused.json["code"]) == (503, "quarantined")
        assert "system/audit" in str(refused.json["detail"])
        assert server.ask("GET", f"{QUEUES}/orders").status == 200, "a refused act changes nothing"
        url = f"http://127.0.0.1:{server.port}"
        done = desk.one(
            *("repair", "system/audit", "--drop"), "--data", url, "--token-file", server.token_file
        )
        assert (done["dropped"], done["is_open"]) == (2, True)
        assert server.ask("DELETE", f"{QUEUES}/orders").status in (200, 204)
        page = server.ask("GET", "/v1/spaces/system/queues/audit/messages?count=100").body
        notes_now = [json.loads(message["body"]) for message in json.loads(page)["messages"]]
        (noted,) = [note for note in notes_now if note["act"] == "repair"]
        assert (noted["target"], noted.get("outcome", "done")) == ("system/audit", "done")
