"""A server that is stopped while hundreds ask and wait: everybody hears of it, nothing is lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.server.load.offer import Job
from tests.server.load.overload import QUEUE, look_at, offer
from tests.server.server_process import Process
from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

POLLS = 150
STREAMS = 10
HANG_SECONDS = scaled(60)
ORDERS = "/v1/spaces/default/queues/orders"


@dataclass(slots=True)
class Heard:
    """What those who waited were told."""

    polls: list[bytes]
    streams: list[bytes]


async def ask(server: Process, method: str, path: str, body: bytes = b"") -> bytes:
    """All that is said on a connection of its own, until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {server.token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    found = await reader.read(-1)
    writer.close()
    return found


async def wait_and_stop(server: Process) -> tuple[int, Heard]:
    """Have many wait, publish beside them, and stop the server in the midst of it."""
    async with asyncio.timeout(HANG_SECONDS), asyncio.TaskGroup() as tasks:
        polls = [
            tasks.create_task(ask(server, "POST", f"{ORDERS}/leases", b'{"wait":60,"seconds":600}'))
            for _ in range(POLLS)
        ]
        streams = [
            tasks.create_task(ask(server, "GET", f"{ORDERS}/events")) for _ in range(STREAMS)
        ]
        # Some of those who wait are given something, and some are being so when it stops.
        for number in range(10):
            body = json.dumps({"body": str(number)}).encode()
            tasks.create_task(ask(server, "POST", f"{ORDERS}/messages", body))
        while (await _published(server, QUEUE)) < 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        code = await asyncio.to_thread(server.stop)
    return code, Heard([one.result() for one in polls], [one.result() for one in streams])


async def _published(server: Process, queue: str) -> int:
    found = await asyncio.to_thread(server.ask, "GET", queue)
    stats = found.json["stats"]
    assert isinstance(stats, dict)
    return int(stats["published"])


@pytest.mark.parametrize("frontends", [0, 2])
def test_a_stop_under_load_loses_nothing_and_lets_nobody_hang(
    tmp_path: Path, frontends: int
) -> None:
    folder = tmp_path / "data"
    with Process(folder, "--frontends", frontends) as server:
        for queue in (QUEUE, ORDERS):
            assert server.ask("PUT", queue, {}).status == 201
        path = f"{QUEUE}/messages"
        finish = offer([Job(0, server.port, server.token, path, 0, HANG_SECONDS, 2, 100, 100)])
        code, heard = asyncio.run(wait_and_stop(server))
        [told] = finish()
    assert code == 0
    assert told.hung == 0
    assert told.unheard == []
    receipts: list[str] = []
    for said in heard.polls:
        if not said:
            # It had connected, and the server took nobody in any more.
            continue
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")), said
        if head.startswith(b"HTTP/1.1 200 "):
            receipts += [one["receipt"] for one in json.loads(body)["messages"]]
    assert all(said.startswith(b"HTTP/1.1 200 ") for said in heard.streams if said)
    assert len(told.acknowledged) > 0
    with Process(folder) as server:
        for receipt in receipts:
            settled = server.ask("POST", f"{ORDERS}/settle", {"receipts": [receipt]})
            assert settled.json == {"done": 1, "refused": []}
        assert server.stop() == 0
    acknowledged = {(0, number) for number in told.acknowledged}
    assert look_at(folder, acknowledged, 2)[0] == 0
