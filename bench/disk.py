"""Group `queues`, on disk: what one stuck message costs while others pass by."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.publish import BATCH, bodies
from bench.report import Result, at_most
from bench.scratch import engine, scratch
from bench.work import CALL, WORKERS
from millrace import limits
from millrace.client.queue import Queue
from millrace.settings import Settings

SMALL_LOG = Settings(
    segment_bytes=16 * 1024 * 1024,
    log_segments_max=limits.LOG_SEGMENTS_RESERVE + 2,
    log_segments_free=1,
    log_segments_unsealed=0,
)
"""The least log there is: publishing waits for sealing rather than take more of the disk."""

_MEGABYTE = 1024 * 1024


async def stuck_disk(messages: int = 10_000_000, settings: Settings = SMALL_LOG) -> list[Result]:
    """The most disk in use while one message is stuck and `messages` of 1 KB pass."""
    rows = bodies(1024)
    peak = 0
    with scratch() as folder:
        async with engine(folder / "data", settings=settings) as m:
            queue = await m.queue("stuck")
            await queue.publish(bytes(1024))
            [stuck] = await queue.lease(1, seconds=3600)
            began = time.perf_counter()
            for _ in range(messages // (BATCH * 8)):
                await asyncio.gather(*(queue.publish_many(rows) for _ in range(8)))
                await _settle(queue, BATCH * 8)
                peak = max(peak, _used(folder / "data"))
            took = time.perf_counter() - began
            live = (await queue.stats())["live"] * 1024
            await stuck.settle()
    permitted = 2 * live + 3 * settings.segment_bytes + 64 * _MEGABYTE
    ratio = peak / permitted
    reach, judge = at_most(1)
    return [
        Result(
            "stuck_disk",
            f"disk with one stuck message and {messages:,} x 1 KB passing by",
            peak / _MEGABYTE,
            "MB",
            f"2 x live bytes + 3 segments + 64 MB = {permitted // _MEGABYTE} MB",
            ratio,
            reach,
            judge(ratio),
            f"{messages / took:,.0f} messages/s, at most {settings.log_segments_max} segments of "
            f"{settings.segment_bytes // _MEGABYTE} MB",
        )
    ]


async def _settle(queue: Queue, count: int) -> None:
    async def worker() -> int:
        done = 0
        while leases := await queue.lease(CALL, seconds=600):
            await queue.settle(leases)
            done += len(leases)
        return done

    done = sum(await asyncio.gather(*(worker() for _ in range(WORKERS))))
    if done != count:
        raise AssertionError(f"{done} of {count} messages were settled")


def _used(folder: Path) -> int:
    """Bytes that the folder's files take on the disk."""
    used = 0
    for path in folder.rglob("*"):
        try:
            used += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return used
