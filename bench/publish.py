"""Group `engine`, part one: durable publishing."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from bench.bare import BareSegments
from bench.loop import LoopProgram
from bench.report import Result, Usage, at_least, at_most, median
from bench.scratch import engine, node_of, scratch, settle_down
from millrace.client.queue import Queue

ROUNDS = 5
BATCH = 1_000
IN_FLIGHT = 4
"""Publishers of batches that run side by side."""


def bodies(size: int, count: int = BATCH) -> list[bytes]:
    return [os.urandom(size) for _ in range(count)]


async def spread(publish: object, rounds: int, publishers: int) -> float:
    """Seconds for `rounds` calls by so many publishers side by side."""

    async def publisher(count: int) -> None:
        for _ in range(count):
            await publish()  # type: ignore[operator]

    began = time.perf_counter()
    await asyncio.gather(*(publisher(rounds // publishers) for _ in range(publishers)))
    return time.perf_counter() - began


def _bare_seconds(folder: Path, size: int, commits: int) -> float:
    segments = BareSegments(folder, segments=4)
    buffer = memoryview(bytes(-(-size // 4096) * 4096))
    began = time.perf_counter()
    for _ in range(commits):
        segments.commit(buffer)
    took = time.perf_counter() - began
    segments.close()
    return took


async def publish_batches(size: int, batches: int, identity: str, bound: float) -> list[Result]:
    """Batches of 1,000, against the loop and the bare disk, in turns."""
    rows = bodies(size)
    ours: list[float] = []
    loops: list[float] = []
    bares: list[float] = []
    extra = ""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=size * BATCH * batches // 1_000_000) as m:
            queue = await m.queue("bench")
            program = LoopProgram(folder / "loop", segments=16)
            for turn in range(ROUNDS + 1):
                bare = _bare_seconds(folder / f"bare{turn}", size * BATCH, batches)
                loop = await spread(lambda: program.publish(rows), batches, IN_FLIGHT)
                usage = Usage(node_of(m).log)
                own = await spread(lambda: queue.publish_many(rows), batches, IN_FLIGHT)
                extra = usage.per_million(batches * BATCH)
                await queue.purge()
                await settle_down(m)
                if turn:
                    bares.append(bare)
                    loops.append(loop)
                    ours.append(own)
            program.close()
    rate = batches * BATCH / median(ours)
    reach, judge = at_least(bound)
    ratio = median([b / o for b, o in zip(loops, ours, strict=True)])
    to_bare = median([b / o for b, o in zip(bares, ours, strict=True)])
    return [
        Result(
            identity,
            f"durable publish, {size} B, batches of {BATCH}, {IN_FLIGHT} in flight",
            rate,
            "messages/s",
            f"loop {batches * BATCH / median(loops):,.0f}/s; "
            f"{to_bare:.2f} x bare {batches * BATCH / median(bares):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            extra,
        )
    ]


async def publish_single(publishers: int = 64, each: int = 400) -> list[Result]:
    """One message at a time, by many publishers."""
    body = os.urandom(1024)
    ours: list[float] = []
    loops: list[float] = []
    extra = ""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=200) as m:
            queue = await m.queue("bench")
            program = LoopProgram(folder / "loop", segments=4)
            for turn in range(ROUNDS + 1):
                total = publishers * each
                loop = await spread(lambda: program.publish([body]), total, publishers)
                usage = Usage(node_of(m).log)
                own = await spread(lambda: queue.publish(body), total, publishers)
                extra = usage.per_million(total)
                await queue.purge()
                await settle_down(m)
                if turn:
                    loops.append(loop)
                    ours.append(own)
            program.close()
    ratio = median([b / o for b, o in zip(loops, ours, strict=True)])
    reach, judge = at_least(0.4)
    return [
        Result(
            "publish_single_64",
            f"one message of 1 KB at a time, {publishers} publishers",
            publishers * each / median(ours),
            "messages/s",
            f"loop {publishers * each / median(loops):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            extra,
        )
    ]


def _raw_twice(folder: Path, block: memoryview, blocks: int) -> float:
    """The same bytes to recycled segments, then to growing files, synced every 4 MB."""
    segments = BareSegments(folder, segments=8)
    began = time.perf_counter()
    for _ in range(blocks):
        segments.commit(block)
    descriptor = os.open(folder / "grown", os.O_CREAT | os.O_RDWR)
    for at in range(blocks):
        os.pwritev(descriptor, [block], at * len(block))
        if at % 4 == 3:
            os.fdatasync(descriptor)
    os.fsync(descriptor)
    took = time.perf_counter() - began
    os.close(descriptor)
    segments.close()
    (folder / "grown").unlink()
    return took


async def publish_sealed(batches: int = 384) -> list[Result]:
    """Publishing and sealing, until everything lies in files."""
    rows = bodies(1024)
    payload = batches * BATCH * 1024
    block = memoryview(bytes(-(-BATCH * 1028 // 4096) * 4096))
    ours: list[float] = []
    raws: list[float] = []
    written: list[float] = []
    zeroed = 0
    for turn in range(4):
        with scratch() as folder:
            raw = _raw_twice(folder / "raw", block, batches)
            async with engine(folder / "data", megabytes=payload // 1_000_000) as m:
                queue = await m.queue("bench")
                usage = Usage(node_of(m).log)
                began = time.perf_counter()
                await spread(lambda queue=queue: queue.publish_many(rows), batches, IN_FLIGHT)
                await node_of(m).keeper.seal_all()
                own = time.perf_counter() - began
                zeroed = usage.zeroed()
                bytes_written = usage.written()
            if turn:
                ours.append(own)
                raws.append(raw)
                written.append(bytes_written / payload)
    ratio = median([b / o for b, o in zip(raws, ours, strict=True)])
    reach, judge = at_least(0.6)
    most, within = at_most(2.3)
    return [
        Result(
            "publish_1k_sealed",
            f"publish 1 KB in batches of {BATCH} until all is sealed",
            batches * BATCH / median(ours),
            "messages/s",
            f"raw, twice: {batches * BATCH / median(raws):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            f"zero-filled meanwhile: {zeroed / 1e6:.0f} MB",
        ),
        Result(
            "publish_1k_written",
            "bytes written by the same",
            median(written) * payload / 1e6,
            "MB",
            f"payload {payload / 1e6:.0f} MB",
            median(written),
            most,
            within(median(written)),
        ),
    ]


async def publish_to_lease(count: int = 400) -> list[Result]:
    """From publish to lease in another task, and beside a busy thread of the application."""
    bares: list[float] = []
    with scratch() as folder:
        async with engine(folder / "data", megabytes=64) as m:
            queue = await m.queue("bench")
            segments = BareSegments(folder / "bare", segments=2)
            page = memoryview(bytes(4096))
            alone: list[float] = []
            for _ in range(4):
                bares.extend(segments.commit(page) for _ in range(count // 4))
                alone.extend(await _hand_over(queue, count // 4))
            busy = await _beside_a_busy_thread(queue, count)
            segments.close()
    ratio = median(alone) / median(bares)
    reach, judge = at_most(2.5)
    return [
        Result(
            "publish_to_lease",
            "publish -> lease in another task, p50",
            median(alone) * 1e6,
            "us",
            f"one bare commit {median(bares) * 1e6:.0f} us; "
            f"beside a busy thread {median(busy) * 1e6:.0f} us",
            ratio,
            reach,
            judge(ratio),
        )
    ]


async def _hand_over(queue: Queue, count: int) -> list[float]:
    took: list[float] = []
    for _ in range(count):
        waiting = asyncio.ensure_future(queue.lease(1, wait=10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        began = time.perf_counter()
        publishing = asyncio.ensure_future(queue.publish(b"x" * 100))
        leases = await waiting
        took.append(time.perf_counter() - began)
        await publishing
        await queue.settle(leases)
    return took


async def _beside_a_busy_thread(queue: Queue, count: int) -> list[float]:
    import threading

    stop = threading.Event()

    def spin() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        return await _hand_over(queue, count)
    finally:
        stop.set()
        thread.join()
