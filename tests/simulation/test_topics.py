"""A crash at every step of forwarding: each message is in each queue once, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from millrace.client.millrace import Millrace
from millrace.node import Node
from tests.simulation.harness import Bench, Script, at_every_step

QUEUES = ["all", "keyed", "some"]


def publish(told: dict[bytes, object]) -> Script:
    """Publish to a topic with three queues, two of which go."""

    async def script(m: Millrace, node: Node, begin: Callable[[], None]) -> None:
        topic = await m.topic("orders")
        for name in QUEUES:
            await m.queue(name, keyed=name == "keyed")
            await topic.subscribe(name, filter={"n": ["1", "4"]} if name == "some" else None)
        begin()
        for number in range(6):
            body = b"%d" % number
            sent = await topic.publish(body, headers={"n": body}, until_arrived=number % 2 == 1)
            told[body] = sent.queues
            if number == 3:
                await node.checkpointer.checkpoint()
        await topic.publish(b"last", until_arrived=True)
        await topic.unsubscribe("some")
        await m.delete_queue("keyed")
        await topic.publish(b"to one", until_arrived=True)
        await node.checkpointer.checkpoint()

    return script


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
    told: dict[bytes, object] = {}

    def make(_: Bench) -> Script:
        told.clear()
        return publish(told)

    for bench, _ in at_every_step(make, power=power):
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
