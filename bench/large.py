"""Group `engine`, part four: many keys, and a backlog of ten million messages."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import lmdb

from bench.publish import BATCH, IN_FLIGHT, spread
from bench.report import Result, Usage, at_least, at_most, median
from bench.scratch import engine, node_of, scratch, settle_down
from bench.work import CALL, WORKERS, drain
from millrace.client.millrace import Millrace
from millrace.core.model import NewMessage
from millrace.settings import Settings

KEYS = 500_000
STORE = 10_000_000


async def keyed(total: int = STORE) -> list[Result]:
    """Keyed publishing over 500,000 keys at random while the store grows, against bare LMDB."""
    chance = random.Random(1)
    names = [b"key-%012d" % number for number in range(KEYS)]
    body = os.urandom(100)
    rates: list[tuple[int, float]] = []
    bares: list[float] = []
    step = 250_000
    with scratch() as folder:
        bare = _BareKeys(folder / "lmdb")
        for _ in range(KEYS // BATCH):
            bare.put(chance.sample(names, BATCH))
        async with engine(folder / "data", settings=Settings()) as m:
            queue = await m.queue("bench", keyed=True, retention="log")
            usage = Usage(node_of(m).log)
            done = 0
            while done < total:
                batches = [
                    [NewMessage(body, key) for key in chance.choices(names, k=BATCH)]
                    for _ in range(step // BATCH)
                ]
                waiting = iter(batches)
                began = time.perf_counter()
                await spread(
                    lambda waiting=waiting: queue.publish_many(next(waiting)),
                    len(batches),
                    IN_FLIGHT,
                )
                took = time.perf_counter() - began
                done += step
                rates.append((done, step / took))
                if done % 1_000_000 == 0:
                    keys = [[m.key for m in batch if m.key] for batch in batches[:40]]
                    began = time.perf_counter()
                    for batch in keys:
                        bare.put(batch)
                    bares.append(len(keys) * BATCH / (time.perf_counter() - began))
                    print(f"  {done:,} messages, {rates[-1][1]:,.0f}/s", flush=True)
            costs = usage.per_million(total)
        bare.close()
    early = [rate for at, rate in rates if 1_000_000 <= at <= 3_000_000]
    late = [rate for at, rate in rates if at > total - 2_000_000]
    everything = median([rate for at, rate in rates if at >= 1_000_000])
    ratio = everything / median(bares)
    flat = median(late) / median(early)
    reach, judge = at_least(1)
    flat_reach, flat_judge = at_least(0.8)
    return [
        Result(
            "keyed_500k",
            f"keyed publish, 100 B, {KEYS:,} keys at random, batches of {BATCH}",
            everything,
            "messages/s",
            f"bare LMDB {median(bares):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            costs,
        ),
        Result(
            "keyed_flat",
            "the same at 10 M messages in the store, against 1 M",
            median(late),
            "messages/s",
            f"at 1 M: {median(early):,.0f}/s",
            flat,
            flat_reach,
            flat_judge(flat),
        ),
    ]


class _BareKeys:
    """The baseline: put key → seq, same batches, each committed and synced."""

    def __init__(self, folder: Path) -> None:
        self._environment = lmdb.open(str(folder), map_size=1 << 32)
        self._seq = 0

    def put(self, keys: list[bytes]) -> None:
        with self._environment.begin(write=True) as transaction:
            items = [(key, (self._seq + n).to_bytes(8, "big")) for n, key in enumerate(keys)]
            with transaction.cursor() as cursor:
                cursor.putmulti(sorted(items))
        self._seq += len(keys)

    def close(self) -> None:
        self._environment.close()


async def backlog(total: int = STORE) -> list[Result]:
    """Ten million messages of 100 B: open, lease from it, drain it, publish again."""
    rows = [os.urandom(100) for _ in range(BATCH)]
    big = [os.urandom(1024) for _ in range(BATCH)]
    with scratch() as folder:
        async with engine(folder / "data", settings=Settings()) as m:
            queue = await m.queue("bench")
            for _ in range(total // BATCH // 50):
                await spread(lambda: queue.publish_many(rows), 50, IN_FLIGHT)
            print("  backlog written", flush=True)
        opened = [_open_in_child(folder / "data") for _ in range(3)]
        async with engine(folder / "data", settings=Settings()) as m:
            queue = await m.queue("bench")
            short = await m.queue("short")
            costs = ""
            deep_rate: list[float] = []
            short_rate: list[float] = []
            for turn in range(5):
                for _ in range(160):
                    await short.publish_many([body[:100] for body in big])
                short_took = await _drain(short, 1_600)
                usage = Usage(node_of(m).log)
                deep_took = await _drain(queue, 1_600)
                costs = usage.per_million(160_000)
                if turn:
                    short_rate.append(160_000 / short_took)
                    deep_rate.append(160_000 / deep_took)
            while (left := (await queue.stats())["live"] // CALL) >= WORKERS:
                await _drain(queue, min(8_000, left // WORKERS * WORKERS))
            while leases := await queue.lease(CALL):
                await queue.settle(leases)
            print("  backlog drained", flush=True)
            await settle_down(m)
            async with engine(folder / "fresh", settings=Settings()) as fresh:
                rates = await _rates(m, fresh, big)
    seconds = median([took for took, _ in opened])
    anon = max(rss for _, rss in opened)
    under, judge_open = at_most(1)
    light, judge_anon = at_most(300)
    lease_ratio = median([d / s for d, s in zip(deep_rate, short_rate, strict=True)])
    near, judge_lease = at_least(0.9)
    after_ratio = median([after / fresh for after, fresh in rates])
    return [
        Result(
            "open_10m_s",
            f"open a folder with a backlog of {total:,} messages",
            seconds,
            "s",
            "1 s",
            seconds,
            under,
            judge_open(seconds),
        ),
        Result(
            "open_10m_rss_mb",
            "anonymous memory after opening it and leasing once",
            anon,
            "MB",
            "300 MB",
            anon,
            light,
            judge_anon(anon),
        ),
        Result(
            "lease_backlog",
            f"lease {CALL} + settle {CALL} from the backlog",
            median(deep_rate),
            "messages/s",
            f"from a short queue {median(short_rate):,.0f}/s",
            lease_ratio,
            near,
            judge_lease(lease_ratio),
            costs,
        ),
        Result(
            "publish_after_drain",
            f"publish 1 KB x {BATCH} after the backlog was drained",
            median([after for after, _ in rates]),
            "messages/s",
            f"in a fresh folder {median([fresh for _, fresh in rates]):,.0f}/s",
            after_ratio,
            near,
            judge_lease(after_ratio),
        ),
    ]


async def _drain(queue: object, calls: int) -> float:
    return await drain(queue, calls, body_bytes=100)  # type: ignore[arg-type]


async def _rates(old: Millrace, fresh: Millrace, rows: list[bytes]) -> list[tuple[float, float]]:
    """Messages published per second in the one and in the other, in turns."""
    found = []
    for _ in range(9):
        found.append((await _rate(old, rows), await _rate(fresh, rows)))
    return found[1:]


async def _rate(m: Millrace, rows: list[bytes]) -> float:
    queue = await m.queue("again")
    took = await spread(lambda: queue.publish_many(rows), 160, IN_FLIGHT)
    await queue.purge()
    await settle_down(m)
    return 160 * BATCH / took


_CHILD = """
import asyncio, pathlib, sys, time
import millrace
async def main():
    began = time.perf_counter()
    async with millrace.open(sys.argv[1]) as m:
        queue = await m.queue("bench")
        took = time.perf_counter() - began
        leases = await queue.lease(10)
        await queue.release(leases)
        status = pathlib.Path("/proc/self/status").read_text()
        anon = next(l for l in status.splitlines() if l.startswith("RssAnon")).split()[1]
        print(took, int(anon) / 1024)
asyncio.run(main())
"""


def _open_in_child(folder: Path) -> tuple[float, float]:
    out = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder)], capture_output=True, text=True, check=True
    ).stdout.split()
    return float(out[0]), float(out[1])
