"""The checkpointer on a full disk: work that frees space goes on (L8), and the log recovers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millrace import limits
from millrace.client.queue import Queue
from millrace.errors import Full
from millrace.store.memory_cells import Room
from millrace.store.sealed import FOLDER
from tests.engine.test_checkpointer import (
    AMPLE,
    BODIES,
    Machine,
    bodies,
)
from tests.support.simulator.disk import Effect

LAZY = replace(AMPLE, log_segments_max=24, log_segments_unsealed=8, checkpoint_seconds=1)
"""Settings that leave as many segments unsealed as the disk has room for."""


def used_bytes(machine: Machine) -> int:
    folders = ("", "log", FOLDER)
    names = [
        f"{folder}/{name}".strip("/") for folder in folders for name in machine.disk.names(folder)
    ]
    return sum(machine.disk.open(name).size for name in names if name not in folders)


def leave(machine: Machine, segments: int) -> None:
    """Make the disk full once a number of segments exist."""
    machine.disk.budget_bytes = used_bytes(machine) + segments * machine.settings.segment_bytes


async def publish_until_full(queue: Queue) -> int:
    count = 0
    while True:
        try:
            await asyncio.wait_for(queue.publish(BODIES[count % 100]), 60)
        except Full:
            return count
        count += 1


async def drain(queue: Queue) -> None:
    while leases := await queue.lease(100):
        await queue.settle(leases)


def test_a_drained_log_takes_messages_again() -> None:
    """There are fewer full segments than are usually left unsealed: nothing else would free any."""
    machine = Machine(LAZY)

    async def life() -> None:
        node, m = await machine.open()
        queue = await m.queue("orders")
        await node.checkpointer.prepare()
        leave(machine, 2)
        for _ in range(3):
            count = await publish_until_full(queue)
            assert count > 10
            await drain(queue)
            await asyncio.sleep(10)
        await queue.publish(b"after")
        assert await bodies(m) == [b"after"]
        await m.close()

    machine.live(life())


def test_a_full_disk_opens_again_and_again() -> None:
    """Each open uses a segment of the reserve, and must free one, however soon it is killed."""
    machine = Machine(LAZY)

    async def fill() -> None:
        node, m = await machine.open()
        queue = await m.queue("orders")
        await node.checkpointer.prepare()
        leave(machine, 1)
        await publish_until_full(queue)
        await drain(queue)

    async def look() -> None:
        _, m = await machine.open()
        assert (await (await m.find("orders")).stats())["live"] == 0
        await m.close()

    machine.live(fill())
    for _ in range(20):
        machine.live(look())


def test_an_idle_folder_opens_again_and_again_on_a_full_disk() -> None:
    """The generations of its opens are empty, so that nothing has to be sealed."""
    machine = Machine(LAZY)

    async def look() -> None:
        _, m = await machine.open()
        await m.queue("orders")
        await m.close()

    machine.live(look())
    machine.disk.budget_bytes = used_bytes(machine)
    for _ in range(20):
        machine.live(look())
    assert len(machine.disk.names("log")) < 8


def test_dead_files_go_though_the_rows_of_the_log_do_not_fit() -> None:
    """L8: the oldest segment has rows that fit nowhere until a dead file is dropped."""
    machine = Machine(replace(LAZY, log_segments_unsealed=0))

    async def life() -> None:
        node, m = await machine.open()
        old = await m.queue("old")
        for body in BODIES:
            await old.publish(body)
        await node.checkpointer.seal_all()
        queue = await m.queue("orders")
        await node.checkpointer.prepare()
        leave(machine, 1)
        count = await publish_until_full(queue)
        machine.disk.budget_bytes = used_bytes(machine)
        [dead] = machine.disk.names(FOLDER)[:1]
        await drain(old)
        await asyncio.sleep(20)
        assert dead not in machine.disk.names(FOLDER)
        await queue.publish(b"after")
        assert len(await bodies(m)) == count + 1
        await m.close()

    machine.live(life())


def test_what_does_not_fit_is_not_written_again_and_again() -> None:
    """Repeating a pass that fails for lack of space would wear out the disk and block requests."""
    machine = Machine(replace(LAZY, log_segments_unsealed=0))
    written: list[Effect] = []

    async def life() -> None:
        node, m = await machine.open()
        queue = await m.queue("orders")
        await node.checkpointer.prepare()
        leave(machine, 1)
        count = await publish_until_full(queue)
        machine.disk.budget_bytes = used_bytes(machine) + 50_000
        await asyncio.sleep(5)
        machine.disk.hook = lambda effect: written.append(effect)
        for _ in range(20):
            with pytest.raises(Full):
                await asyncio.wait_for(queue.publish(BODIES[0]), 5)
        assert [effect for effect in written if effect.name.startswith(FOLDER)] == []
        machine.disk.budget_bytes = None
        await asyncio.wait_for(queue.publish(b"after"), 60)
        assert len(await bodies(m)) == count + 1
        await m.close()

    machine.live(life())


def test_sealing_leaves_the_disk_to_a_log_that_is_written() -> None:
    """F3: sealing sleeps while the log is busy, and only then."""
    rests: list[float] = []
    machine = Machine(replace(AMPLE, segment_bytes=4 * 1024 * 1024))
    machine.sleep = rests.append

    async def life() -> None:
        node, m = await machine.open()
        queue = await m.queue("orders")

        async def publish(count: int) -> None:
            for _ in range(count):
                await queue.publish_many([bytes(1 << 20)] * 3)

        await publish(5)
        await node.checkpointer.seal_all()
        await node.checkpointer.seal_all()
        rests.clear()
        await node.checkpointer.seal_all()
        assert rests == []
        before = machine.disk.hook

        def write_beside(effect: Effect) -> None:
            if effect.verb == "sync" and effect.name.startswith(FOLDER):
                node.log._writer.syncs += 1
                node.log._writer.sync_seconds = 0.002

        await publish(5)
        machine.disk.hook = write_beside
        await node.checkpointer.seal_all()
        machine.disk.hook = before
        assert len(rests) > 2
        assert set(rests) == {0.002 * limits.SEAL_REST_SYNCS}
        await m.close()

    machine.live(life())


def test_the_room_of_the_index_is_not_used_up_by_sealing() -> None:
    """L8: the space that the index released is for its own commits; preparing a segment frees
    nothing."""
    machine = Machine(LAZY)

    async def life() -> None:
        node, m = await machine.open()
        queue = await m.queue("orders")
        await node.checkpointer.prepare()
        leave(machine, 1)
        await publish_until_full(queue)
        machine.disk.budget_bytes = None
        machine.cells.room = Room.BALLAST
        await node.checkpointer.checkpoint()
        assert machine.cells.short_of_space
        await queue.settle(await queue.lease(10))
        await asyncio.sleep(20)
        assert machine.disk.names(FOLDER) == []
        await drain(queue)
        await asyncio.sleep(20)
        await queue.publish(b"after")
        assert machine.disk.names(FOLDER) == []
        await m.close()

    machine.live(life())


def test_openings_do_not_fill_the_log_with_empty_segments() -> None:
    """Each open begins a segment; nearly empty ones are soon sealed."""
    machine = Machine(replace(LAZY, segment_bytes=4 * 1024 * 1024))
    counts: list[int] = []

    async def life() -> None:
        node, m = await machine.open()
        await (await m.queue("orders")).publish(b"stays")
        counts.append(len(node.log.segments()))
        await m.close()

    for _ in range(12):
        machine.live(life())
    assert max(counts) <= limits.LOG_SEGMENTS_HOLLOW + 3 < LAZY.log_segments_unsealed
