"""Group `queues`: what sessions are handed in a second, beside lease calls."""

from __future__ import annotations

import asyncio
import time

from bench.publish import BATCH, bodies
from bench.report import Result, Usage, median
from bench.scratch import engine, node_of, scratch, settle_down
from bench.work import CALL, WORKERS, drain
from millrace.client.queue import Queue


async def consume(queue: Queue, calls: int) -> float:
    """Seconds for as many messages as `drain` leases, by sessions that settle 100 at a time."""

    async def consumer(count: int) -> None:
        async with queue.session(credit=2 * CALL) as session:
            for _ in range(count):
                messages = [await anext(session) for _ in range(CALL)]
                await session.settle(upto=messages[-1].number)

    began = time.perf_counter()
    # What a session is handed ahead goes back when it ends: there is more than is taken.
    await asyncio.gather(*(consumer(calls // WORKERS) for _ in range(WORKERS)))
    return time.perf_counter() - began


async def session_100(calls: int = 800, rounds: int = 5) -> list[Result]:
    """Messages through sessions, against lease calls of 100."""
    rows = bodies(1024)
    leased: list[float] = []
    handed: list[float] = []
    extra = ""
    spare = 2 * CALL * WORKERS
    with scratch() as folder:
        async with engine(folder / "data", megabytes=calls * CALL // 1000 * 4) as m:
            plain, pushed = await m.queue("plain"), await m.queue("pushed")
            for turn in range(rounds + 1):
                for _ in range(calls * CALL // BATCH):
                    await plain.publish_many(rows)
                    await pushed.publish_many(rows)
                await pushed.publish_many([b"spare"] * spare)
                took = await drain(plain, calls)
                usage = Usage(node_of(m).log)
                other = await consume(pushed, calls)
                extra = usage.per_million(calls * CALL)
                if turn:
                    leased.append(took)
                    handed.append(other)
                await pushed.purge()
                await settle_down(m)
    ratio = median([a / b for a, b in zip(leased, handed, strict=True)])
    return [
        Result(
            "session_100",
            f"{WORKERS} sessions with credit {2 * CALL}, settle {CALL}, 1 KB",
            calls * CALL / median(handed),
            "messages/s",
            f"lease and settle {CALL}: {calls * CALL / median(leased):,.0f}/s",
            ratio,
            "",
            None,
            extra,
        )
    ]
