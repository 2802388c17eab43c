"""Redriving on a simulated machine: at its rate, and with a crash at every step."""

from __future__ import annotations

import asyncio

from millrace.client.millrace import Millrace
from millrace.node import Node
from millrace.testing.disk import Crashed, Effect
from millrace.testing.loop import Halted, SimLoop
from tests.simulation.harness import Bench

BODIES = [b"%d" % number for number in range(6)]
STEPS_MAX = 200
"""More effects than all this takes."""


async def fill(m: Millrace, node: Node) -> None:
    dead = await m.queue("dead")
    queue = await m.queue("orders", dead_letter="dead")
    await queue.publish_many(BODIES)
    await queue.discard(await queue.lease(10))
    async for lease in dead.work(batch=1):
        # All have arrived.
        if lease.seq == len(BODIES):
            return


async def redrive(bench: Bench, m: Millrace, crash_at: int) -> None:
    """Move those with even numbers, two at a time, and end before the effect of this number."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    effects = 0

    def count(effect: Effect) -> None:
        nonlocal effects
        effects += 1
        if effects == crash_at:
            loop.halt()
            raise Crashed

    dead = await m.find("dead")
    await asyncio.sleep(60)
    bench.disk.hook = count
    await dead.redrive(where=lambda row: int(row.body or b"") % 2 == 0, rate=2).run()


async def look(m: Millrace, node: Node) -> tuple[list[bytes | None], list[bytes | None]]:
    queue, dead = await m.find("orders"), await m.find("dead")
    return [row.body for row in await queue.peek()], [row.body for row in await dead.peek()]


def test_a_crash_at_every_step_loses_and_doubles_nothing() -> None:
    for crash_at in range(1, STEPS_MAX):
        bench = Bench()
        bench.live(fill)
        has_crashed = False
        try:
            bench.live(
                lambda m, node, b=bench, at=crash_at: redrive(b, m, at),  # type: ignore[misc]
                close=False,
            )
        except Halted:
            has_crashed = True
        back, dead = bench.live(look)
        assert sorted([*back, *dead]) == BODIES  # type: ignore[type-var]
        assert {*back} <= {b"0", b"2", b"4"}
        if not has_crashed:
            assert (back, dead) == ([b"0", b"2", b"4"], [b"1", b"3", b"5"])
            assert crash_at > 3
            return
    raise AssertionError("it never gets to its end")


def test_it_keeps_to_its_rate() -> None:
    async def drive(m: Millrace, node: Node) -> tuple[float, int]:
        dead = await m.find("dead")
        await asyncio.sleep(60)
        loop = asyncio.get_running_loop()
        began = loop.time()
        stats = await dead.redrive(rate=0.5).run()
        return loop.time() - began, stats.moved

    bench = Bench()
    bench.live(fill)
    took, moved = bench.live(drive)
    assert moved == 6
    # One every two seconds; nobody waits after the last one.
    assert 10 <= took < 13
