"""Publishing and working over REST, from the outside."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

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
