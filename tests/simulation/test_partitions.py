"""A crash at every step of work by partitions: locks hold, and what has ended stays so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.client.millrace import Millrace
from millrace.core.state.partition_state import slice_of
from millrace.node import Node
from tests.simulation.harness import Bench, Script, at_every_step

COUNT = 12
PARTS = 3


class Told:
    """What was answered before the machine ended."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.held: set[int] = set()
        self.ended: set[int] = set()
        self.trying: set[int] = set()
        """Settled or deleted without an answer."""


def work(told: Told) -> Script:
    """Hold a batch of one partition, settle one of another, and delete a message by its id."""

    async def script(m: Millrace, node: Node, begin: Callable[[], None]) -> None:
        queue = await m.queue(
            "jobs", delivery="partitions", partitions_min=PARTS, partitions_max=PARTS
        )
        told.ids = list(await queue.publish_many([b"%d" % at for at in range(COUNT)]))
        begin()
        first = await queue.lease(2, seconds=3600)
        told.held = {lease.id or 0 for lease in first}
        await node.checkpointer.checkpoint()
        second = await queue.lease(2, seconds=3600)
        told.held |= {lease.id or 0 for lease in second}
        for lease in second:
            told.held.discard(lease.id or 0)
            told.trying.add(lease.id or 0)
            await lease.settle()
            told.ended.add(lease.id or 0)
        free = [one for one in told.ids if one not in told.held | told.ended]
        told.trying.add(free[0])
        await queue.delete([free[0]])
        told.ended.add(free[0])
        await node.checkpointer.checkpoint()

    return script


async def look(m: Millrace, node: Node) -> tuple[set[int], int]:
    """The ids of what is handed out, call after call, and how many are left."""
    queue = await m.find("jobs")
    handed: set[int] = set()
    while leases := await queue.lease(5, seconds=1):
        assert len({slice_of(lease.id or 0, PARTS) for lease in leases}) == 1
        assert not handed & {lease.id or 0 for lease in leases}, "settled, and handed out"
        handed |= {lease.id or 0 for lease in leases}
        await queue.settle(leases)
    return handed, (await queue.stats())["live"]


@pytest.mark.parametrize("power", [False, True])
def test_d3_d4_a_crash_at_every_step_keeps_locks_and_deletes(*, power: bool) -> None:
    lives: list[Told] = []

    def make(_: Bench) -> Script:
        lives.append(Told())
        return work(lives[-1])

    for bench, has_ended in at_every_step(make, power=power):
        told = lives[-1]
        handed, left = bench.live(look)
        assert not bench.failures
        locked = {slice_of(one, PARTS) for one in told.held}
        assert not {slice_of(one, PARTS) for one in handed} & locked, "a locked partition is served"
        assert not handed & told.ended, "it was settled or deleted"
        ended = COUNT - len(handed) - left
        assert len(told.ended) <= ended <= len(told.trying), "lost"
        if not has_ended:
            free = {one for one in told.ids if slice_of(one, PARTS) not in locked}
            assert handed == free - told.ended
