"""A client that is not the bottleneck: requests as bytes that were made before, on raw sockets.

A process of its own: `python -m bench.rest_load` reads one JSON object (`Job`) from its standard
input and prints one (`Told`). It parses of an answer only its status and, of a lease, the receipt.
It tells its own CPU time: where that stays well below its wall time, it has waited for the server.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import cast

import msgspec
import uvloop

QUEUE = b"/v1/spaces/default/queues/bench"
_RECEIPT = re.compile(rb'"receipt":"([^"]+)"')
_LENGTH = re.compile(rb"content-length: (\d+)")


class Job(msgspec.Struct):
    """What is to be asked."""

    kind: str
    port: int
    token: str
    connections: int
    seconds: float
    pid: int
    body: str = ""
    """The path of a file with the body of each request."""
    rounds: int = 0
    """As many rounds as are measured, after a tenth of that; 0: for `seconds`."""


class Told(msgspec.Struct):
    """What came of it."""

    rounds: int
    seconds: float
    client_cpu: float
    server_cpu: float


def request(path: bytes, token: str, body: bytes, type: bytes = b"application/json") -> bytes:
    """A request as it goes over the wire."""
    head = (
        b"POST %s HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\n"
        b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n"
    )
    return head % (path, token.encode(), type, len(body)) + body


class Asker(asyncio.Protocol):
    """Asks one thing after another on one connection."""

    def __init__(self, job: Job, load: Load) -> None:
        self._job = job
        self._load = load
        self._step = 0
        self._left = 0
        self._head = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own is one, and no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._load.first)

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
            self._head += data
        else:
            if not data.startswith(b"HTTP/1.1 20"):
                raise SystemExit(f"refused: {data[:400]!r}")
            found = _LENGTH.search(data)
            assert found is not None
            self._left = int(found[1]) - (len(data) - data.index(b"\r\n\r\n") - 4)
            self._head = data
        if not self._left:
            self._next(self._head)

    def _next(self, answer: bytes) -> None:
        assert self._transport is not None
        load = self._load
        if self._job.kind != "triples":
            self._step = (self._step + 1) % load.steps
            load.rounds += self._step == 0
            if load.rounds == load.wanted:
                load.reached.set()
            self._transport.write(load.first)
            return
        if self._step == 0:
            self._step = 1
            self._transport.write(load.lease)
        elif self._step == 1:
            found = _RECEIPT.search(answer)
            if found is None:
                self._transport.write(load.lease)
                return
            self._step = 2
            body = b'{"receipts":["%s"]}' % found[1]
            self._transport.write(request(QUEUE + b"/settle", self._job.token, body))
        else:
            self._step = 0
            load.rounds += 1
            self._transport.write(load.first)


class Load:
    """What all connections share."""

    def __init__(self, job: Job) -> None:
        self.rounds = 0
        self.wanted = -1
        self.reached = asyncio.Event()
        self.steps = 3 if job.kind == "empty" else 1
        self.lease = request(QUEUE + b"/leases", job.token, b'{"wait":10}')
        if job.kind == "triples":
            self.first = request(QUEUE + b"/messages", job.token, b'{"body":"%s"}' % (b"x" * 100))
        elif job.kind == "empty":
            head = b"GET /v1/whoami HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\n\r\n"
            self.first = head % job.token.encode()
        else:
            with open(job.body, "rb") as file:
                arrow = b"application/vnd.apache.arrow.stream"
                self.first = request(QUEUE + b"/messages", job.token, file.read(), arrow)

    async def until(self, rounds: int) -> None:
        """Wait until there were so many rounds, of a kind that is not `triples`."""
        self.wanted = rounds
        self.reached.clear()
        await self.reached.wait()


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and its threads."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def run(job: Job) -> Told:
    """Warm up, then measure."""
    loop = asyncio.get_running_loop()
    load = Load(job)
    for _ in range(job.connections):
        await loop.create_connection(lambda: Asker(job, load), "127.0.0.1", job.port)
    await (load.until(job.rounds // 10) if job.rounds else asyncio.sleep(min(1, job.seconds / 4)))
    rounds, began = load.rounds, time.perf_counter()
    client, server = time.process_time(), cpu_of(job.pid)
    await (load.until(rounds + job.rounds) if job.rounds else asyncio.sleep(job.seconds))
    return Told(
        load.rounds - rounds,
        time.perf_counter() - began,
        time.process_time() - client,
        cpu_of(job.pid) - server,
    )


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(msgspec.json.encode(runner.run(run(job))).decode())


if __name__ == "__main__":
    main()
