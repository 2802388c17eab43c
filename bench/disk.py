"""Group `queues`, on disk: what one stuck message costs while others pass by."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.publish import BATCH, bodies
from bench.report import Result, at_most
from bench.scratch import SEGMENT_MEGABYTES, engine, scratch
from bench.work import CALL, WORKERS
from millrace.client.queue import Queue
from millrace.settings import Settings

SMALL_LOG = Settings(log_segments_free=1, log_segments_unsealed=1)
"""The least log that leaves a segment alone before it is sealed: disk instead of writing once."""

_MEGABYTE = 1024 * 1024
_PERMITTED_BYTES = (3 * SEGMENT_MEGABYTES + 64) * _MEGABYTE


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
    ratio = peak / (2 * live + _PERMITTED_BYTES)
    reach, judge = at_most(1)
    return [
        Result(
            "stuck_disk",
            f"disk with one stuck message and {messages:,} x 1 KB passing by",
            peak / _MEGABYTE,
            "MB",
            f"2 x live bytes + 3 segments + 64 MB = {_PERMITTED_BYTES // _MEGABYTE} MB",
            ratio,
            reach,
            judge(ratio),
            f"{messages / took:,.0f} messages/s, log_segments_unsealed="
            f"{settings.log_segments_unsealed}",
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
