"""Group `server`: many messages at once, as Arrow."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from bench.publish import BATCH, IN_FLIGHT, bodies, spread
from bench.report import Result, at_least, median
from bench.scratch import engine, recycled, scratch
from bench.served import served

TURNS_OF_BULK = 5
BODIES = (1, 4)
"""Batches in the body of one request; the last is what is judged."""


async def rest_bulk_arrow(batches: int = 1600) -> list[Result]:
    """Durable publishes of Arrow, against the same batches in the process.

    Both write into segments that were filled beforehand, as those of a log are that has run for a
    while, and as many of them that nothing is sealed meanwhile.
    """
    batch = pa.record_batch({"value": pa.array(bodies(1024), pa.binary())})
    own: list[float] = []
    cpus: list[float] = []
    loads: dict[int, list[_Load]] = {size: [] for size in BODIES}
    with scratch() as folder:
        for turn in range(TURNS_OF_BULK):
            rate, cpu = await _embedded(folder / f"own{turn}", batch, batches)
            own.append(rate)
            cpus.append(cpu)
            for size in BODIES:
                loads[size].append(await _served(folder / f"rest{turn}-{size}", size, batches))
    size = BODIES[-1]
    told = loads[size]
    ratios = {
        size: median([one.rate / rate for one, rate in zip(loads[size], own, strict=True)])
        for size in BODIES
    }
    reach, judge = at_least(0.6)
    beside = ", ".join(f"{ratios[each]:.2f} with bodies of {each * BATCH}" for each in BODIES[:-1])
    return [
        Result(
            "rest_bulk_arrow",
            f"Arrow of {size * BATCH} x 1 KB, {IN_FLIGHT} connections",
            median([one.rate for one in told]),
            "messages/s",
            f"embedded, batches of {BATCH}: {median(own):,.0f}/s",
            ratios[size],
            reach,
            judge(ratios[size]),
            f"{beside}; CPU s per million: server {median([one.server for one in told]):.2f}, "
            f"client {median([one.client for one in told]):.2f}, embedded {median(cpus):.2f}; "
            f"the client was busy for {max(one.busy for one in told):.0%} of its time at most",
        )
    ]


class _Load(NamedTuple):
    rate: float
    server: float
    client: float
    busy: float


async def _served(folder: Path, size: int, batches: int) -> _Load:
    """What comes of requests of so many batches each."""
    file = folder.with_suffix(".arrow")
    batch = pa.record_batch({"value": pa.array(bodies(1024) * size, pa.binary())})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    settings = recycled(batches * 5 // 4)
    async with engine(folder, settings=settings):
        pass
    with served(folder, settings=settings) as server:
        told = await asyncio.to_thread(server.load, "arrow", IN_FLIGHT, str(file), batches // size)
    messages = told.rounds * size * BATCH
    each = messages / 1e6
    shutil.rmtree(folder)
    return _Load(
        messages / told.seconds,
        told.server_cpu / each,
        told.client_cpu / each,
        told.client_cpu / told.seconds,
    )


async def _embedded(folder: Path, batch: pa.RecordBatch, batches: int) -> tuple[float, float]:
    """Messages a second, and CPU seconds of a million."""
    async with engine(folder, settings=recycled(batches * 5 // 4)) as m:
        queue = await m.queue("bench")
        await spread(lambda: queue.publish_many(batch), batches // 10, IN_FLIGHT)
        used = time.process_time()
        took = await spread(lambda: queue.publish_many(batch), batches, IN_FLIGHT)
        used = time.process_time() - used
    return batches * BATCH / took, used / (batches * BATCH / 1e6)
