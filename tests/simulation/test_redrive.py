"""Redriving on a simulated machine: at its rate, and with a crash at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from millrace.client.millrace import Millrace
from millrace.errors import Full
from millrace.node import Node
from tests.simulation.harness import Bench, Script, at_every_step

BODIES = [b"%d" % number for number in range(6)]


async def fill(m: Millrace, node: Node) -> None:
    dead = await m.queue("dead")
    queue = await m.queue("orders", dead_letter="dead")
    await queue.publish_many(BODIES)
    await queue.discard(await queue.lease(10))
    async for lease in dead.work(batch=1):
        # All have arrived.
        if lease.seq == len(BODIES):
            return


def redrive(bench: Bench) -> Script:
    """Move those with even numbers, two at a time."""
    bench.live(fill)

    async def script(m: Millrace, node: Node, begin: Callable[[], None]) -> None:
        dead = await m.find("dead")
        await asyncio.sleep(60)
        begin()
        await dead.redrive(where=lambda row: int(row.body or b"") % 2 == 0, rate=2).run()

    return script


def redrive_into_a_full_queue(bench: Bench) -> Script:
    """Move what fits; make room, and move the others."""
    bench.live(fill)

    async def script(m: Millrace, node: Node, begin: Callable[[], None]) -> None:
        dead, orders = await m.find("dead"), await m.find("orders")
        await orders.configure(max_messages=4)
        await asyncio.sleep(60)
        begin()
        with pytest.raises(Full):
            await dead.redrive().run()
        await orders.configure(max_messages=0)
        await dead.redrive().run()

    return script


async def look(m: Millrace, node: Node) -> tuple[list[bytes | None], list[bytes | None]]:
    queue, dead = await m.find("orders"), await m.find("dead")
    return [row.body for row in await queue.peek()], [row.body for row in await dead.peek()]


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_every_step_loses_and_doubles_nothing(*, power: bool) -> None:
    for bench, has_ended in at_every_step(redrive, power=power):
        back, dead = bench.live(look)
        assert sorted([*back, *dead]) == BODIES  # type: ignore[type-var]
        assert {*back} <= {b"0", b"2", b"4"}
        if not has_ended:
            assert (back, dead) == ([b"0", b"2", b"4"], [b"1", b"3", b"5"])


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_every_step_into_a_full_queue_loses_and_doubles_nothing(*, power: bool) -> None:
    for bench, has_ended in at_every_step(redrive_into_a_full_queue, power=power):
        back, dead = bench.live(look)
        assert sorted([*back, *dead]) == BODIES  # type: ignore[type-var]
        if not has_ended:
            assert sorted(back) == BODIES  # type: ignore[type-var]


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
