"""Staging over REST."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa

from tests.server.rest.harness import served

ORDERS = "/v1/spaces/default/queues/orders"


def test_k4_stages_become_visible_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            table = pa.table({"value": pa.array([b"c", b"d"], pa.binary())})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            one = await server.ask("POST", f"{ORDERS}/stages/s1", {"messages": [{"body": "a"}]})
            assert one.json == {"rows": 1}
            lines = b'{"body": "b"}\n'
            await server.ask("POST", f"{ORDERS}/stages/s1", lines, type="application/x-ndjson")
            await server.ask(
                "POST",
                f"{ORDERS}/stages/s2",
                sink.getvalue().to_pybytes(),
                type="application/vnd.apache.arrow.stream",
            )
            listed = await server.ask("GET", f"{ORDERS}/stages")
            assert listed.json == {"stages": {"s1": 2, "s2": 2}}
            assert (await server.ask("GET", f"{ORDERS}/messages")).json == {"messages": []}
            told = {"stages": ["s2", "s1"], "producer": "spark", "number": 1}
            for _ in range(2):
                made = await server.ask("POST", f"{ORDERS}/publish_staged", told)
                assert (made.status, made.json) == (201, {"count": 4, "seq": 1})
            found = await server.ask("GET", f"{ORDERS}/messages")
            assert [message["body"] for message in found.items("messages")] == list("cdab")

    asyncio.run(main())


def test_stages_are_dropped_and_bad_ones_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("POST", f"{ORDERS}/stages/s", {"messages": [{"body": "a"}]})
            for was_there in (True, False):
                gone = await server.ask("DELETE", f"{ORDERS}/stages/s")
                assert gone.json == {"was_there": was_there}
            for body, field in (
                ({"messages": [{"body": "a", "priority": 10}]}, "messages[0].priority"),
                ({"messages": [{"body": "a", "delay": -9}]}, "delay"),
                ({"messages": [{"body": "a", "dedup": "x"}]}, "dedup"),
                ({"messages": [{"body": "a", "ttl": -1}]}, "ttl"),
                ({"messages": 5}, "messages"),
                ({}, "messages"),
            ):
                refused = await server.ask("POST", f"{ORDERS}/stages/s", body)
                assert (refused.status, refused.json["field"]) == (400, field)
            for stages, status in (([], 400), (["s"], 404), (["a b"], 400), ("s", 400)):
                refused = await server.ask("POST", f"{ORDERS}/publish_staged", {"stages": stages})
                assert refused.status == status, stages
            refused = await server.ask("POST", f"{ORDERS}/stages/a%2Fb", {"messages": []})
            assert refused.json["field"] == "stage"
            assert (await server.ask("GET", f"{ORDERS}/stages")).json == {"stages": {}}

    asyncio.run(main())


def test_stages_hold_what_a_publish_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            told = {"messages": [{"body": "late", "delay": 60}, {"body": "usual"}], "number": 1}
            for _ in range(2):
                staged = await server.ask("POST", f"{ORDERS}/stages/s", told)
                assert staged.json == {"rows": 2}
            early = await server.ask("POST", f"{ORDERS}/stages/s", {**told, "number": 3})
            assert early.json["code"] == "out_of_order"
            lines = "application/x-ndjson"
            body = b'{"body": "high", "priority": 9}'
            where = f"{ORDERS}/stages/s?number=2&ttl=60"
            assert (await server.ask("POST", where, body, type=lines)).json == {"rows": 3}
            told = {"stages": ["s"], "producer": "p", "spans": [[0, 5], [0, 3]]}
            published = await server.ask("POST", f"{ORDERS}/publish_staged", told)
            assert published.json["count"] == 3
            told = {"stages": [], "producer": "p", "spans": [[5, 6], [3, 3]]}
            empty = await server.ask("POST", f"{ORDERS}/publish_staged", told)
            assert (empty.status, empty.json["count"]) == (201, 0)
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 5})
            assert [one["body"] for one in leased.items("messages")] == ["high", "usual"]

    asyncio.run(main())
