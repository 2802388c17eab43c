"""Group `engine`, part two: leasing and settling, and what idle cursors cost."""

from __future__ import annotations

import asyncio
import os
import time

from bench.loop import sync_seconds
from bench.publish import BATCH, IN_FLIGHT, bodies, spread
from bench.report import Result, Usage, at_least, median
from bench.scratch import engine, node_of, scratch, settle_down
from millrace.client.queue import Queue

WORKERS = 8
CALL = 100


async def drain(
    queue: Queue, calls: int, *, workers: int = WORKERS, body_bytes: int = 1024
) -> float:
    """Seconds for so many lease calls of 100, each settled, bodies read as bytes."""

    async def worker(count: int) -> int:
        size = 0
        for _ in range(count):
            leases = await queue.lease(CALL, seconds=60)
            size += sum(len(lease.body) for lease in leases)
            await queue.settle(leases)
        return size

    began = time.perf_counter()
    sizes = await asyncio.gather(*(worker(calls // workers) for _ in range(workers)))
    took = time.perf_counter() - began
    if sum(sizes) != calls // workers * workers * CALL * body_bytes:
        raise AssertionError("the workers did not get every body")
    return took


async def lease_settle(calls: int = 1_600) -> list[Result]:
    """Lease 100, settle 100, by eight workers."""
    rows = bodies(1024)
    rates: list[float] = []
    syncs: list[float] = []
    extra = ""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=calls * CALL // 1000 * 2) as m:
            queue = await m.queue("bench")
            for turn in range(6):
                for _ in range(calls * CALL // BATCH):
                    await queue.publish_many(rows)
                bare = median(sync_seconds(folder / "bare", size=4096, count=1_000))
                usage = Usage(node_of(m).log)
                took = await drain(queue, calls)
                extra = usage.per_million(calls * CALL)
                await settle_down(m)
                if turn:
                    rates.append(calls * CALL / took)
                    syncs.append(1 / bare)
    ratio = median([rate / sync for rate, sync in zip(rates, syncs, strict=True)])
    reach, judge = at_least(15)
    return [
        Result(
            "lease_settle_100",
            f"lease {CALL} + settle {CALL}, 1 KB, {WORKERS} workers",
            median(rates),
            "messages/s",
            f"bare 4 KB syncs {median(syncs):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            extra,
        )
    ]


async def idle_cursors(cursors: int = 10_000, batches: int = 160) -> list[Result]:
    """Publishing to a queue that 10,000 cursors follow, against one without."""
    rows = [os.urandom(1024) for _ in range(BATCH)]
    without: list[float] = []
    beside: list[float] = []
    extra = ""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=batches * 2) as m:
            plain, followed = await m.queue("plain"), await m.queue("followed")
            await asyncio.gather(*(followed.cursor(f"c{n}") for n in range(cursors)))
            for turn in range(7):
                for queue, times in ((plain, without), (followed, beside)):
                    usage = Usage(node_of(m).log)
                    took = await spread(lambda q=queue: q.publish_many(rows), batches, IN_FLIGHT)
                    extra = usage.per_million(batches * BATCH)
                    await queue.purge()
                    await settle_down(m)
                    if turn:
                        times.append(took)
    ratio = median([a / b for a, b in zip(without, beside, strict=True)])
    reach, judge = at_least(0.95)
    return [
        Result(
            "idle_cursors",
            f"publish 1 KB x {BATCH} beside {cursors:,} idle cursors",
            batches * BATCH / median(beside),
            "messages/s",
            f"without: {batches * BATCH / median(without):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            extra,
        )
    ]
