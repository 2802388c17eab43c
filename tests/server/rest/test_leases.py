"""Publishing and working over REST, from the outside."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import limits
from tests.server.rest.harness import served

ORDERS = "/v1/spaces/default/queues/orders"


def test_a_message_is_published_leased_and_settled(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            made = await server.ask("POST", f"{ORDERS}/messages", {"body": "tea", "key": "k"})
            assert (made.status, made.json) == (201, {"count": 1, "seq": 1})
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 5, "seconds": 60})
            assert leased.status == 200
            [message] = leased.items("messages")
            assert (message["seq"], message["body"], message["key"]) == (1, "tea", "k")
            again = await server.ask("POST", f"{ORDERS}/leases", {})
            assert again.json == {"messages": []}
            told = {"receipts": [message["receipt"]]}
            for _ in range(2):
                done = await server.ask("POST", f"{ORDERS}/settle", told)
                assert (done.status, done.json) == (200, {"done": 1, "refused": []})
            assert (await (await server.millrace.find("orders")).stats())["settled"] == 1

    asyncio.run(main())


def test_a_lease_call_is_told_of_the_maximum(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for shards in (1, 2):
                path = f"/v1/spaces/default/queues/jobs{shards}"
                await server.ask("PUT", path, {"max_in_flight": 1, "shards": shards})
                for _ in range(2 * shards):
                    await server.ask("POST", f"{path}/messages", {"body": "x"})
                given = await server.ask("POST", f"{path}/leases", {"count": 5})
                assert (len(given.items("messages")), "bounded" in given.json) == (shards, False)
                more = await server.ask("POST", f"{path}/leases", {"count": 5})
                assert more.json == {"messages": [], "bounded": True}

    asyncio.run(main())


def test_a_lease_waits_at_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            waiting = asyncio.create_task(server.ask("POST", f"{ORDERS}/leases", {"wait": 20}))
            await server.ask("POST", f"{ORDERS}/messages", {"body_base64": "/wA="})
            [message] = (await waiting).items("messages")
            assert message["body_base64"] == "/wA="
            assert "body" not in message

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"body": 5}, "body"),
        ({"body": "a", "body_base64": "YQ=="}, "body"),
        ({"body_base64": "not base64"}, "body_base64"),
        ({"body": "a", "prioritty": 1}, "prioritty"),
        ({"body": "a", "priority": 10}, "priority"),
        ({"body": "a", "delay": -1}, "delay"),
        ({"body": "a", "key": "x" * 5000}, "key"),
        ({"body": "a", "producer": "p"}, "number"),
        ({"messages": [{"body": 5}]}, "messages[0].body"),
    ],
)
def test_bad_input_names_the_field_and_publishes_nothing(
    tmp_path: Path, body: object, field: str
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            refused = await server.ask("POST", f"{ORDERS}/messages", body)
            assert refused.status in (400, 413), refused
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json["field"] == field, refused.json
            assert refused.json["outcome"] == "refused"
            assert (await (await server.millrace.find("orders")).stats())["published"] == 0

    asyncio.run(main())


def test_only_those_who_may_are_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            body = {"body": "x"}
            statuses = {
                role: (await server.ask("POST", f"{ORDERS}/messages", body, role=role)).status
                for role in ("root", "producer", "worker", "nobody", "unheard-of", None)
            }
            assert statuses == {
                "root": 201,
                "producer": 201,
                "worker": 403,
                "nobody": 403,
                "unheard-of": 401,
                None: 401,
            }
            assert (await (await server.millrace.find("orders")).stats())["published"] == 2

    asyncio.run(main())


def test_who_is_not_known_learns_nothing_of_addresses(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            answers = [
                await server.ask("POST", path, {}, role=None)
                for path in (
                    f"{ORDERS}/leases",
                    "/v1/spaces/default/queues/none/leases",
                    "/nowhere",
                )
            ]
            assert len({(answer.status, answer.body) for answer in answers}) == 1
            assert answers[0].status == 401
            known = await server.ask("POST", "/nowhere", {})
            assert known.status == 404
            wrong = await server.ask("DELETE", f"{ORDERS}/leases")
            assert (wrong.status, wrong.headers["allow"]) == (405, "POST")

    asyncio.run(main())


def test_a_receipt_that_comes_twice_counts_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            await queue.publish_many([b"1", b"2"])
            first, second = await queue.lease(2)
            old = first.receipt
            await first.release()
            told = {"receipts": [old, old]}
            stale = await server.ask("POST", f"{ORDERS}/settle", told)
            assert (stale.status, stale.json["code"]) == (409, "stale")
            told = {"receipts": [old, second.receipt, second.receipt, old]}
            mixed = await server.ask("POST", f"{ORDERS}/settle", told)
            assert mixed.json["done"] == 1
            assert [one["seq"] for one in mixed.items("refused")] == [1]
            [again] = await queue.lease()
            told = {"receipts": [old, again.receipt]}
            for verb in ("settle", "release", "discard", "extend"):
                both = await server.ask("POST", f"{ORDERS}/{verb}", told)
                assert (both.status, both.json["field"]) == (400, "receipts")
            await again.settle()

    asyncio.run(main())


@pytest.mark.parametrize("is_known", [False, True], ids=["task", "quick"])
@pytest.mark.parametrize("verb", ["settle", "release", "discard", "extend"])
def test_5_8_one_and_several_stale_receipts_are_answered_alike(
    tmp_path: Path, verb: str, *, is_known: bool
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            if is_known:
                await server.ask("POST", f"{ORDERS}/leases", {})
            await queue.publish_many([b"1", b"2", b"3"])
            leases = await queue.lease(3)
            receipts = [lease.receipt for lease in leases]
            await queue.release(leases[:2])
            again = await queue.lease(2)
            for stale in (receipts[:1], receipts[:2]):
                answer = await server.ask("POST", f"{ORDERS}/{verb}", {"receipts": stale})
                assert (answer.status, answer.json["code"], answer.json["done"]) == (
                    409,
                    "stale",
                    0,
                )
                assert answer.headers["content-type"] == "application/problem+json"
                refused = answer.items("refused")
                assert [one["seq"] for one in refused] == [1, 2][: len(stale)]
                for one in refused:
                    assert isinstance(one["problem"], dict)
                    assert one["problem"]["code"] == "stale"
            mixed = await server.ask("POST", f"{ORDERS}/{verb}", {"receipts": receipts})
            assert (mixed.status, mixed.json["done"]) == (200, 1)
            assert [one["seq"] for one in mixed.items("refused")] == [1, 2]
            await queue.settle(again)

    asyncio.run(main())


def test_what_stands_beside_several_messages_is_for_those_that_do_not_name_their_own(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            told = {
                "messages": [{"body": "late"}, {"body": "now", "delay": 0, "priority": 2}],
                "delay": 3600,
                "ttl": 7200,
                "priority": 9,
            }
            made = await server.ask("POST", f"{ORDERS}/messages", told)
            assert made.json == {"count": 2, "seq": 1}
            queue = await server.millrace.find("orders")
            assert [one.body for one in await queue.lease(5)] == [b"now"]
            explained = await queue.explain(1)
            assert explained.state == "delayed"
            for name in ("key", "key_base64", "group", "dedup"):
                lost = await server.ask("POST", f"{ORDERS}/messages", {**told, name: "YQ=="})
                assert (lost.status, lost.json["field"]) == (400, name)
            lost = await server.ask("POST", f"{ORDERS}/messages", {**told, "headers": {"a": "b"}})
            assert (lost.status, lost.json["field"]) == (400, "headers")

    asyncio.run(main())


@pytest.mark.parametrize("is_known", [False, True], ids=["task", "quick"])
def test_one_message_may_be_of_a_range(tmp_path: Path, *, is_known: bool) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            if is_known:
                await server.ask("POST", f"{ORDERS}/leases", {})
            told = {"body": "x", "producer": "p", "mode": "range", "after": 4, "number": 9}
            for _ in range(2):
                made = await server.ask("POST", f"{ORDERS}/messages", told)
                assert made.json == {"count": 1, "seq": 1}
            told = {**told, "after": 8, "number": 12}
            overlap = await server.ask("POST", f"{ORDERS}/messages", told)
            assert overlap.status == 409
            path = f"{ORDERS}/messages?producer=p&mode=range&after=9&number=10"
            made = await server.ask("POST", path, b"y", type="application/octet-stream")
            assert made.json == {"count": 1, "seq": 2}
            lost = await server.ask("POST", f"{ORDERS}/messages", {"body": "x", "after": 4})
            assert (lost.status, lost.json["field"]) == (400, "producer")

    asyncio.run(main())


def test_a_body_beyond_the_bound_names_it_and_what_raises_it(tmp_path: Path) -> None:
    async def main() -> None:
        most = limits.HTTP_BODY_BYTES_MAX
        async with served(tmp_path) as server:
            length = {"content-length": str(most + 1)}
            refused = await server.ask("POST", f"{ORDERS}/messages", b"{}", headers=length)
            assert (refused.status, refused.json["code"]) == (413, "too_large")
            assert (refused.json["field"], refused.json["limit"]) == ("body", most)
            assert "body_bytes_max" in refused.text("detail")

    asyncio.run(main())
