"""What the simulator has found, each as a script that fails without its fix."""

from __future__ import annotations

import asyncio

import pytest

from millrace.client.millrace import Millrace
from millrace.client.queue import Queue, engine_and_shard
from millrace.core.answers import SnapshotRef
from millrace.core.commands import Pin, Unpin
from millrace.core.model import NewMessage
from millrace.errors import Fatal, NotFound
from millrace.node import Node
from tests.simulation.harness import Bench

LARGE = bytes(20_000)


async def pin(queue: Queue) -> SnapshotRef:
    engine, shard = engine_and_shard(queue)
    return await engine.ask(shard, Pin(3_600_000), SnapshotRef)


async def unpin(queue: Queue, ref: SnapshotRef) -> None:
    engine, shard = engine_and_shard(queue)
    await engine.ask(shard, Unpin(ref.pin, ref.history, ref.index), bool)


async def settle_one(queue: Queue) -> None:
    [lease] = await queue.lease(1)
    await lease.settle()


async def fill(queue: Queue, count: int = 12) -> None:
    """Use up more than a segment of the log."""
    for _ in range(count):
        await queue.publish(LARGE)


def test_marks_survive_the_pins_that_they_were_moved_between() -> None:
    """The marks of a pin that went were lost with the next pin before it: the dead came back."""

    async def script(millrace: Millrace, node: Node) -> list[int]:
        queue = await millrace.queue("q")
        await queue.publish_many([b"a", b"b", b"c"])
        first = await pin(queue)
        second = await pin(queue)
        await settle_one(queue)
        await node.checkpointer.checkpoint()
        await unpin(queue, second)
        await node.checkpointer.checkpoint()
        await unpin(queue, first)
        await node.checkpointer.checkpoint()
        return [row.seq for row in await queue.peek()]

    async def look(millrace: Millrace, node: Node) -> list[int]:
        return [row.seq for row in await (await millrace.find("q")).peek()]

    bench = Bench()
    assert bench.live(script) == [2, 3]
    assert bench.live(look) == [2, 3]


def test_a_key_belongs_to_the_higher_seq_of_a_batch() -> None:
    """A stage that was published in the same batch took the key away from the newer row."""

    async def script(millrace: Millrace, node: Node) -> list[bytes | None]:
        queue = await millrace.queue("q", keyed=True)
        await queue.publish(b"before", key="other")
        await queue.stage("s", [NewMessage(b"staged", b"k")])
        await asyncio.gather(queue.publish_staged(["s"]), queue.publish(b"beside", key="k"))
        await queue.publish(b"newest", key="k")
        return [row.body for row in await queue.peek()]

    assert Bench().live(script) == [b"before", b"newest"]


def test_a_process_that_is_killed_at_once_can_always_be_started_again() -> None:
    """Every open takes a segment; nothing gave one back before something new was written."""

    async def nothing(millrace: Millrace, node: Node) -> None:
        return

    async def publish(millrace: Millrace, node: Node) -> int | None:
        queue = await millrace.queue("q")
        return await asyncio.wait_for(queue.publish(LARGE), 10)

    bench = Bench()
    bench.live(publish)
    for _ in range(3 * bench.settings.log_segments_max):
        bench.live(nothing, close=False)
    assert bench.live(publish) == 2


def test_a_full_log_is_emptied_after_a_restart() -> None:
    """Without a checkpoint of what was replayed, publishing waited for ever."""

    async def publish(millrace: Millrace, node: Node) -> int | None:
        queue = await millrace.queue("q")
        return await asyncio.wait_for(queue.publish(LARGE), 10)

    async def use_up(millrace: Millrace, node: Node) -> None:
        await (await millrace.queue("q")).publish(LARGE)

    bench = Bench()
    # Two segments are kept back for what frees space.
    lives = bench.settings.log_segments_max - 2
    for _ in range(lives):
        bench.live(use_up, close=False)
    assert bench.live(publish) == lives + 1


def test_segments_are_released_although_a_deleted_queue_had_rows_in_them() -> None:
    """The guard against releasing what is wanted took the rows of a deleted queue for wanted."""

    async def script(millrace: Millrace, node: Node) -> int:
        gone = await millrace.queue("gone")
        await fill(gone)
        await node.checkpointer.checkpoint()
        await fill(await millrace.queue("other"))
        await node.checkpointer.checkpoint()
        await millrace.delete_queue("gone")
        await node.checkpointer.seal_all()
        return len(node.log.segments())

    bench = Bench()
    assert bench.live(script) <= 2
    assert bench.failures == []


def test_a_stage_that_ended_leaves_no_file_behind() -> None:
    """Rows of a stage were counted nowhere when they ended, and their file was never empty."""

    async def script(millrace: Millrace, node: Node) -> tuple[list[str], list[str]]:
        queue = await millrace.queue("q")
        await queue.publish(b"visible")
        await queue.stage("s", [b"staged"] * 100)
        await fill(await millrace.queue("other"))
        await node.checkpointer.seal_all()
        before = bench.disk.names("sealed")
        await queue.drop_stage("s")
        await queue.purge()
        await (await millrace.queue("other")).purge()
        await asyncio.sleep(10)
        return before, bench.disk.names("sealed")

    bench = Bench()
    before, after = bench.live(script)
    assert before
    assert after == []


def test_a_store_that_cannot_take_in_an_entry_ends_the_engine() -> None:
    """The failure was raised into a callback of the log, where nobody was told of it."""

    async def script(millrace: Millrace, node: Node) -> None:
        queue = await millrace.queue("q", keyed=True)
        await queue.publish(b"a", key="k")
        bench.cells.fail_next(is_applied=False)
        checkpoint = asyncio.ensure_future(node.checkpointer.checkpoint())
        publishes = [queue.publish(b"b", key=f"k{number}") for number in range(50)]
        answers = await asyncio.gather(checkpoint, *publishes, return_exceptions=True)
        assert isinstance(answers[0], Fatal)
        with pytest.raises(Fatal):
            await queue.publish(b"c", key="k")

    async def look(millrace: Millrace, node: Node) -> list[bytes | None]:
        return [row.body for row in await (await millrace.find("q")).peek(1)]

    bench = Bench()
    bench.live(script, close=False)
    assert bench.failures == []
    assert bench.live(look) == [b"a"]


def test_a_queue_that_is_deleted_while_its_rows_are_read_is_not_found() -> None:
    """The lease call ended in a `KeyError`."""

    async def fill_up(millrace: Millrace, node: Node) -> None:
        await fill(await millrace.queue("q"))

    async def script(millrace: Millrace, node: Node) -> None:
        queue = await millrace.find("q")
        # What an earlier process wrote is cold: it is read on a lane, while the loop goes on.
        leasing = asyncio.ensure_future(queue.lease(5))
        await asyncio.sleep(0.001)
        assert await millrace.delete_queue("q")
        with pytest.raises(NotFound):
            await leasing

    bench = Bench()
    bench.live(fill_up)
    bench.lane_seconds = 1.0
    bench.live(script)
