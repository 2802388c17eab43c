"""A crash at every step of damage, sealing and repair: no other queue loses anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.client.millrace import Millrace
from millrace.errors import Quarantined
from millrace.node import Node
from tests.engine.poison import publish_poison
from tests.simulation.harness import Bench, Script, at_every_step
from tests.support.simulator.machine import Fault, draw_plan
from tests.support.simulator.run import Run
from tests.support.simulator.workload_spoilers import Spoiler


class Told:
    """What was answered before the machine ended."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.is_spoiled = False
        """It was answered that the unreadable rows are there."""
        self.is_mending = False


def work(told: Told) -> Script:
    async def script(m: Millrace, node: Node, begin: Callable[[], None]) -> None:
        bad, good = await m.queue("bad"), await m.queue("good")
        await bad.publish(b"before")
        begin()
        await publish_poison(node, bad)
        told.is_spoiled = True
        await good.publish(b"one")
        told.published.append(b"one")
        await node.checkpointer.seal_all()
        await good.publish(b"two")
        told.published.append(b"two")
        with pytest.raises(Quarantined):
            await bad.peek(10)
        told.is_mending = True
        await m.repair("bad", drop=True)

    return script


async def look(m: Millrace, node: Node) -> tuple[list[bytes], bool]:
    """The bodies of the sound queue, and whether the other one was closed until its repair."""
    bad, good = await m.find("bad"), await m.find("good")
    is_closed = False
    try:
        rows = await bad.peek(10)
    except Quarantined:
        is_closed = True
        await m.repair("bad", drop=True)
        rows = await bad.peek(10)
    assert [row.body for row in rows] == [b"before"]
    await node.checkpointer.seal_all()
    counts = await bad.stats()
    assert counts["published"] == counts["live"] + counts["dropped"], "I12"
    await bad.publish(b"after")
    return [row.body or b"" for row in await good.peek(10)], is_closed


@pytest.mark.parametrize("power", [False, True])
def test_sec_01_a_crash_at_every_step_of_a_quarantine(*, power: bool) -> None:
    lives: list[Told] = []

    def make(_: Bench) -> Script:
        lives.append(Told())
        return work(lives[-1])

    for bench, _ in at_every_step(make, power=power):
        told = lives[-1]
        bodies, is_closed = bench.live(look)
        assert not bench.failures
        assert bodies[: len(told.published)] == told.published, "I1"
        if told.is_spoiled and not told.is_mending:
            assert is_closed, "unreadable rows were passed over"


def test_the_fault_is_drawn_and_its_client_takes_part() -> None:
    plans = {seed: draw_plan(seed) for seed in range(1, 20)}
    spoiled = [seed for seed, plan in plans.items() if plan.has(Fault.UNREADABLE)]
    assert 0 < len(spoiled) < len(plans)
    run = Run(spoiled[0], 1)
    assert any(isinstance(client, Spoiler) for client in run.clients)
