"""The checkpointer when the index has no room or fails: the order of F1 holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.errors import Fatal
from millrace.node import Node, Ports
from millrace.settings import Settings
from millrace.store.cells import Table, Writes
from millrace.store.memory_cells import MemoryCells, Room
from tests.support.simulator.clock import SimClock
from tests.support.simulator.disk import SimDisk
from tests.support.simulator.event_loop import SimLoop

T = TypeVar("T")

AMPLE = Settings(
    segment_bytes=192 * 1024,
    log_segments_max=20,
    log_segments_unsealed=10,
    checkpoint_seconds=3600,
    checkpoint_log_bytes=1 << 40,
    switch_interval_seconds=None,
)
"""Settings with which nothing is sealed on its own."""

TIGHT = replace(AMPLE, log_segments_max=7, log_segments_unsealed=2)
"""Settings with which the log is full unless it is emptied all the time."""

BODIES = [b"%04d" % number * 1000 for number in range(100)]
"""Enough bodies to fill some segments."""


class PlainLane:
    """An I/O thread that runs work in the event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001
                future.set_exception(error)
            else:
                future.set_result(result)

        self._loop.call_soon(run)
        return future

    def close(self) -> None:
        pass


class BrittleCells(MemoryCells):
    """Cells whose commits fail on demand."""

    fail_in: int | None = None
    """1: the next commit fails, 2: the one after it, and so on."""
    ranges = 0
    """Number of range reads."""

    def range(
        self, table: Table, low: bytes, high: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self.ranges += 1
        return super().range(table, low, high, limit=limit, reverse=reverse)

    def commit(self, writes: Writes) -> None:
        if self.fail_in is not None:
            self.fail_in -= 1
            if not self.fail_in:
                self.fail_next(is_applied=False)
        super().commit(writes)


class Machine:
    """Several lives of one folder, on virtual time."""

    def __init__(self, settings: Settings = AMPLE) -> None:
        self.settings = settings
        self.disk = SimDisk(random.Random(1))
        self.cells = BrittleCells()
        self.sleep: Callable[[float], None] = lambda seconds: None
        self._clock = SimClock()
        self._chance = random.Random(2)

    def _open_cells(self) -> BrittleCells:
        self.cells = BrittleCells(self.cells.image())
        return self.cells

    async def open(self) -> tuple[Node, Millrace]:
        ports = Ports(
            disk=self.disk,
            cells=self._open_cells,
            io_thread=PlainLane,
            now_ms=self._clock.now_ms,
            chance=self._chance.randbytes,
            sleep=lambda seconds: self.sleep(seconds),
        )
        node = await Node.open(ports, self.settings)
        return node, Millrace(EmbeddedEngine(node))

    def live(self, life: Coroutine[Any, Any, T]) -> T:
        """Run a life of the process, which ends with a kill."""
        loop = SimLoop(self._clock)
        try:
            return loop.run(life)
        finally:
            loop.bury()
            self.disk = self.disk.kill()


async def bodies(m: Millrace) -> list[bytes | None]:
    return [row.body for row in await (await m.find("orders")).peek(10_000)]


def test_nothing_is_recycled_before_the_index_is_committed() -> None:
    """F1: a segment that somebody holds is unlinked when it is released, and its rows would be
    lost.

    The test lets each of the commits fail that sealing everything needs.
    """

    async def fail(machine: Machine, commits: int) -> bool:
        node, m = await machine.open()
        queue = await m.queue("orders")
        for body in BODIES:
            await queue.publish(body)
        async with queue.snapshot() as snapshot:
            kept = list(snapshot.arrow())
        assert [segment.is_held for segment in node.log.segments()].count(True) > 1
        await node.checkpointer.checkpoint()
        machine.cells.fail_in = commits
        try:
            await node.checkpointer.seal_all()
        except Fatal:
            assert sum(batch.num_rows for batch in kept) == len(BODIES)
            return True
        assert len(node.log.segments()) == 1, "everything was sealed"
        return False

    async def look(machine: Machine) -> None:
        _, m = await machine.open()
        assert await bodies(m) == BODIES
        await m.close()

    for commits in range(1, 20):
        machine = Machine()
        has_failed = machine.live(fail(machine, commits))
        machine.live(look(machine))
        if not has_failed:
            assert commits > 2
            return
    raise AssertionError("it took too many commits")


def test_a_checkpoint_that_found_no_room_is_made_again() -> None:
    """Otherwise its content would be neither in the index nor replayed."""
    machine = Machine()

    async def full() -> None:
        node, m = await machine.open()
        queue = await m.queue("orders")
        for body in BODIES[:20]:
            await queue.publish(body)
        machine.cells.room = Room.NONE
        await node.checkpointer.checkpoint()
        machine.cells.room = Room.AMPLE
        machine.cells.maintain()
        await node.checkpointer.checkpoint()
        for body in BODIES[20:]:
            await queue.publish(body)
        await node.checkpointer.checkpoint()
        await node.checkpointer.seal_all()

    async def look() -> None:
        _, m = await machine.open()
        assert await bodies(m) == BODIES
        await m.close()

    machine.live(full())
    machine.live(look())


def test_epoch_and_history_outlive_the_segments_that_they_were_written_to() -> None:
    """L6: a new history with every open would invalidate all cursors and receipts."""
    machine = Machine()
    seen: list[tuple[bytes, str]] = []

    async def life() -> None:
        node, m = await machine.open()
        queue = await m.queue("orders")
        for body in BODIES:
            await queue.publish(body)
        [lease] = await queue.lease(seconds=3600)
        async with queue.snapshot() as snapshot:
            seen.append((snapshot.id[0], lease.receipt))
        await node.checkpointer.seal_all()

    async def look() -> None:
        _, m = await machine.open()
        queue = await m.find("orders")
        async with queue.snapshot() as snapshot:
            assert snapshot.id[0] == seen[0][0]
        await queue.settle(seen[0][1])
        await m.close()

    machine.live(life())
    machine.live(look())


def test_one_stuck_message_does_not_keep_the_log() -> None:
    """I11: its row is moved to a file, and the log is recycled (rabbitmq-server #14522)."""
    machine = Machine(TIGHT)

    async def life() -> None:
        node, m = await machine.open()
        queue = await m.queue("orders")
        await queue.publish(b"stuck")
        [stuck] = await queue.lease(seconds=3600)
        async with asyncio.timeout(600):
            for _ in range(60):
                await queue.publish_many(BODIES[:10])
                await queue.settle(await queue.lease(10))
        assert node.log.mark().generation > 2 * TIGHT.log_segments_max
        assert len(node.log.segments()) < TIGHT.log_segments_max
        assert await bodies(m) == [b"stuck"]
        await stuck.settle()
        await m.close()

    machine.live(life())


def test_segments_of_another_size_do_not_bring_the_log_to_a_stop() -> None:
    """They cannot be reused: new ones replace them as soon as the log may have them.

    Found by seed 76 of the simulator, when each life had settings of its own.
    """
    machine = Machine(replace(AMPLE, log_segments_max=9, log_segments_unsealed=5))

    async def publish(rounds: int) -> int:
        _, m = await machine.open()
        queue = await m.queue("orders")
        for _ in range(rounds):
            for body in BODIES:
                await asyncio.wait_for(queue.publish(body), 60)
        return len(await queue.peek(10_000))

    assert machine.live(publish(2)) == 2 * len(BODIES)
    machine.settings = replace(TIGHT, segment_bytes=256 * 1024, log_segments_max=6)
    assert machine.live(publish(8)) == 10 * len(BODIES)


def test_the_end_of_many_small_records_is_found_in_few_steps() -> None:
    """Each record is a place of its own, and all of them end at once: the loop must not be blocked.

    The work grows with their number, and not with its square.
    """

    async def ranges(machine: Machine, count: int) -> int:
        node, m = await machine.open()
        queue = await m.queue("orders")
        for number in range(count):
            await queue.publish(b"%d" % number)
        await queue.settle(await queue.lease(count))
        machine.cells.ranges = 0
        await node.checkpointer.seal_all()
        assert (await queue.stats())["live"] == 0
        return machine.cells.ranges

    roomy = replace(AMPLE, segment_bytes=8 * 1024 * 1024)
    few, many = (
        machine.live(ranges(machine, count))
        for machine, count in ((Machine(roomy), 150), (Machine(roomy), 1_500))
    )
    assert many < few + 1_500 // 20
