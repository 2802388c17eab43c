"""Headers and notes that the server alone writes: REST refuses them, whatever the body's form."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.server.rest.harness import Served, served

ORDERS = "/v1/spaces/default/queues/orders"
NEWS = "/v1/spaces/default/topics/news"
SERVER = ("aws.topic", "aws.sender", "millrace-dead-queue", "millrace-dead-deliveries")
PARAMETERS = ("millrace-group", "millrace-priority", "millrace-delay-ms", "millrace-ttl-ms")


def arrow(name: str) -> bytes:
    pair = pa.struct([("name", pa.utf8()), ("value", pa.binary())])
    headers = pa.array([[], [{"name": "fine", "value": b"1"}, {"name": name, "value": b"x"}]])
    table = pa.table(
        {"value": pa.array([b"1", b"2"]), "headers": headers.cast(pa.list_(pair))},
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("name", [*SERVER, *PARAMETERS])
def test_sec_04_no_message_has_a_header_of_the_server(tmp_path: Path, name: str) -> None:
    one = {"body": "x", "headers": {name: "y"}}
    pairs = {"body": "x", "headers": [["fine", "1"], [name, "y"]]}
    many = {"messages": [{"body": "1"}, one]}
    lines = f'{{"body": "1"}}\n{json.dumps(one)}\n'.encode()
    asked: list[tuple[str, str, object, str]] = [
        ("POST", path, body, kind)
        for path in (f"{ORDERS}/messages", f"{NEWS}/messages", f"{ORDERS}/stages/s")
        for body, kind in (
            (one, "application/json"),
            (pairs, "application/json"),
            (many, "application/json"),
            (lines, "application/x-ndjson"),
            (arrow(name), "application/vnd.apache.arrow.stream"),
        )
        if "/stages/" not in path or body not in (one, pairs)
    ]
    parts = [
        {"do": "publish", "queue": "orders", **one},
        {"do": "publish", "queue": "orders", **many},
        {"do": "publish", "topic": "news", **one},
    ]
    asked += [
        ("POST", "/v1/spaces/default/transactions", {"parts": [part]}, "application/json")
        for part in parts
    ]

    async def main() -> None:
        async with served(tmp_path) as server:
            await begin(server)
            for method, path, body, kind in asked:
                refused = await server.ask(method, path, body, type=kind)
                assert refused.status == 400, (path, body, refused.body)
                assert refused.json["field"] == "headers", refused.body
                assert name in refused.text("detail"), refused.body
            stats = (await server.ask("GET", ORDERS)).json["stats"]
            assert isinstance(stats, dict)
            assert stats["published"] == 0

    asyncio.run(main())


async def begin(server: Served) -> None:
    assert (await server.ask("PUT", NEWS, {})).status == 201
    made = await server.ask("PUT", f"{NEWS}/subscriptions/s", {"queue": "orders"})
    assert made.status == 200


def test_sec_04_other_headers_are_as_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await begin(server)
            fine = {"aws": "1", "xaws.topic": "2", "millrace-step": "3", "millrace-deadly": "4"}
            body = {"body": "x", "headers": fine}
            assert (await server.ask("POST", f"{ORDERS}/messages", body)).status == 201
            table = await server.ask(
                "POST",
                f"{ORDERS}/messages",
                arrow("millrace-step"),
                type="application/vnd.apache.arrow.stream",
            )
            assert table.status == 201
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 3})
            first, _, last = leased.items("messages")
            assert first["headers"] == fine
            assert last["headers"] == {"fine": "1", "millrace-step": "x"}

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", ["aws.tag:x", "aws.pending", "millrace-dead-x", "raw:arn", "subscription:arn"]
)
def test_sec_04_no_client_writes_notes_of_the_server(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await begin(server)
            queue = await server.millrace.find("orders")
            await queue.configure(notes={name: "the server's", "mine": "1"})
            for method, path, body in (
                ("PUT", "/v1/spaces/default/queues/other", {}),
                ("PATCH", ORDERS, {}),
                ("PUT", "/v1/spaces/default/topics/other", {}),
                ("PATCH", NEWS, {}),
                ("PUT", f"{NEWS}/subscriptions/other", {"queue": "orders"}),
                ("PATCH", f"{NEWS}/subscriptions/s", {}),
            ):
                for text in ("forged", ""):
                    told = {**body, "notes": {"fine": "1", name: text}}
                    refused = await server.ask(method, path, told)
                    assert refused.status == 400, (method, path, refused.body)
                    assert refused.json["field"] == "notes"
            # What is shown may be sent back, and changes nothing.
            shown = (await server.ask("GET", ORDERS)).json["settings"]
            assert isinstance(shown, dict)
            assert shown["notes"] == {"mine": "1"}
            assert (await server.ask("PATCH", ORDERS, {"notes": shown["notes"]})).status == 200
            assert dict((await queue.spec()).notes) == {name: "the server's", "mine": "1"}

    asyncio.run(main())


def test_sec_04_a_successor_does_not_speak_for_the_topic(tmp_path: Path) -> None:
    """Of a message that came from a topic a worker makes another one: it is its own."""

    async def main() -> None:
        async with served(tmp_path) as server:
            await begin(server)
            queue = await server.millrace.find("orders")
            told = {"aws.topic": "arn", "aws.sender": "me", "colour": "red"}
            await queue.publish(b"true", headers=told)
            [one] = (await server.ask("POST", f"{ORDERS}/leases", {})).items("messages")
            body = {"receipt": one["receipt"], "body": "forged"}
            after = await server.ask("POST", f"{ORDERS}/replace", body)
            assert after.json["headers"] == {"colour": "red"}

    asyncio.run(main())
