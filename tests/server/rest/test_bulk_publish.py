"""Large bodies of JSON and NDJSON: bounded, decoded in steps, while others are served."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from millrace import limits
from millrace.server.http.listener import look_over
from tests.server.http.test_connection import serving
from tests.server.rest.harness import served
from tests.support.stall import ATTEMPTS, STEP_CPU_SECONDS_MAX, StallMonitor

ORDERS = "/v1/spaces/default/queues/orders"
MESSAGES = f"{ORDERS}/messages"
STAGE = f"{ORDERS}/stages/s"
TRANSACTIONS = "/v1/spaces/default/transactions"
NEWS = "/v1/spaces/default/topics/news"
JSON, NDJSON = "application/json", "application/x-ndjson"
MIB = 1024 * 1024


def _wide(name: bytes, one: bytes, size: int) -> bytes:
    """A body of about so many bytes that has a list of the same."""
    return b'{"%b":[%b]}' % (name, b",".join([one] * (size // (len(one) + 1))))


PART = b'{"do":"publish","queue":"orders","messages":[%b]}'
FULL = b'{"body":"","key":"%d","group":"%d","priority":7,"delay":1.5,"ttl":9,"headers":{"a":"b"}}'
ALLOWED = limits.PUBLISH_MESSAGES_MAX
BODIES: dict[str, tuple[str, str, bytes, int]] = {
    "messages, 60 MiB": (MESSAGES, JSON, _wide(b"messages", b'{"body":""}', 60 * MIB), 413),
    "messages": (MESSAGES, JSON, _wide(b"messages", b"{}", MIB - 64), 413),
    "messages that are allowed": (
        MESSAGES,
        JSON,
        _wide(b"messages", b'{"body":""}', 12 * ALLOWED),
        201,
    ),
    "messages of a topic": (f"{NEWS}/messages", JSON, _wide(b"messages", b"{}", MIB - 64), 413),
    "staged messages": (STAGE, JSON, _wide(b"messages", b"{}", MIB - 64), 413),
    "parts": (TRANSACTIONS, JSON, _wide(b"parts", b'{"do":"publish"}', MIB - 64), 400),
    "messages of a part": (
        TRANSACTIONS,
        JSON,
        _wide(b"parts", PART % b",".join([b"{}"] * 300_000), MIB),
        413,
    ),
    "headers, 60 MiB": (
        MESSAGES,
        JSON,
        b'{"body":"","headers":[%b]}' % b",".join([b'["",""]'] * (60 * MIB // 8)),
        413,
    ),
    "headers": (
        MESSAGES,
        JSON,
        b'{"body":"","headers":[%b]}' % b",".join([b'["",""]'] * (MIB // 8 - 16)),
        413,
    ),
    "receipts": (f"{ORDERS}/settle", JSON, _wide(b"receipts", b'""', MIB - 64), 400),
    "lines, 60 MiB": (MESSAGES, NDJSON, b'{"body":""}\n' * (60 * MIB // 12), 413),
    "lines that are allowed": (MESSAGES, NDJSON, b'{"body":""}\n' * ALLOWED, 201),
    "lines with everything": (
        MESSAGES,
        NDJSON,
        b"\n".join(FULL % (at, at % 50) for at in range(ALLOWED)),
        201,
    ),
    "lines to a stage": (f"{STAGE}?delay=3", NDJSON, b'{"body":""}\n' * ALLOWED, 200),
    "empty lines": (MESSAGES, NDJSON, b"\n" * (60 * MIB), 413),
    "one line": (MESSAGES, NDJSON, b'{"body":"%b"}' % (b"x" * 60 * MIB), 413),
    "a line of headers": (
        MESSAGES,
        NDJSON,
        b'{"body":"","headers":[%b]}' % b",".join([b'["",""]'] * (60 * MIB // 8)),
        413,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_sec_08_no_body_stops_the_loop(tmp_path: Path, name: str) -> None:
    target, kind, body, status = BODIES[name]

    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", NEWS, {})
            longest: list[float] = []
            while len(longest) < ATTEMPTS and (not longest or longest[-1] > STEP_CPU_SECONDS_MAX):
                async with StallMonitor() as monitor:
                    found = await server.ask("POST", target, body, type=kind)
                assert found.status == status, found.body[:500]
                if status == 413:
                    assert found.json["field"] in ("body", "lines", "rows", "headers"), found.json
                    assert isinstance(found.json["limit"], int)
                # The body in bytes and as messages.
                assert monitor.rss_growth_bytes < 4 * len(body) + 96 * MIB
                longest.append(monitor.longest_cpu_seconds)
            assert min(longest) < STEP_CPU_SECONDS_MAX, longest

    asyncio.run(main())


def test_sec_08_the_error_says_how_more_is_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            body = b'{"body":"%b"}' % (b"x" * limits.JSON_BYTES_MAX)
            found = await server.ask("POST", MESSAGES, body)
            assert (found.status, found.json["limit"]) == (413, limits.JSON_BYTES_MAX)
            for way in ("NDJSON", "Arrow", "application/octet-stream"):
                assert way in found.text("detail")
            found = await server.ask("POST", MESSAGES, body, type="application/octet-stream")
            assert found.status == 201

    asyncio.run(main())


def test_sec_08_lines_are_the_same_however_they_are_cut(tmp_path: Path) -> None:
    """Lines across the ends of steps, empty ones, the last one without an end."""
    bodies = [f"{at}-" + "x" * (at * 37 % 4_000) for at in range(1_000)]
    lines = [b'{"body":"%b"}' % text.encode() for text in bodies]
    body = b"\r\n\n".join(lines)
    assert len(body) > 4 * limits.LINES_STEP_BYTES

    async def main() -> None:
        async with served(tmp_path) as server:
            made = await server.ask("POST", MESSAGES, body, type=NDJSON)
            assert made.json["count"] == len(bodies)
            found = await server.ask("GET", f"{MESSAGES}?after=0&count=1000")
            assert [one["body"] for one in found.items("messages")] == bodies
            wrong = body + b"\n{}"
            refused = await server.ask("POST", MESSAGES, wrong, type=NDJSON)
            assert f"line {2 * len(lines)}:" in refused.text("detail")

    asyncio.run(main())


def test_sec_08_ten_thousand_receipts_are_settled_at_once(tmp_path: Path) -> None:
    count = limits.LEASE_MESSAGES_MAX

    async def main() -> None:
        async with served(tmp_path) as server:
            await (await server.millrace.find("orders")).publish_many([b"x"] * count)
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": count})
            receipts = [one["receipt"] for one in leased.items("messages")]
            assert len(msgspec.json.encode(receipts)) < limits.JSON_BYTES_MAX
            ended = await server.ask("POST", f"{ORDERS}/settle", {"receipts": receipts})
            assert ended.json == {"done": count, "refused": []}

    asyncio.run(main())


def test_sec_08_a_stall_does_not_cut_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they sent meanwhile was not read, and their time stood still."""
    monkeypatch.setattr(limits, "HTTP_HEAD_SECONDS_MAX", 1)

    async def main() -> None:
        async with serving() as (site, port):
            looking = asyncio.create_task(look_over(site, asyncio.get_running_loop().time))
            begun = await asyncio.open_connection("127.0.0.1", port)
            begun[1].write(b"GET /a HTTP/1.1\r\n")
            silent = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.05)
            # The loop stands still: for longer than a head may take.
            time.sleep(2.2)  # noqa: ASYNC251
            begun[1].write(b"Host: h\r\n\r\n")
            assert await asyncio.wait_for(begun[0].readuntil(b"/a"), 60)
            silent[1].write(b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await asyncio.wait_for(silent[0].readuntil(b"/b"), 60)
            looking.cancel()
            for _, writer in (begun, silent):
                writer.close()

    asyncio.run(main())
