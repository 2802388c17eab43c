"""From a publish to its row in Redis, by `millrace follow --into` in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import redis

from bench.report import Result, at_most, median
from bench.scratch import scratch
from bench.served import served
from millrace import sync
from tests.services.redis import Redis

MESSAGES = 300
EVERY_SECONDS = 0.01
"""100 messages a second arrive."""
LOOK_SECONDS = 0.0002
"""Between two looks at Redis: without a rest they would take a core from those they wait for."""


async def follow_redis() -> list[Result]:
    """One message after another, from the call of `publish` until Redis has it."""
    found = await asyncio.to_thread(_latencies)
    p50, p99 = median(found) * 1e3, sorted(found)[len(found) * 99 // 100] * 1e3
    reach, judge = at_most(10)
    return [
        Result(
            "follow_redis_p50_ms",
            "publish to a server, to the row in Redis by `follow --into`, 100 messages/s, p50",
            p50,
            "ms",
            "none",
            p50,
            reach,
            judge(p50),
            f"p99 {p99:.1f} ms",
        )
    ]


def _latencies() -> list[float]:
    with scratch() as folder, served(folder / "data") as server, Redis() as cache:
        url = f"http://127.0.0.1:{server.port}"
        with (
            sync.connect(url, token=server.token) as m,
            redis.Redis.from_url(cache.url) as reader,
        ):
            queue = m.queue("prices", keyed=True)
            queue.publish(b"first", key="k")
            follower = subprocess.Popen(
                [
                    *(sys.executable, "-m", "millrace.cli", "follow", "prices"),
                    *("--data", url, "--into", f"{cache.url}/0"),
                ],
                env={**os.environ, "MILLRACE_TOKEN": server.token},
                stdout=subprocess.DEVNULL,
            )
            try:
                _await(reader, b"first")
                return [_one(queue, reader, number) for number in range(MESSAGES)]
            finally:
                follower.terminate()
                follower.wait()


def _one(queue: sync.Queue, reader: redis.Redis, number: int) -> float:
    body = b"%d" % number
    began = time.perf_counter()
    queue.publish(body, key="k")
    _await(reader, body)
    took = time.perf_counter() - began
    time.sleep(max(0.0, EVERY_SECONDS - took))
    return took


def _await(reader: redis.Redis, body: bytes) -> None:
    while reader.get("k") != body:
        time.sleep(LOOK_SECONDS)
