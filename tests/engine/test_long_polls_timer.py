"""The coalescing timer: it fires on time, and rarely if many times are close together."""

from __future__ import annotations

import asyncio

from millrace import limits
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.node import Node
from tests.simulation.harness import Bench


def test_delays_that_end_closely_wake_together() -> None:
    """If a message falls due every millisecond, not each of them gets a batch of its own."""

    async def main(m: Millrace, _: Node) -> tuple[int, float]:
        queue = await m.queue("q")
        loop = asyncio.get_running_loop()
        began = loop.time()
        await queue.publish_many([Message(b"%d" % at, delay=1 + at / 1000) for at in range(60)])
        calls, got, latest = 0, 0, 0.0
        while got < 60:
            leases = await queue.lease(100, wait=5)
            calls += 1
            got += len(leases)
            late = [loop.time() - began - 1 - int(lease.body) / 1000 for lease in leases]
            latest = max(latest, *late)
        return calls, latest

    bench = Bench()
    calls, latest = bench.live(main)
    assert calls <= 60 // limits.WAKE_STEP_MS + 2
    assert latest < 4 * limits.WAKE_STEP_MS / 1000
    assert not bench.failures


def test_a_delay_that_ends_alone_waits_for_no_other() -> None:
    async def main(m: Millrace, _: Node) -> float:
        queue = await m.queue("q")
        loop = asyncio.get_running_loop()
        began = loop.time()
        await queue.publish(b"x", delay=1)
        [_lease] = await queue.lease(1, wait=5)
        return loop.time() - began

    bench = Bench()
    assert 1 <= bench.live(main) < 1 + limits.WAKE_STEP_MS / 1000
    assert not bench.failures
