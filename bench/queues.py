"""Group `queues`: what priorities and delays cost, and how late a delayed message is."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from array import array
from pathlib import Path

from bench.publish import BATCH, IN_FLIGHT, bodies, spread
from bench.report import Result, Usage, at_least, at_most, median
from bench.scratch import engine, node_of, scratch, settle_down
from bench.work import CALL, drain
from millrace.client.message import Message
from millrace.client.queue import Queue

_TURNS = [*((priority, None) for priority in range(10)), (4, 0.05), (9, 0.05)]
"""Priorities and delays of publish calls, one after the other."""


async def priority_delay(batches: int = 160) -> list[Result]:
    """Publish, lease and settle with priorities and delays, against neither."""
    rows = bodies(1024)
    plain: list[float] = []
    turned: list[float] = []
    extra = ""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=batches * 4) as m:
            one, other = await m.queue("plain"), await m.queue("turns")
            turns = itertools.cycle(_TURNS)

            async def publish_turned() -> None:
                priority, delay = next(turns)
                await other.publish_many(rows, priority=priority, delay=delay)

            for turn in range(6):
                began = time.perf_counter()
                await spread(lambda: one.publish_many(rows), batches, IN_FLIGHT)
                await drain(one, batches * BATCH // CALL)
                took = time.perf_counter() - began
                await settle_down(m)
                usage = Usage(node_of(m).log)
                began = time.perf_counter()
                await spread(publish_turned, batches, IN_FLIGHT)
                await asyncio.sleep(0.05)
                began += 0.05
                await drain(other, batches * BATCH // CALL)
                if turn:
                    plain.append(took)
                    turned.append(time.perf_counter() - began)
                extra = usage.per_million(batches * BATCH)
                await settle_down(m)
    ratio = median([a / b for a, b in zip(plain, turned, strict=True)])
    reach, judge = at_least(0.7)
    return [
        Result(
            "priority_delay",
            f"publish {BATCH} x 1 KB, lease and settle {CALL}, ten priorities and delays",
            batches * BATCH / median(turned),
            "messages/s",
            f"with neither: {batches * BATCH / median(plain):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            extra,
        )
    ]


async def delayed_lateness(
    messages: int = 1_000_000, seconds: int = 60, workers: int = 8
) -> list[Result]:
    """A million messages, each with a delay of its own, fall due over a minute."""
    chance = random.Random(1)
    with scratch() as folder:
        async with engine(folder / "data", megabytes=messages // 1000) as m:
            queue = await m.queue("delayed")
            # A trial says how long publishing takes: what is due comes after it.
            began = time.perf_counter()
            trial = messages // 50
            await _publish(queue, trial, time.time() + 3600, 60, chance)
            lead = 3 * 50 * (time.perf_counter() - began) + 10
            await queue.purge()
            start = time.time() + lead
            usage = Usage(node_of(m).log)
            await _publish(queue, messages, start, seconds, chance)
            late = start - time.time()
            if late < 0:
                raise AssertionError(f"publishing ended {-late:.0f} s too late")
            before = _anon_mb()
            lateness = array("d")
            peak = [before]
            await asyncio.gather(*(_work(queue, messages, lateness, peak) for _ in range(workers)))
            extra = usage.per_million(messages)
    late_ms = [1000 * seconds_late for seconds_late in sorted(lateness)]
    p99 = late_ms[len(late_ms) * 99 // 100]
    reach, judge = at_most(50)
    return [
        Result(
            "delayed_lateness_p99_ms",
            f"{messages:,} delayed messages falling due over {seconds} s",
            p99,
            "ms",
            f"median {median(late_ms):.1f} ms, last {late_ms[-1]:.0f} ms",
            p99,
            reach,
            judge(p99),
            f"RssAnon {before:.0f} MB before, up to {max(peak):.0f} MB; {extra}",
        )
    ]


async def _publish(
    queue: Queue, count: int, start: float, seconds: int, chance: random.Random
) -> None:
    for _ in range(count // BATCH):
        now = time.time()
        rows: list[Message] = []
        for _ in range(BATCH):
            due = start + chance.random() * seconds
            rows.append(Message(b"%.3f" % due, delay=due - now))
        await queue.publish_many(rows)


async def _work(queue: Queue, messages: int, lateness: array[float], peak: list[float]) -> None:
    while len(lateness) < messages:
        leases = await queue.lease(CALL, seconds=60, wait=1)
        now = time.time()
        lateness.extend(now - float(lease.body or b"0") for lease in leases)
        if len(lateness) // CALL % 100 == 0:
            peak.append(_anon_mb())
        if leases:
            await queue.settle(leases)


def _anon_mb() -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024
