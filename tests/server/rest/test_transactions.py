"""Transactions over REST: all or nothing, and each part allowed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.server.rest.harness import Served, served

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"
TRANSACTIONS = f"{SPACE}/transactions"


async def leased(server: Served, path: str = ORDERS, count: int = 1) -> list[object]:
    found = await server.ask("POST", f"{path}/leases", {"count": count})
    return [one["receipt"] for one in found.items("messages")]


def test_everything_is_done_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", f"{SPACE}/queues/shipped")
            long = "news" * 64
            await server.ask("PUT", f"{SPACE}/topics/{long}")
            await server.ask("PUT", f"{ORDERS}/cursors/c")
            await server.ask("POST", f"{ORDERS}/messages", {"messages": [{"body": "x"}] * 4})
            await server.ask("POST", f"{ORDERS}/stages/s", {"messages": [{"body": "staged"}]})
            one, two, three, four = await leased(server, count=4)
            snapshot = (await server.ask("POST", f"{ORDERS}/cursors/c/next")).json["snapshot"]
            pinned = (await server.ask("POST", f"{ORDERS}/snapshots")).text("snapshot")
            assert isinstance(snapshot, dict)
            parts = [
                {"do": "settle", "queue": "orders", "receipts": [one]},
                {"do": "release", "queue": "orders", "receipts": [two], "failed": True},
                {"do": "discard", "queue": "default/orders", "receipts": [three]},
                {"do": "extend", "queue": "orders", "receipts": [four], "seconds": 300},
                {"do": "publish", "queue": "shipped", "body": "y", "key": "k"},
                {"do": "publish", "topic": long, "messages": [{"body": "a"}, {"body": "b"}]},
                {"do": "publish_staged", "queue": "orders", "stages": ["s"]},
                {"do": "commit", "queue": "orders", "snapshot": snapshot["snapshot"]},
                {"do": "unpin", "queue": "orders", "snapshot": pinned},
            ]
            done = await server.ask("POST", TRANSACTIONS, {"parts": parts})
            assert done.status == 200, done
            assert done.json["results"] == [
                None,
                None,
                None,
                None,
                {"count": 1, "seq": 1},
                {"count": 2, "seq": 1},
                {"count": 1, "seq": 5},
                None,
                None,
            ]
            stats = await (await server.millrace.find("orders")).stats()
            assert (stats["settled"], stats["published"]) == (1, 5)
            assert (await server.ask("GET", f"{ORDERS}/cursors")).json == {"cursors": {"c": 4}}

    asyncio.run(main())


def test_nothing_is_done_where_a_part_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", f"{SPACE}/queues/other")
            await server.ask("POST", f"{ORDERS}/messages", {"messages": [{"body": "x"}] * 2})
            await server.ask("POST", f"{SPACE}/queues/other/messages", {"body": "x"})
            [one, ended] = await leased(server, count=2)
            [foreign] = await leased(server, f"{SPACE}/queues/other")
            await server.ask("POST", f"{ORDERS}/release", {"receipts": [ended]})
            fine: dict[str, object] = {"do": "settle", "queue": "orders", "receipts": [one]}
            bad: list[tuple[dict[str, object], int]] = [
                ({"do": "settle", "queue": "orders", "receipts": [ended]}, 409),
                ({"do": "settle", "queue": "orders", "receipts": [foreign]}, 400),
                ({"do": "settle", "queue": "orders", "receipts": ["x"]}, 400),
                ({"do": "settle", "queue": "orders", "receipts": []}, 400),
                ({"do": "settle", "queue": "none", "receipts": [one]}, 404),
                ({"do": "publish", "body": "x"}, 400),
                ({"do": "publish", "queue": "orders", "topic": "t", "body": "x"}, 400),
                ({"do": "publish", "queue": "orders"}, 400),
                ({"do": "publish", "queue": "orders", "body": "x", "priority": 11}, 400),
                ({"do": "publish", "topic": "none", "body": "x"}, 404),
                ({"do": "publish", "queue": "a/b/c", "body": "x"}, 400),
                ({"do": "publish_staged", "queue": "orders", "stages": ["none"]}, 404),
                ({"do": "commit", "queue": "orders", "snapshot": "x"}, 400),
                ({"do": "unheard"}, 400),
                ({}, 400),
            ]
            for part, status in bad:
                refused = await server.ask("POST", TRANSACTIONS, {"parts": [fine, part]})
                assert refused.status == status, (part, refused)
            wrong: list[dict[str, object]] = [
                {},
                {"parts": []},
                {"parts": [fine] * 1001},
                {"parts": {}},
            ]
            for told in wrong:
                assert (await server.ask("POST", TRANSACTIONS, told)).status in (400, 413)
            stats = await (await server.millrace.find("orders")).stats()
            assert (stats["settled"], stats["published"]) == (0, 2)

    asyncio.run(main())


def test_each_part_is_allowed_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.millrace.queue("secret")
            await server.millrace.queue("access", space="system")
            await server.ask("POST", f"{ORDERS}/messages", {"body": "x"})
            [receipt] = await leased(server)
            pinned = (await server.ask("POST", f"{ORDERS}/snapshots")).text("snapshot")
            settle = {"do": "settle", "queue": "orders", "receipts": [receipt]}
            published = {"do": "publish", "queue": "orders", "body": "x"}
            for role, part in (
                ("worker", published),
                ("producer", settle),
                ("worker", {"do": "unpin", "queue": "orders", "snapshot": pinned}),
                ("reader", {"do": "publish_staged", "queue": "orders", "stages": ["s"]}),
                ("producer", {"do": "publish", "queue": "secret", "body": "x"}),
                ("producer", {"do": "publish", "queue": "none", "body": "x"}),
                ("producer", {"do": "publish", "queue": "system/access", "body": "x"}),
                ("manager", {"do": "publish", "topic": "news", "body": "x"}),
            ):
                refused = await server.ask("POST", TRANSACTIONS, {"parts": [part]}, role=role)
                assert (refused.status, refused.json["code"]) == (403, "denied"), (role, part)
            # Whoever works elsewhere cannot name their own queue for another one's receipt.
            server.door.know("other", ("allow work default/secret",))
            part = {"do": "settle", "queue": "secret", "receipts": [receipt]}
            refused = await server.ask("POST", TRANSACTIONS, {"parts": [part]}, role="other")
            assert (refused.status, refused.json["code"]) == (400, "forged")
            done = await server.ask("POST", TRANSACTIONS, {"parts": [settle]}, role="worker")
            assert done.status == 200

    asyncio.run(main())
