"""Group `server`: many messages at once, as Arrow."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pyarrow as pa

from bench.publish import BATCH, IN_FLIGHT, bodies, spread
from bench.report import Result, at_least, median
from bench.scratch import engine, recycled, scratch
from bench.served import TURNS, served


async def rest_bulk_arrow(batches: int = 800) -> list[Result]:
    """Durable publishes of Arrow, against the same batches in the process.

    Both write into segments that were filled beforehand, as those of a log are that has run for a
    while, and as many of them that nothing is sealed meanwhile.
    """
    batch = pa.record_batch({"value": pa.array(bodies(1024), pa.binary())})
    own: list[float] = []
    rates: list[float] = []
    cpus: list[tuple[float, float, float]] = []
    busy = 0.0
    with scratch() as folder:
        file = folder / "batch.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        for turn in range(TURNS):
            rate, cpu = await _embedded(folder / f"own{turn}", batch, batches)
            own.append(rate)
            settings = recycled(batches * 5 // 4)
            async with engine(folder / f"rest{turn}", settings=settings):
                pass
            with served(folder / f"rest{turn}", settings=settings) as server:
                told = await asyncio.to_thread(server.load, "arrow", IN_FLIGHT, str(file), batches)
            rates.append(told.rounds * BATCH / told.seconds)
            each = told.rounds * BATCH / 1e6
            cpus.append((cpu, told.server_cpu / each, told.client_cpu / each))
            busy = max(busy, told.client_cpu / told.seconds)
    ratio = median([a / b for a, b in zip(rates, own, strict=True)])
    reach, judge = at_least(0.6)
    embedded, server_cpu, client = (median(list(one)) for one in zip(*cpus, strict=True))
    return [
        Result(
            "rest_bulk_arrow",
            f"Arrow of {BATCH} x 1 KB, {IN_FLIGHT} connections",
            median(rates),
            "messages/s",
            f"embedded: {median(own):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            f"CPU s per million: server {server_cpu:.2f}, client {client:.2f}, embedded "
            f"{embedded:.2f}; the client was busy for {busy:.0%} of its time at most",
        )
    ]


async def _embedded(folder: Path, batch: pa.RecordBatch, batches: int) -> tuple[float, float]:
    """Messages a second, and CPU seconds of a million."""
    async with engine(folder, settings=recycled(batches * 5 // 4)) as m:
        queue = await m.queue("bench")
        await spread(lambda: queue.publish_many(batch), batches // 10, IN_FLIGHT)
        used = time.process_time()
        took = await spread(lambda: queue.publish_many(batch), batches, IN_FLIGHT)
        used = time.process_time() - used
    return batches * BATCH / took, used / (batches * BATCH / 1e6)
