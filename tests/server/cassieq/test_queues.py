"""CassieQ's queues over HTTP: every answer of every route."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millrace.server.auth.access import Quota, User
from millrace.server.cassieq.accounts import account_rule
from tests.client.harness import run
from tests.server.cassieq.harness import BY, error, site, told_of

USUAL = {
    "accountName": "acme",
    "queueName": "jobs",
    "status": "Active",
    "maxDeliveryCount": 5,
    "dlqName": None,
    "bucketSize": 20,
    "repairWorkerPollFrequencySeconds": 5,
    "repairWorkerTombstonedBucketTimeoutSeconds": 15,
    "deleteBucketsAfterFinalization": True,
    "strictFifo": True,
}


def test_a_queue_is_made_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            told = {"queueName": "q", "bucketSize": None, "dlqName": None, "maxDeliveryCount": None}
            made = await server.key("POST", "", told)
            assert (made.status, made.body) == (201, b"")
            other = {"queueName": "q", "maxDeliveryCount": 9}
            there = await server.key("POST", "", other)
            assert (there.status, there.body) == (200, b"")
            there = await server.key("POST", "?errorIfExists=false", other)
            assert there.status == 200
            found = await server.key("GET", "q")
            assert found.json["maxDeliveryCount"] == 5, "it stays as it is"
            refused = await server.key("POST", "?errorIfExists=true", {"queueName": "q"})
            assert error(refused) == (409, "Conflict", "CreateQueue")

    run(main())


def test_a_queue_is_described_as_it_was_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            found = (await server.key("GET", "jobs")).json
            version = found["version"]
            assert found == USUAL | {"version": version, "id": f"acme:jobs_v{version}"}
            told = {
                "queueName": "all",
                "maxDeliveryCount": 3,
                "dlqName": "jobs",
                "bucketSize": 50,
                "repairWorkerPollSeconds": 7,
                "repairWorkerBucketFinalizeTimeSeconds": 8,
                "deleteBucketsAfterFinalize": False,
                "strictFifo": False,
            }
            assert (await server.key("POST", "", told)).status == 201
            found = (await server.key("GET", "all")).json
            assert {name: found[name] for name in USUAL} == {
                "accountName": "acme",
                "queueName": "all",
                "status": "Active",
                "maxDeliveryCount": 3,
                "dlqName": "jobs",
                "bucketSize": 50,
                "repairWorkerPollFrequencySeconds": 7,
                "repairWorkerTombstonedBucketTimeoutSeconds": 8,
                "deleteBucketsAfterFinalization": False,
                "strictFifo": False,
            }
            listed = told_of(await server.key("GET", ""))
            assert listed == [found, (await server.key("GET", "jobs")).json]

    run(main())


def test_a_queue_that_another_api_made_is_described_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            notes = {"cassieq.bucketSize": "-", "cassieq.strictFifo": "?"}
            await server.millrace.queue("plain", space="acme", notes=notes)
            found = (await server.key("GET", "plain")).json
            assert found["maxDeliveryCount"] == 0
            assert (found["bucketSize"], found["strictFifo"]) == (20, True)

    run(main())


def test_a_queue_made_anew_is_another_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            await server.put("old")
            before = (await server.key("GET", "jobs")).json
            gone = await server.key("DELETE", "jobs")
            assert (gone.status, gone.body) == (200, b"")
            assert error(await server.key("DELETE", "jobs")) == (404, "NotFound", "DeleteQueue")
            assert error(await server.key("GET", "jobs")) == (
                404,
                "NotFound",
                "GetQueueDefinition",
            )
            missing = await server.key("GET", "jobs/statistics")
            assert error(missing) == (404, "NotFound", "GetQueueStatistics")
            assert (await server.key("POST", "", {"queueName": "jobs"})).status == 201
            after = (await server.key("GET", "jobs")).json
            assert isinstance(before["version"], int)
            assert isinstance(after["version"], int)
            assert after["version"] > before["version"]
            assert after["id"] != before["id"]
            assert await server.size() == 0

    run(main())


REFUSED: list[tuple[str, object, str]] = [
    ("", {}, "queueName"),
    ("", {"queueName": "a b"}, "queue"),
    ("", {"queueName": "q", "maxDeliveryCount": 0}, "maxDeliveryCount"),
    ("", {"queueName": "q", "bucketSize": "many"}, "bucketSize"),
    ("", {"queueName": "q", "dlqName": "none"}, "'none'"),
    ("", {"queueName": "q", "unknown": 1}, "unknown"),
    ("", b"no", "JSON"),
    ("?errorIfExists=perhaps", {"queueName": "q"}, "errorIfExists"),
    ("?more=1", {"queueName": "q"}, "more"),
]


def test_what_no_queue_is_like_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            for query, body, word in REFUSED:
                answer = await server.key("POST", query, body)
                assert error(answer) == (400, "Error", "CreateQueue"), body
                assert word in answer.text("message")
            for path in ("jobs", "jobs/statistics", ""):
                assert (await server.key("GET", f"{path}?x=1")).status == 400
            assert (await server.key("DELETE", "jobs?x=1")).status == 400
            assert await server.millrace.queues(space="acme") == ["jobs"]

    run(main())


def test_queues_count_against_the_quota_and_acts_are_noted(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            user = User("acme", (account_rule("acme"),), Quota(queues=2))
            await server.book.set_user(user, BY)
            assert (await server.key("POST", "", {"queueName": "two"})).status == 201
            full = await server.key("POST", "", {"queueName": "three"})
            assert error(full) == (429, "Error", "CreateQueue")
            assert "retry-after" in full.headers
            assert (await server.key("POST", "", {"queueName": "two"})).status == 200
            assert (await server.key("DELETE", "two")).status == 200
            assert (await server.key("POST", "", {"queueName": "three"})).status == 201
            rows = await (await server.millrace.find("audit", space="system")).peek(100)
            notes = [msgspec.json.decode(row.body or b"") for row in rows]
            found = [
                (note["act"], note["target"], note.get("outcome", "done"))
                for note in notes
                if note["who"] == "acme" and note.get("outcome") != "begun"
            ]
            assert found == [
                ("make_queue", "acme/jobs", "done"),
                ("make_queue", "acme/two", "done"),
                ("delete_queue", "acme/two", "done"),
                ("make_queue", "acme/three", "done"),
            ]

    run(main())


def test_a_quota_of_messages_in_flight_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as server:
            user = User("acme", (account_rule("acme"),), Quota(in_flight=1))
            await server.book.set_user(user, BY)
            for text in ("a", "b"):
                await server.put(text)
            held = await server.get()
            full = await server.key("GET", "jobs/messages/next")
            assert error(full) == (429, "Error", "GetMessage")
            at = f"jobs/messages?popReceipt={held['popReceipt']}"
            told = await server.key("PUT", at, {"message": "c", "newInvisibilitySeconds": 30})
            assert (await server.key("GET", "jobs/messages/next")).status == 429
            at = f"jobs/messages?popReceipt={told.text('popReceipt')}"
            assert (await server.key("DELETE", at)).status == 204
            assert (await server.get())["message"] == "b"

    run(main())
