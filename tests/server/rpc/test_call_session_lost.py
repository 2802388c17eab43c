"""A program that is killed while it has a session: what it held is there for others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
from millrace.errors import Gone
from tests.server.server_process import Process
from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

CONSUMER = """
import asyncio, sys
import millrace

async def main():
    if sys.argv[1] == "socket":
        opening = millrace.open(sys.argv[2])
    else:
        opening = millrace.connect(sys.argv[2], token=sys.argv[3])
    async with opening as m:
        queue = await m.find("orders")
        async with queue.session(credit=2, suspect=3600) as session:
            order = await anext(session)
            print(session.id, order.body.decode(), flush=True)
            await asyncio.to_thread(sys.stdin.read)
            await order.settle()
            print("settled", flush=True)

asyncio.run(main())
"""


class Consumer:
    """A program that holds a message of a session until it is killed, or told to go on."""

    def __init__(self, way: str, server: Process, folder: Path) -> None:
        where = [str(folder)] if way == "socket" else [server.address, server.token]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, way, *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Consumer:
        assert self.process.stdout is not None
        self.session, self.body = self.process.stdout.readline().split()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("way", ["socket", "http"])
def test_r7_the_session_of_a_killed_program_ends(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "data"
    options = ("--set", "session_silence_seconds=3")

    async def main(server: Process) -> None:
        async with millrace.connect(server.address, token=server.token) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"nails", b"paint"])
            consumer = await asyncio.to_thread(Consumer, way, server, folder)
            with consumer:
                assert consumer.body == "nails"
                assert (await queue.stats())["live"] == 2
                assert await queue.lease(2) == []
                consumer.process.kill()
                # Far before the session's own time, which is an hour.
                found = await queue.lease(2, wait=30)
                found += [] if len(found) == 2 else await queue.lease(2, wait=30)
                assert sorted(one.body for one in found) == [b"nails", b"paint"]
                assert {one.failures for one in found} == {1}
                with pytest.raises(Gone):
                    await queue.session(resume=consumer.session).open()

    with Process(folder, *options) as server:
        asyncio.run(asyncio.wait_for(main(server), scaled(60)))


@pytest.mark.parametrize("way", ["socket", "http"])
def test_r7_a_server_that_is_killed_ends_no_session(tmp_path: Path, way: str) -> None:
    """The client of a server that went finds the next one, and has its messages."""
    folder = tmp_path / "data"

    async def prepare(server: Process) -> None:
        async with millrace.connect(server.address, token=server.token) as m:
            await (await m.queue("orders")).publish(b"nails")

    async def look(server: Process) -> None:
        async with millrace.connect(server.address, token=server.token) as m:
            queue = await m.find("orders")
            while (await queue.stats())["live"]:
                assert await queue.lease(1) == [], "it is its consumer's"

    with Process(folder) as server:
        token = server.token
        asyncio.run(prepare(server))
        with Consumer(way, server, folder) as consumer:
            port = server.port
            server.close()
            with Process(folder, "--listen", f"127.0.0.1:{port}") as second:
                second.token = token
                assert consumer.process.stdin is not None
                assert consumer.process.stdout is not None
                consumer.process.stdin.close()
                consumer.process.stdin = None
                asyncio.run(asyncio.wait_for(look(second), scaled(60)))
                assert consumer.process.stdout.readline() == "settled\n"
