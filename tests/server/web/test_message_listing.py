"""Large answers in JSON: made in steps, and the same as small ones."""

from __future__ import annotations

import asyncio
import http.client
import json
from base64 import b64decode
from pathlib import Path

import pytest

from millrace import Message, Queue, limits
from tests.server.rest.harness import Served, served
from tests.support.stall import ATTEMPTS, STEP_CPU_SECONDS_MAX, StallMonitor
from tests.support.timeouts import scaled

ORDERS = "/v1/spaces/default/queues/orders"

RSS_GROWTH_BYTES_MAX = 256 << 20
"""The bodies have 48 MiB, and 290 MiB as JSON."""

LARGE = limits.ANSWER_STEP_BYTES
TEXTS = [
    "small",
    'a"\\\u0001ü\U0001f600' * (LARGE // 5),
    "",
    "x" * (LARGE + 1),
    '"body":""' * (LARGE // 8),
]


def _read(port: int, method: str, path: str, body: str | None) -> tuple[int, int]:
    """Status and size of an answer, of which no more than a piece is in memory."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=scaled(60))
    headers = {"authorization": "Bearer root", "content-type": "application/json"}
    try:
        connection.request(method, path, body, headers)
        answer, size = connection.getresponse(), 0
        while piece := answer.read(1 << 20):
            size += len(piece)
        return answer.status, size
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"{ORDERS}/messages?count=10000", None),
        ("GET", f"{ORDERS}/rows?count=10000", None),
        ("POST", f"{ORDERS}/leases", '{"count": 10000, "seconds": 0.001}'),
    ],
)
def test_sec_08_no_answer_stops_the_loop(
    tmp_path: Path, method: str, path: str, body: str | None
) -> None:
    """Each byte of these bodies is six bytes of JSON."""

    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            for _ in range(20):
                await queue.publish(b"\x01" * (2 << 20))
            for _ in range(10):
                await queue.publish_many([b"\x01" * 1024] * 900)
            steps: list[float] = []
            while len(steps) < ATTEMPTS and (not steps or steps[-1] > STEP_CPU_SECONDS_MAX):
                async with StallMonitor() as monitor:
                    status, size = await asyncio.to_thread(_read, server.port, method, path, body)
                assert status == 200
                assert size > 6 * (48 << 20)
                assert monitor.rss_growth_bytes < RSS_GROWTH_BYTES_MAX, path
                steps.append(monitor.longest_cpu_seconds)
            assert min(steps) < STEP_CPU_SECONDS_MAX, steps

    asyncio.run(main())


def test_large_answers_have_every_message_as_small_ones_do(tmp_path: Path) -> None:
    bodies = [text.encode() for text in TEXTS] + [b"\xff" * LARGE]
    messages = [Message(body, headers={"n": str(at)}) for at, body in enumerate(bodies)]

    def read(found: list[dict[str, object]]) -> list[bytes]:
        assert [one.get("headers") for one in found] == [message.headers for message in messages]
        return [
            b64decode(str(one["body_base64"]))
            if "body_base64" in one
            else str(one["body"]).encode()
            for one in found
        ]

    async def _publish(queue: Queue) -> None:
        for message in messages:
            await queue.publish(message.body, headers=message.headers)

    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            await _publish(queue)
            peeked = await server.ask("GET", f"{ORDERS}/messages?count=10")
            assert peeked.headers["content-type"] == "application/json"
            assert read(peeked.items("messages")) == bodies
            rows = await server.ask("GET", f"{ORDERS}/rows?count=10")
            assert read(rows.items("messages")) == bodies
            assert rows.json["next"] is None
            part = await server.ask("GET", f"{ORDERS}/rows?count=2")
            assert part.json["next"] == 2
            one = await server.ask("GET", f"{ORDERS}/messages/2")
            assert one.json == peeked.items("messages")[1]
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 10})
            assert read(leased.items("messages")) == bodies
            receipts = [one["receipt"] for one in leased.items("messages")]
            settled = await server.ask("POST", f"{ORDERS}/settle", {"receipts": receipts})
            assert settled.status == 200
            await _in_a_session(server, bodies)

    async def _in_a_session(server: Served, bodies: list[bytes]) -> None:
        queue = await server.millrace.find("orders")
        await _publish(queue)
        opened = await server.ask("POST", f"{ORDERS}/sessions", {"credit": 10})
        path = f"/v1/spaces/default/queues/orders/sessions/{opened.text('session')}/receive"
        found: list[dict[str, object]] = []
        while len(found) < len(bodies):
            answer = await server.ask("POST", path, {"count": 10, "wait": 20})
            assert answer.json["over"] is False
            found += answer.items("messages")
        assert read(found) == bodies
        assert [one["number"] for one in found] == list(range(len(bodies)))

    asyncio.run(main())


def test_a_large_answer_lets_its_pin_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            await queue.publish(b"x" * (LARGE + 1))
            assert (await server.ask("GET", f"{ORDERS}/rows")).status == 200
            assert not (await queue.holders()).held

    asyncio.run(main())


def test_json_of_dynamiq_is_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            assert (await server.ask("PUT", "/v1/queues/jobs", {})).status in (200, 201)
            queue = await server.millrace.find("jobs")
            for text in TEXTS:
                await queue.publish(text.encode())
            found: list[str] = []
            while len(found) < len(TEXTS):
                answer = await server.ask("GET", "/v1/queues/jobs/messages/10")
                found += [one["body"] for one in json.loads(answer.body)]
            assert sorted(found) == sorted(TEXTS)

    asyncio.run(main())
