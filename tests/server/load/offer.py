"""A client that offers publishes at a rate, whether they are answered or not.

A process of its own: `python -m tests.server.load.offer` reads a `Job` as JSON from its standard
input, and prints what it was told (`Told`). Each request has a connection to itself, as long as
there are fewer than it may have; when all are taken, what is due waits here.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter, deque
from typing import cast

import msgspec

from millrace.event_loop import new_loop

_LENGTH = re.compile(rb"content-length: (\d+)")

ANSWER_SECONDS_MAX = 60.0
"""Whoever is not answered by then is taken to hang."""


class Job(msgspec.Struct):
    """What is to be offered."""

    client: int
    """Its messages are named after it."""
    port: int
    token: str
    path: str
    rate: float
    """Requests a second; 0: as many as are answered."""
    seconds: float
    rows: int
    """Messages of a request."""
    row_bytes: int
    connections_max: int


class Told(msgspec.Struct):
    """What came of it."""

    acknowledged: list[int]
    """Numbers of requests whose messages were taken."""
    statuses: dict[int, int]
    lost: int
    """Requests that were not answered: their connections were cut."""
    unsent: int
    """What was due and never sent, for want of connections."""
    unheard: list[str]
    """Refusals that do not say when to come again."""
    hung: int


def body_of(job: Job, number: int) -> bytes:
    """The messages of a request, one a line."""
    fill = "x" * job.row_bytes
    line = '{"body":"%d/%d/%d/%s"}'
    return "\n".join(line % (job.client, number, row, fill) for row in range(job.rows)).encode()


class Asker(asyncio.Protocol):
    """One connection."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._transport: asyncio.Transport | None = None
        self._number = -1
        self._since = 0.0
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._offer.open.add(self)
        self._offer.free(self)

    @property
    def is_busy(self) -> bool:
        return self._number >= 0

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def since(self) -> float:
        return self._since

    def ask(self, number: int, request: bytes) -> None:
        assert self._transport is not None
        self._number, self._since, self._data = number, time.monotonic(), b""
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, separator, body = self._data.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        if not separator or found is None or len(body) < int(found[1]):
            return
        number, self._number = self._number, -1
        self._offer.answered(number, int(head[9:12]), head)
        if b"connection: close" in head:
            self.close()
        else:
            self._offer.free(self)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._offer.gone(self)
        if self._number >= 0:
            self._offer.lost += 1


class Offer:
    """Offers what a job says."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._due: deque[int] = deque()
        self._idle: list[Asker] = []
        self.open: set[Asker] = set()
        self._making: set[asyncio.Task[None]] = set()
        self._next = 0
        self._statuses: Counter[int] = Counter()
        self._acknowledged: list[int] = []
        self._unheard: list[str] = []
        self.lost = 0
        self._is_over = False

    async def run(self) -> Told:
        """Offer, and wait for what is under way."""
        job = self._job
        began = time.monotonic()
        if not job.rate:
            for _ in range(job.connections_max):
                self._make()
        while (now := time.monotonic() - began) < job.seconds and not self._is_cut_off():
            while job.rate and self._next < now * job.rate:
                self._offer(self._next)
                self._next += 1
            await asyncio.sleep(0.01)
        self._is_over = True
        unsent = len(self._due)
        self._due.clear()
        hung = await self._finish()
        return Told(
            self._acknowledged, dict(self._statuses), self.lost, unsent, self._unheard, hung
        )

    def _is_cut_off(self) -> bool:
        """Whether there is nobody left who could ask."""
        return not self._job.rate and self._next > 0 and not self.open and not self._making

    async def _finish(self) -> int:
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while busy := sum(asker.is_busy for asker in self.open):
            if time.monotonic() > deadline:
                return busy
            await asyncio.sleep(0.05)
        return 0

    def _offer(self, number: int) -> None:
        while self._idle:
            asker = self._idle.pop()
            if not asker.is_closing:
                self._ask(asker, number)
                return
        self._due.append(number)
        if len(self.open) + len(self._making) < self._job.connections_max:
            self._make()

    def _make(self) -> None:
        task = asyncio.get_running_loop().create_task(self._connect())
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Asker(self), "127.0.0.1", self._job.port)
        except OSError:
            self._statuses[0] += 1

    def _ask(self, asker: Asker, number: int) -> None:
        job, body = self._job, body_of(self._job, number)
        head = (
            f"POST {job.path} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {job.token}\r\n"
            f"content-type: application/x-ndjson\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        asker.ask(number, head.encode() + body)

    def gone(self, asker: Asker) -> None:
        """A connection is lost, perhaps while it had nothing to do."""
        self.open.discard(asker)
        if asker in self._idle:
            self._idle.remove(asker)

    def free(self, asker: Asker) -> None:
        """A connection has nothing to do."""
        if self._due:
            self._ask(asker, self._due.popleft())
        elif self._job.rate or self._is_over:
            self._idle.append(asker)
        else:
            self._next += 1
            self._ask(asker, self._next)

    def answered(self, number: int, status: int, head: bytes) -> None:
        """A request was answered."""
        self._statuses[status] += 1
        if status == 201:
            self._acknowledged.append(number)
        elif status not in (429, 503) or b"retry-after: " not in head:
            self._unheard.append(head.decode(errors="replace"))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        told = runner.run(Offer(msgspec.json.decode(sys.stdin.buffer.read(), type=Job)).run())
    sys.stdout.buffer.write(msgspec.json.encode(told))
