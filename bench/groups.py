"""Group `queues`: what groups that take turns cost, and whether a blocked one costs the others."""

from __future__ import annotations

import time

from bench.report import Result, at_least, median
from bench.scratch import engine, scratch, settle_down
from bench.work import CALL
from millrace.client.message import Message
from millrace.client.queue import Queue

_BATCH = 1_000
_GROUPS = 100_000


async def group_100k(messages: int = 200_000, turns: int = 3) -> list[Result]:
    """Lease and settle messages of 100,000 groups, against none."""
    plain: list[float] = []
    grouped: list[float] = []
    with scratch() as folder:
        async with engine(folder / "data", megabytes=messages // 250) as m:
            one, other = await m.queue("none"), await m.queue("group", order="group")
            for _ in range(turns):
                for queue, took in ((one, plain), (other, grouped)):
                    await _publish(queue, messages, _GROUPS)
                    await settle_down(m)
                    took.append(await _drain(queue, messages))
    ratio = median([a / b for a, b in zip(plain, grouped, strict=True)])
    reach, judge = at_least(0.5)
    return [
        Result(
            "group_100k",
            f"lease and settle {CALL}, {_GROUPS:,} groups",
            messages / median(grouped),
            "messages/s",
            f"with order none: {messages / median(plain):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            "",
        )
    ]


async def blocked_group(
    blocked: int = 1_000_000, messages: int = 50_000, turns: int = 9
) -> list[Result]:
    """The rate of a thousand free groups beside a blocked one, against without it."""
    alone: list[float] = []
    beside: list[float] = []
    with scratch() as folder:
        async with engine(folder / "data", megabytes=blocked // 500) as m:
            one = await m.queue("free", order="group")
            other = await m.queue("blocked", order="group")
            for _ in range(blocked // _BATCH):
                await other.publish_many([Message(b"x", group="blocked")] * _BATCH)
            await other.lease(1, seconds=36_000)
            for _ in range(turns):
                for queue, took in ((one, alone), (other, beside)):
                    await _publish(queue, messages, _BATCH)
                    await settle_down(m)
                    took.append(await _drain(queue, messages))
    ratio = median([a / b for a, b in zip(alone, beside, strict=True)])
    reach, judge = at_least(0.9)
    return [
        Result(
            "blocked_group",
            f"1,000 free groups beside one that is blocked with {blocked:,} messages",
            messages / median(beside),
            "messages/s",
            f"without it: {messages / median(alone):,.0f}/s",
            ratio,
            reach,
            judge(ratio),
            "",
        )
    ]


async def _publish(queue: Queue, messages: int, groups: int) -> None:
    for at in range(0, messages, _BATCH):
        names = range(at, at + _BATCH)
        await queue.publish_many([Message(b"x" * 100, group=b"%d" % (n % groups)) for n in names])


async def _drain(queue: Queue, messages: int) -> float:
    began = time.perf_counter()
    left = messages
    while left > 0:
        leases = await queue.lease(CALL, seconds=600)
        await queue.settle(leases)
        left -= len(leases)
    return time.perf_counter() - began
