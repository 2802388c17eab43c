"""A crash at every step of dead-lettering: each message is in one of the two queues, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from millrace.client.millrace import Millrace
from millrace.node import Node
from tests.simulation.harness import Bench, Script, at_every_step

BODIES = [b"settled", b"discarded", b"failed", b"left alone"]


def lose_two(told: set[bytes]) -> Script:
    """Settle one, and make dead letters of two."""

    async def script(m: Millrace, node: Node, begin: Callable[[], None]) -> None:
        dead = await m.queue("dead")
        queue = await m.queue("orders", max_failures=1, dead_letter="dead")
        await queue.publish_many(BODIES)
        settled, discarded, failed, _ = await queue.lease(4)
        begin()
        await settled.settle()
        told.add(settled.body)
        await discarded.discard()
        told.add(discarded.body)
        await failed.release(failed=True)
        told.add(failed.body)
        for _ in range(2):
            await dead.lease(1, wait=60)
        await node.checkpointer.checkpoint()

    return script


async def look(m: Millrace, node: Node) -> tuple[list[bytes | None], list[bytes | None]]:
    """What is in the queue and among the dead letters, once all of them were moved."""
    queue, dead = await m.find("orders"), await m.find("dead")
    await asyncio.sleep(5)
    counts = await queue.stats()
    assert counts["dead_lettered"] == (await dead.stats())["published"]
    return [row.body for row in await queue.peek()], [row.body for row in await dead.peek()]


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_every_step_loses_and_doubles_no_dead_letter(*, power: bool) -> None:
    told: set[bytes] = set()

    def make(_: Bench) -> Script:
        told.clear()
        return lose_two(told)

    for bench, _ in at_every_step(make, power=power):
        left, dead = bench.live(look)
        assert not bench.failures
        assert len(left + dead) == len({*left, *dead}), "doubled"
        assert {*left, *dead} >= {b"discarded", b"failed", b"left alone"}, "lost"
        assert not {*left} & told, "told that it has ended"
        assert {*dead} >= told - {b"settled"}, "told that it is a dead letter"
        assert {*dead} <= {b"discarded", b"failed"}


def overflow(told: list[bytes]) -> Script:
    """Publish more than fits: the oldest that wait are dead letters, and wait for room, too."""

    async def script(m: Millrace, node: Node, begin: Callable[[], None]) -> None:
        dead = await m.queue("dead", max_messages=2)
        queue = await m.queue("orders", max_messages=2, overflow="drop", dead_letter="dead")
        begin()
        for number in range(7):
            await queue.publish(b"%d" % number)
            told.append(b"%d" % number)
            if number == 3:
                await node.checkpointer.checkpoint()
        for _ in range(2):
            await dead.lease(1, wait=60)
        await dead.configure(max_messages=0)
        for _ in range(3):
            await dead.lease(1, wait=60)

    return script


async def look_with_room(m: Millrace, node: Node) -> tuple[list[bytes | None], list[bytes | None]]:
    dead = await m.queue("dead")
    await m.queue("orders")
    await dead.configure(max_messages=0)
    return await look(m, node)


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_every_step_loses_and_doubles_nothing_that_is_dropped(*, power: bool) -> None:
    told: list[bytes] = []

    def make(_: Bench) -> Script:
        told.clear()
        return overflow(told)

    for bench, has_ended in at_every_step(make, power=power):
        left, dead = bench.live(look_with_room)
        assert not bench.failures
        # The last one that was sent may have come about without an answer.
        count = len(dead) + len(left)
        assert [*dead, *left] == [b"%d" % number for number in range(count)], "lost, or doubled"
        assert len(told) <= count <= len(told) + 1
        assert len(left) <= 2 or count <= 2
        if not has_ended:
            assert (len(dead), left) == (5, [b"5", b"6"])
