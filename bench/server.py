"""Group `server`: what HTTP costs beside the engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from bench.report import Result, at_least, at_most, median
from bench.rest_load import cpu_of
from bench.scratch import engine, scratch
from bench.served import CONNECTIONS, QUEUE, TURNS, Served, served


async def rest_single() -> list[Result]:
    """Publish, lease and settle single messages, against three empty requests."""
    ratios: list[float] = []
    rates: list[float] = []
    empties: list[float] = []
    client = 0.0
    with scratch() as folder, served(folder / "data") as server:
        for _ in range(TURNS):
            empty = await asyncio.to_thread(server.load, "empty", CONNECTIONS)
            own = await asyncio.to_thread(server.load, "triples", CONNECTIONS)
            empties.append(empty.rounds / empty.seconds)
            rates.append(own.rounds / own.seconds)
            ratios.append(rates[-1] / empties[-1])
            client = max(client, empty.client_cpu / empty.seconds, own.client_cpu / own.seconds)
    reach, judge = at_least(0.5)
    ratio = median(ratios)
    return [
        Result(
            "rest_single",
            f"publish, lease and settle of 100 bytes, {CONNECTIONS} connections",
            median(rates),
            "messages/s",
            f"three empty authenticated requests: {median(empties):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            f"the client was busy for {client:.0%} of its time at most",
        )
    ]


async def long_poll_latency(messages: int = 2_000) -> list[Result]:
    """From a publish to a long poll in another process, against the embedded way."""
    with scratch() as folder:
        async with engine(folder / "own") as m:
            queue = await m.queue("bench")
            embedded = await _embedded_latency(queue, messages)
        with served(folder / "rest") as server:
            polled = await asyncio.to_thread(_polled_latency, server, messages)
    ratio = median(polled) / median(embedded)
    reach, judge = at_most(3)
    return [
        Result(
            "long_poll_latency",
            "publish over REST to a long poll in another process, p50",
            median(polled) * 1e6,
            "us",
            f"embedded: {median(embedded) * 1e6:,.0f} us",
            ratio,
            reach,
            judge(ratio),
            "",
        )
    ]


async def _embedded_latency(queue: object, messages: int) -> list[float]:
    from millrace.client.queue import Queue

    assert isinstance(queue, Queue)
    found: list[float] = []
    for _ in range(messages):
        waiting = asyncio.create_task(queue.lease(1, wait=10))
        await asyncio.sleep(0)
        began = time.perf_counter()
        await queue.publish(b"x")
        [lease] = await waiting
        found.append(time.perf_counter() - began)
        await lease.settle()
    return found


_POLLER = """
import http.client, json, sys, time
port, token, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
def ask(path, body):
    connection.request("POST", path, body, headers)
    return connection.getresponse().read()
queue = "/v1/spaces/default/queues/bench"
for _ in range(count):
    print("waiting", flush=True)
    answer = ask(queue + "/leases", '{"wait": 20}')
    print(time.clock_gettime_ns(time.CLOCK_MONOTONIC), flush=True)
    receipt = json.loads(answer)["messages"][0]["receipt"]
    ask(queue + "/settle", json.dumps({"receipts": [receipt]}))
"""


def _polled_latency(server: Served, messages: int) -> list[float]:
    """With clocks that are the same in all processes of the machine."""
    poller = subprocess.Popen(
        [sys.executable, "-c", _POLLER, str(server.port), server.token, str(messages)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert poller.stdout is not None
    connection = server.connect()
    found: list[float] = []
    for _ in range(messages):
        assert poller.stdout.readline() == "waiting\n"
        # It is about to ask; a message that is there already would measure no wait.
        time.sleep(0.002)
        began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        connection.request("POST", f"{QUEUE}/messages", '{"body":"x"}', server.headers())
        connection.getresponse().read()
        found.append((int(poller.stdout.readline()) - began) / 1e9)
    poller.wait(60)
    connection.close()
    return found


async def idle_polls(polls: int = 10_000, seconds: float = 300.0) -> list[Result]:
    """What long polls cost that wait for nothing."""
    with scratch() as folder, served(folder / "data", "--set", "connections_max=20000") as server:
        pid = server.process.pid
        before = anonymous_kb(pid)
        loop = asyncio.get_running_loop()
        body = b'{"wait":%d}' % seconds
        head = (
            f"POST {QUEUE}/leases HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer {server.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        open_ones = []
        heard: list[bytes] = []
        for _ in range(polls):
            transport, _ = await loop.create_connection(
                lambda: _Ear(heard), "127.0.0.1", server.port
            )
            transport.write(head.encode() + body)
            open_ones.append(transport)
        await asyncio.sleep(5)
        size = (anonymous_kb(pid) - before) / polls
        began, used = time.perf_counter(), cpu_of(pid)
        await asyncio.sleep(seconds - 60)
        spent = (cpu_of(pid) - used) / (time.perf_counter() - began) * 60
        assert not heard, heard[0]
        for transport in open_ones:
            transport.abort()
    told = f"{polls:,} long polls that wait"
    cpu, judge_cpu = at_most(1)
    memory, judge_memory = at_most(20)
    return [
        Result("idle_polls_core_s", told, spent, "core-s/min", "", spent, cpu, judge_cpu(spent)),
        Result("idle_polls_kb", told, size, "KB each", "", size, memory, judge_memory(size)),
    ]


class _Ear(asyncio.Protocol):
    """Whoever waits must hear nothing, not even the end."""

    def __init__(self, heard: list[bytes]) -> None:
        self._heard = heard

    def data_received(self, data: bytes) -> None:
        self._heard.append(data)

    def eof_received(self) -> None:
        self._heard.append(b"")


def anonymous_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    raise OSError(f"no memory of {pid}")
