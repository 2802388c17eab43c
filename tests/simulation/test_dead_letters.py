"""A crash at every step of dead-lettering: each message is in one of the two queues, once."""

from __future__ import annotations

import asyncio

import pytest

from millrace.client.millrace import Millrace
from millrace.node import Node
from millrace.testing.disk import Crashed, Effect
from millrace.testing.loop import Halted, SimLoop
from tests.simulation.harness import Bench

BODIES = [b"settled", b"discarded", b"failed", b"left alone"]
STEPS_MAX = 200
"""More effects than all this takes."""


async def lose_two(m: Millrace, node: Node, bench: Bench, crash_at: int, told: set[bytes]) -> None:
    """Settle one, make dead letters of two, and end before the effect of this number."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    dead = await m.queue("dead")
    queue = await m.queue("orders", max_failures=1, dead_letter="dead")
    await queue.publish_many(BODIES)
    settled, discarded, failed, _ = await queue.lease(4)
    effects = 0

    def count(effect: Effect) -> None:
        nonlocal effects
        effects += 1
        if effects == crash_at:
            loop.halt()
            raise Crashed

    bench.disk.hook = count
    await settled.settle()
    told.add(settled.body)
    await discarded.discard()
    told.add(discarded.body)
    await failed.release(failed=True)
    told.add(failed.body)
    for _ in range(2):
        await dead.lease(1, wait=60)
    await node.keeper.checkpoint()


async def look(m: Millrace, node: Node) -> tuple[list[bytes | None], list[bytes | None]]:
    """What is in the queue and among the dead letters, once all of them were moved."""
    queue, dead = await m.find("orders"), await m.find("dead")
    await asyncio.sleep(5)
    counts = await queue.stats()
    assert counts["dead_lettered"] == (await dead.stats())["published"]
    assert counts["published"] == len(BODIES)
    return [row.body for row in await queue.peek()], [row.body for row in await dead.peek()]


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_every_step_loses_and_doubles_no_dead_letter(*, power: bool) -> None:
    for crash_at in range(1, STEPS_MAX):
        bench, told = Bench(), set[bytes]()
        has_crashed = False
        try:
            bench.live(
                lambda m, node, b=bench, at=crash_at, t=told: lose_two(m, node, b, at, t),  # type: ignore[misc]
                close=False,
            )
        except Halted:
            has_crashed = True
        if power:
            bench.disk = bench.disk.crash()
        left, dead = bench.live(look)
        assert not bench.failures
        assert len(left + dead) == len({*left, *dead}), "doubled"
        assert {*left, *dead} >= {b"discarded", b"failed", b"left alone"}, "lost"
        assert not {*left} & told, "told that it has ended"
        assert {*dead} >= told - {b"settled"}, "told that it is a dead letter"
        assert {*dead} <= {b"discarded", b"failed"}
        if not has_crashed:
            assert crash_at > 3
            return
    raise AssertionError("it never gets to its end")
