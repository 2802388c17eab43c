"""Looking at messages over REST."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.server.rest.harness import served

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"


def test_messages_are_peeked_got_and_explained(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            told = {"messages": [{"body": "a", "headers": {"x": "1"}}, {"body": "b"}, {"body": ""}]}
            await server.ask("POST", f"{ORDERS}/messages", told)
            found = await server.ask("GET", f"{ORDERS}/messages?after=1&count=1")
            assert [(one["seq"], one["body"]) for one in found.items("messages")] == [(2, "b")]
            one = await server.ask("GET", f"{ORDERS}/messages/1")
            assert (one.json["body"], one.json["headers"]) == ("a", {"x": "1"})
            assert (await server.ask("GET", f"{ORDERS}/messages/3")).json["body"] == ""
            lost = await server.ask("GET", f"{ORDERS}/messages/4")
            assert (lost.status, lost.json["field"]) == (404, "seq")
            await server.ask("POST", f"{ORDERS}/leases", {"count": 2})
            states = [
                (await server.ask("GET", f"{ORDERS}/messages/{seq}/explain")).json["state"]
                for seq in (1, 3, 4)
            ]
            assert states == ["leased", "ready", "unknown"]

    asyncio.run(main())


def test_places_name_their_shard(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = f"{SPACE}/queues/wide"
            await server.ask("PUT", path, {"shards": 3, "route": "spread"})
            seqs = [
                (await server.ask("POST", f"{path}/messages", {"body": str(number)})).text("seq")
                for number in range(6)
            ]
            assert sorted(seqs) == [f"{shard}:{seq}" for shard in range(3) for seq in (1, 2)]
            peeked = await server.ask("GET", f"{path}/messages?after=0:1")
            assert [one["seq"] for one in peeked.items("messages")] == sorted(seqs)[1:]
            one = await server.ask("GET", f"{path}/messages/{seqs[4]}")
            assert one.json["body"] == "4"
            assert (await server.ask("GET", f"{path}/messages/9:1")).json["field"] == "seq"

    asyncio.run(main())


def test_d4_messages_are_got_and_deleted_by_their_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            path = f"{SPACE}/queues/parts"
            await server.ask("PUT", path, {"delivery": "partitions"})
            made = await server.ask("POST", f"{path}/messages", {"body": "x"})
            id = str(made.json["seq"])
            assert (await server.ask("GET", f"{path}/messages/{id}?by=id")).json["body"] == "x"
            gone = await server.ask("POST", f"{path}/delete", {"ids": [id]})
            assert gone.json == {"count": 1}
            assert (await server.ask("GET", f"{path}/messages/{id}?by=id")).status == 404

    asyncio.run(main())


def test_bad_places_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for bad in ("x", "-1", "1:2:3", "1e3", "9" * 30, "%00", "0"):
                for path in (f"{ORDERS}/messages/{bad}", f"{ORDERS}/messages/{bad}/explain"):
                    refused = await server.ask("GET", path)
                    assert (refused.status, refused.json["field"]) == (400, "seq"), path
            for query, field in (
                ("after=x", "after"),
                ("after=-1", "after"),
                ("count=0", "count"),
                ("count=-5", "count"),
                ("count=99999999999999999999", "count"),
                ("count=ten", "count"),
                ("cuont=1", "cuont"),
                ("count=1&count=2", "query"),
                ("&".join(f"a{number}=1" for number in range(100)), "query"),
                ("count", "query"),
            ):
                refused = await server.ask("GET", f"{ORDERS}/messages?{query}")
                assert refused.status in (400, 413), query
                assert refused.json["field"] == field, refused

    asyncio.run(main())


def test_r3_a_producer_learns_its_last_number(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for number in (1, 2):
                told = {"body": "x", "producer": "web", "number": number}
                await server.ask("POST", f"{ORDERS}/messages", told)
            found = await server.ask("GET", f"{ORDERS}/producers/web")
            assert found.json == {"producer": "web", "number": 2}
            assert (await server.ask("GET", f"{ORDERS}/producers/x")).json["number"] == 0
            assert (await server.ask("GET", f"{ORDERS}/producers/%00")).status == 400

    asyncio.run(main())


def test_a_hint_names_nothing_that_the_caller_may_not_see(tmp_path: Path) -> None:
    """Whoever guesses names near those that are there learns nothing by it."""

    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.topic("orders-news")
            server.door.know("guest", ("allow * default/ord*", "deny * default/orders*"))
            server.door.know("friend", ("allow * default/ord*",))
            publish = [{"do": "publish", "queue": "order", "body": "x"}]
            for method, path, body, hint in (
                ("GET", f"{SPACE}/queues/order", None, "'orders'"),
                ("POST", f"{SPACE}/queues/order/leases", {}, "'orders'"),
                ("GET", f"{SPACE}/topics/ord-news", None, "'orders-news'"),
                ("POST", f"{SPACE}/transactions", {"parts": publish}, "'orders'"),
            ):
                for role in ("guest", "friend"):
                    answer = await server.ask(method, path, body, role=role)
                    assert answer.status == 404, answer
                    assert (hint in answer.text("detail")) is (role == "friend"), answer

    asyncio.run(main())
