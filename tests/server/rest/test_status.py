"""Whether a server lives and whether it serves: what it says of that is so."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.core.model import CATALOG
from millrace.node import Node, real_ports
from millrace.settings import Settings
from tests.client.harness import eventually
from tests.maintenance.test_watermarks import Machine, opened
from tests.server.process.test_frontend_processes import eventually as within
from tests.server.rest.harness import SMALL, Served, front, served, serving
from tests.server.server_process import Process, children
from tests.support.timeouts import scaled


async def ready(server: Served) -> tuple[int, dict[str, object]]:
    """What is said, without a token; that it lives is said in any case."""
    assert (await server.ask("GET", "/healthz", role=None)).json == {"status": "alive"}
    answer = await server.ask("GET", "/readyz", role=None)
    assert (answer.status == 503) == ("retry-after" in answer.headers)
    return answer.status, answer.json


def test_a_server_that_stops_is_not_ready(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            assert await ready(server) == (200, {"ready": True})
            server.app.stop()
            assert await ready(server) == (503, {"ready": False, "why": "stopping"})

    asyncio.run(main())


@pytest.mark.parametrize("what", ["disk", "memory"])
def test_5_7_a_server_that_is_short_of_room_is_ready_for_workers_alone(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        machine = Machine()
        async with opened(tmp_path, machine) as m, serving(m) as server:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            assert await ready(server) == (200, {"ready": True})
            if what == "disk":
                machine.free = 10
            else:
                machine.used = 1 << 40

            path = "/readyz?publishing=true"

            async def takes_messages() -> bool:
                return (await server.ask("GET", path, role=None)).status == 200

            async def is_short() -> bool:
                return not await takes_messages()

            await eventually(is_short)
            expected = {"ready": True, "publishing": False, "why": "short of disk or memory"}
            refused = await server.ask("GET", path, role=None)
            assert (refused.status, refused.json) == (503, expected)
            assert "retry-after" in refused.headers
            assert await ready(server) == (200, expected)
            with pytest.raises(errors.Full):
                await queue.publish(b"x")
            # What makes room goes on.
            [lease] = await queue.lease()
            await lease.settle()
            machine.free, machine.used = 1 << 40, 0
            await eventually(takes_messages)
            await queue.publish(b"x")

    asyncio.run(main())
    said = [one.getMessage() for one in caplog.records if "publishing is" in one.getMessage()]
    assert [text.partition(":")[0] for text in said] == [
        "publishing is refused",
        "publishing is accepted again",
    ]
    assert all(("disk_low" if what == "disk" else "memory_high") in text for text in said)


@pytest.mark.parametrize("is_front", [False, True])
def test_a_server_whose_engine_has_failed_is_not_ready(tmp_path: Path, *, is_front: bool) -> None:
    async def main() -> None:
        node = await Node.open(real_ports(tmp_path), Settings(segment_bytes=1024 * 1024))
        async with AsyncExitStack() as stack:
            m = Millrace(EmbeddedEngine(node, str(tmp_path)))
            asked = await stack.enter_async_context(front(tmp_path, m)) if is_front else m
            server = await stack.enter_async_context(serving(asked, m))
            assert await ready(server) == (200, {"ready": True})
            node.commit_loop_of(CATALOG).fail(errors.DiskFailed("the test ends the disk"))
            code = errors.DiskFailed.code
            assert await ready(server) == (503, {"ready": False, "why": code})
            with pytest.raises(errors.DiskFailed):
                await m.queue("orders")
        await m.close()

    asyncio.run(main())


def test_a_front_end_without_its_engine_is_not_ready(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m, AsyncExitStack() as stack:
            beside = await stack.enter_async_context(front(tmp_path, m))
            async with serving(beside) as server:
                assert await ready(server) == (200, {"ready": True})
                await beside.close()
                assert await ready(server) == (503, {"ready": False, "why": "closed"})

    asyncio.run(main())


@pytest.mark.process
def test_a_front_end_whose_engine_stands_still_says_so_soon(tmp_path: Path) -> None:
    def ask(server: Process, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=scaled(60))
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    with Process(tmp_path / "data", "--frontends", 1) as server:
        assert children(server.pid)
        within(lambda: ask(server, "/readyz") == 200)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert (ask(server, "/healthz"), ask(server, "/readyz")) == (200, 503)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        within(lambda: ask(server, "/readyz") == 200)
        assert server.stop() == 0


@pytest.mark.process
def test_nobody_is_answered_before_the_server_is_ready(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Process(tmp_path / "data", "--listen", f"127.0.0.1:{port}")
    statuses: list[int] = []
    while not statuses:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=scaled(60))
        try:
            connection.request("GET", "/readyz")
            statuses.append(connection.getresponse().status)
        except ConnectionRefusedError:
            # Still opening.
            threading.Event().wait(0.02)
        finally:
            connection.close()
    assert statuses == [200]
    with server:
        assert server.stop() == 0


def test_nobody_keeps_a_body_at_addresses_that_everyone_may_ask(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for path in ("/healthz", "/readyz"):
                answer = await server.ask("GET", path, b"x", role=None)
                assert (answer.status, answer.json["field"]) == (400, "body")
                assert (await server.ask("GET", path, role=None)).status == 200

    asyncio.run(main())
