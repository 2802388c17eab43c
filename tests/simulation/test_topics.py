"""A crash at every step of forwarding: each message is in each queue once, and in order."""

from __future__ import annotations

import asyncio

import pytest

from millrace.client.millrace import Millrace
from millrace.node import Node
from millrace.testing.disk import Crashed, Effect
from millrace.testing.loop import Halted, SimLoop
from tests.simulation.harness import Bench

QUEUES = ["all", "keyed", "some"]
STEPS_MAX = 300
"""More effects than all this takes."""


async def publish(
    m: Millrace, node: Node, bench: Bench, crash_at: int, told: dict[bytes, object]
) -> None:
    """Publish to a topic with three queues, and end before the effect of this number."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    topic = await m.topic("orders")
    for name in QUEUES:
        await m.queue(name, keyed=name == "keyed")
        await topic.subscribe(name, filter={"n": ["1", "4"]} if name == "some" else None)
    effects = 0

    def count(effect: Effect) -> None:
        nonlocal effects
        effects += 1
        if effects == crash_at:
            loop.halt()
            raise Crashed

    bench.disk.hook = count
    for number in range(6):
        body = b"%d" % number
        sent = await topic.publish(body, headers={"n": body}, until_arrived=number % 2 == 1)
        told[body] = sent.queues
        if number == 3:
            await node.keeper.checkpoint()
    await topic.publish(b"last", until_arrived=True)
    await topic.unsubscribe("some")
    await m.delete_queue("keyed")
    await topic.publish(b"to one", until_arrived=True)
    await node.keeper.checkpoint()


async def look(m: Millrace, node: Node) -> dict[str, list[bytes | None]]:
    """What the queues have, once all is forwarded."""
    topic = await m.topic("orders")
    await asyncio.sleep(5)
    assert (await topic.describe()).lag == 0
    meta = node.store.meta((await m._engine.find_topic("default", "orders")) or 0)  # type: ignore[arg-type]
    assert meta is not None
    assert meta.live == 0, "rows stay that everyone has passed"
    found: dict[str, list[bytes | None]] = {}
    for name in await m.queues():
        queue = await m.find(name)
        found[name] = [row.body for row in await queue.peek(100)]
    return found


@pytest.mark.parametrize("power", [False, True])
def test_d1_a_crash_at_every_step_loses_and_doubles_none(*, power: bool) -> None:
    for crash_at in range(1, STEPS_MAX):
        bench, told = Bench(), dict[bytes, object]()
        has_crashed = False
        try:
            bench.live(
                lambda m, node, b=bench, at=crash_at, t=told: publish(m, node, b, at, t),  # type: ignore[misc]
                close=False,
            )
        except Halted:
            has_crashed = True
        if power:
            bench.disk = bench.disk.crash()
        found = bench.live(look)
        assert not bench.failures
        everything = found["all"]
        order = [b"%d" % number for number in range(6)] + [b"last", b"to one"]
        assert everything == order[: len(everything)], "lost, doubled or out of order"
        assert len(everything) >= len(told), "told that it was published"
        wanted = [body for body in everything if body in (b"1", b"4")]
        assert found["some"] == wanted
        if "keyed" in found:
            assert found["keyed"] == [body for body in everything if body != b"to one"]
        for at, (body, queues) in enumerate(told.items(), 1):
            if queues:
                place = wanted.index(body) + 1 if body in wanted else "filtered"
                assert queues == {"all": at, "keyed": at, "some": place}
        if not has_crashed:
            assert crash_at > 10
            return
    raise AssertionError("it never gets to its end")
