"""Group `engine`, part one: durable publishing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

from bench.bare import BareSegments
from bench.loop import LoopProgram
from bench.report import Result, Usage, at_least, at_most, median
from bench.scratch import engine, node_of, scratch, settle_down
from millrace.client.queue import Queue
from millrace.settings import Settings

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


def _raw_twice(segments: BareSegments, grown: Path, block: memoryview, blocks: int) -> float:
    """The same bytes to recycled segments, then to a growing file, synced every 4 MB."""
    began = time.perf_counter()
    for _ in range(blocks):
        segments.commit(block)
    descriptor = os.open(grown, os.O_CREAT | os.O_RDWR)
    for at in range(blocks):
        os.pwritev(descriptor, [block], at * len(block))
        if at % 4 == 3:
            os.fdatasync(descriptor)
    os.fsync(descriptor)
    took = time.perf_counter() - began
    os.close(descriptor)
    grown.unlink()
    return took


SEALING = Settings(log_segments_max=12, log_segments_free=12, log_segments_unsealed=0)
"""Sealing begins while publishing goes on. All segments are made beforehand and then recycled, as
they are in a log that has run for a while."""


async def publish_sealed(batches: int = 384) -> list[Result]:
    """Publishing with sealing on, until everything lies in files."""
    rows = bodies(1024)
    payload = batches * BATCH * 1024
    block = memoryview(bytes(-(-BATCH * 1028 // 4096) * 4096))
    ours: list[float] = []
    raws: list[float] = []
    written: list[float] = []
    zeroed = 0
    extra = ""
    with scratch() as folder:
        async with engine(folder / "data", settings=SEALING) as m:
            queue = await m.queue("bench")
            segments = BareSegments(folder / "raw", segments=8)
            for turn in range(ROUNDS + 1):
                raw = _raw_twice(segments, folder / "grown", block, batches)
                usage = Usage(node_of(m).log)
                began = time.perf_counter()
                await spread(lambda: queue.publish_many(rows), batches, IN_FLIGHT)
                await node_of(m).checkpointer.seal_all()
                own = time.perf_counter() - began
                zeroed = usage.zeroed()
                bytes_written = usage.written()
                extra = usage.per_million(batches * BATCH)
                await queue.purge()
                await settle_down(m)
                if turn:
                    ours.append(own)
                    raws.append(raw)
                    written.append(bytes_written / payload)
            segments.close()
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
            f"{extra}; zero-filled meanwhile: {zeroed / 1e6:.0f} MB",
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


async def publish_to_lease(count: int = 1_000) -> list[Result]:
    """From publish to lease in another task, and beside a busy thread of the application.

    A bare commit before each: one alone takes longer than one of many in a row, for both.
    """
    page = memoryview(bytes(4096))
    with scratch() as folder:
        async with engine(folder / "data", megabytes=64) as m:
            queue = await m.queue("bench")
            segments = BareSegments(folder / "bare", segments=2)
            await _hand_over(queue, segments, page, count // 4)
            usage = Usage(node_of(m).log)
            took = await _hand_over(queue, segments, page, count)
            extra = usage.per_million(count)
            busy = await _beside_a_busy_thread(queue, segments, page, count // 4)
            in_a_row = [segments.commit(page) for _ in range(count)]
            segments.close()
    bare = median([bare for bare, _ in took])
    own = median([own for _, own in took])
    reach, judge = at_most(2.5)
    return [
        Result(
            "publish_to_lease",
            "publish -> lease in another task, p50",
            own * 1e6,
            "us",
            f"one bare commit {bare * 1e6:.0f} us ({median(in_a_row) * 1e6:.0f} us in a row); "
            f"beside a busy thread {median([own for _, own in busy]) * 1e6:.0f} us",
            own / bare,
            reach,
            judge(own / bare),
            extra,
        )
    ]


async def _hand_over(
    queue: Queue, segments: BareSegments, page: memoryview, count: int
) -> list[tuple[float, float]]:
    """Seconds of a bare commit and of a message's way to whoever waits for it, in turns."""
    took: list[tuple[float, float]] = []
    for _ in range(count):
        waiting = asyncio.ensure_future(queue.lease(1, wait=10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bare = segments.commit(page)
        began = time.perf_counter()
        publishing = asyncio.ensure_future(queue.publish(b"x" * 100))
        leases = await waiting
        took.append((bare, time.perf_counter() - began))
        await publishing
        await queue.settle(leases)
    return took


async def _beside_a_busy_thread(
    queue: Queue, segments: BareSegments, page: memoryview, count: int
) -> list[tuple[float, float]]:
    stop = threading.Event()

    def spin() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        return await _hand_over(queue, segments, page, count)
    finally:
        stop.set()
        thread.join()
