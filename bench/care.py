"""Group `queues`, care: what a backup costs those who publish beside it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time

from bench.publish import BATCH, IN_FLIGHT, bodies
from bench.report import Result, Usage, at_least, median
from bench.scratch import engine, node_of, scratch
from millrace.client.queue import Queue
from millrace.settings import Settings

SETTINGS = Settings(log_segments_max=48, log_segments_free=8)


async def backup_publish(megabytes: int | None = None) -> list[Result]:
    """Publish while a backup of so much is made, against publishing alone, in turns."""
    size = megabytes or int(os.environ.get("BACKUP_MEGABYTES", "5000"))
    rows = bodies(1024)
    alone: list[float] = []
    beside: list[float] = []
    seconds: list[float] = []
    with scratch() as folder:
        async with engine(folder / "data", settings=SETTINGS) as m:
            kept, queue = await m.queue("kept"), await m.queue("bench")
            for _ in range(size * 1_000_000 // (1024 * BATCH)):
                await kept.publish_many(rows)
            await node_of(m).checkpointer.seal_all()
            usage = Usage(node_of(m).log)
            count = 0
            for turn in range(4):
                vault = folder / f"vault{turn}"
                copied = asyncio.ensure_future(_back_up(m.backup(vault)))
                made = await _publish(queue, rows, copied)
                took = await copied
                shutil.rmtree(vault)
                # As long as the backup took, with nothing beside it.
                pause = asyncio.ensure_future(_wait(max(took, 1.0)))
                free = await _publish(queue, rows, pause)
                count += made[0] + free[0]
                if turn:
                    beside.append(made[0] / made[1])
                    alone.append(free[0] / free[1])
                    seconds.append(took)
                await queue.purge()
            extra = usage.per_million(count)
    ratio = median([b / a for a, b in zip(alone, beside, strict=True)])
    reach, judge = at_least(0.7)
    return [
        Result(
            "backup_publish",
            f"publish {BATCH} x 1 KB beside a backup of {size} MB, on one file system",
            median(beside),
            "messages/s",
            f"with no backup: {median(alone):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            f"the backup took {median(seconds):.1f} s; {extra}",
        )
    ]


async def _back_up(work: object) -> float:
    began = time.perf_counter()
    await work  # type: ignore[misc]
    return time.perf_counter() - began


async def _wait(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def _publish(
    queue: Queue, rows: list[bytes], until: asyncio.Future[float]
) -> tuple[int, float]:
    """Messages and seconds, by a few publishers, until something ends."""
    count = 0

    async def publisher() -> None:
        nonlocal count
        while not until.done():
            await queue.publish_many(rows)
            count += len(rows)

    began = time.perf_counter()
    await asyncio.gather(*(publisher() for _ in range(IN_FLIGHT)))
    return count, time.perf_counter() - began
