"""Group `queues`: what a topic costs beside publishes to its queues."""

from __future__ import annotations

import asyncio
import time

from bench.publish import BATCH, IN_FLIGHT, bodies, spread
from bench.report import Result, Usage, at_least, median
from bench.scratch import engine, node_of, scratch, settle_down

QUEUES = 10


async def topic_10(batches: int = 24, rounds: int = 5) -> list[Result]:
    """Publish to a topic until ten queues have it all, against ten publishes of the same bytes."""
    rows = bodies(1024)
    direct: list[float] = []
    forwarded: list[float] = []
    extra = ""
    with scratch() as folder:
        async with engine(folder / "data", megabytes=batches * (2 * QUEUES + 1)) as m:
            topic = await m.topic("topic")
            queues = [await m.queue(f"queue-{number}") for number in range(QUEUES)]
            others = [await m.queue(f"other-{number}") for number in range(QUEUES)]
            for queue in queues:
                await topic.subscribe(queue)

            async def publish_to_all() -> None:
                await asyncio.gather(*(other.publish_many(rows) for other in others))

            for turn in range(rounds + 1):
                took = await spread(publish_to_all, batches, IN_FLIGHT)
                usage = Usage(node_of(m).log)
                began = time.perf_counter()
                await spread(lambda: topic.publish_many(rows), batches - IN_FLIGHT, IN_FLIGHT)
                await spread(
                    lambda: topic.publish_many(rows, until_arrived=True), IN_FLIGHT, IN_FLIGHT
                )
                if turn:
                    direct.append(took)
                    forwarded.append(time.perf_counter() - began)
                extra = usage.per_million(batches * BATCH * QUEUES)
                for queue in (*queues, *others):
                    await queue.purge()
                await settle_down(m)
    ratio = median([a / b for a, b in zip(direct, forwarded, strict=True)])
    reach, judge = at_least(0.6)
    return [
        Result(
            "topic_10",
            f"publish {BATCH} x 1 KB to a topic with {QUEUES} queues",
            batches * BATCH * QUEUES / median(forwarded),
            "messages/s",
            f"direct: {batches * BATCH * QUEUES / median(direct):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            extra,
        )
    ]
