"""Watermarks refuse requests that grow, accept the others, and end by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millrace import errors
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.maintenance.watermarks import Watermarks, memory_used
from millrace.node import Node, real_ports
from millrace.settings import Settings
from millrace.wal.disk import RealDisk
from tests.client.harness import eventually, run

MARKED = Settings(segment_bytes=1024 * 1024, disk_low=1_000_000, memory_high=5_000_000)


class Machine:
    """A disk and a memory whose free space the test sets."""

    def __init__(self) -> None:
        self.free = 1 << 40
        self.used = 0


class Disk(RealDisk):
    def __init__(self, root: Path, machine: Machine) -> None:
        super().__init__(root)
        self._machine = machine

    def free_bytes(self) -> int:
        return self._machine.free


@asynccontextmanager
async def opened(folder: Path, machine: Machine) -> AsyncIterator[Millrace]:
    ports = real_ports(folder)
    ports = replace(ports, disk=Disk(folder, machine), memory_used=lambda: machine.used)
    async with Millrace(EmbeddedEngine(await Node.open(ports, MARKED), str(folder))) as m:
        yield m


async def publish_in_a_transaction(m: Millrace) -> None:
    async with m.transaction() as t:
        t.publish(await m.find("orders"), b"d")


@pytest.mark.parametrize("what", ["disk_low", "memory_high"])
def test_what_grows_is_refused_and_the_rest_goes_on(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        machine = Machine()
        async with opened(tmp_path / "data", machine) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"a", b"b", b"c"])
            if what == "disk_low":
                machine.free = 999_999
            else:
                machine.used = 5_000_001

            async def is_refusing() -> bool:
                return (await m.health()).refuses is not None

            await eventually(is_refusing)
            for call in (
                queue.publish(b"d"),
                queue.publish_many([b"d"]),
                queue.stage("s", [b"d"]),
                m.queue("another"),
            ):
                with pytest.raises(errors.Full, match=what) as refusal:
                    await call
                assert refusal.value.field == what
                assert refusal.value.limit in (1_000_000, 5_000_000)
                assert refusal.value.after_ms == 1_000
            with pytest.raises(errors.Full):
                await publish_in_a_transaction(m)
            [lease] = await queue.lease(1)
            await lease.settle()
            [lease] = await queue.lease(1)
            await lease.release()
            await queue.purge()
            assert (await queue.stats())["live"] == 0
            # A little more is not enough, because of the hysteresis.
            machine.free, machine.used = 1_000_001, 4_999_999
            await m._engine._node.checkpointer.reclaim()  # type: ignore[attr-defined]
            m._engine._node.supervisor.poll()  # type: ignore[attr-defined]
            assert (await m.health()).refuses is not None
            machine.free, machine.used = 1 << 40, 0

            async def is_over() -> bool:
                return (await m.health()).refuses is None

            await eventually(is_over)
            await queue.publish(b"e")

    run(main())


def test_without_marks_nothing_is_measured() -> None:
    def never() -> int:
        raise AssertionError("nobody asked")

    marks = Watermarks(
        disk_low=0, memory_high=None, free_bytes=never, used_bytes=never, trim=lambda: None
    )
    marks.measure()
    marks.check()


def test_memory_that_is_short_is_given_back() -> None:
    used, trimmed = [100], []
    marks = Watermarks(
        disk_low=0,
        memory_high=80,
        free_bytes=lambda: 0,
        used_bytes=lambda: used[0],
        trim=lambda: trimmed.append(1),
    )
    marks.measure()
    assert marks.is_short_of_memory
    assert not trimmed
    for now, is_over in ((75, False), (71, False), (70, True)):
        used[0] = now
        marks.measure()
        assert (marks.refusal is None) == is_over
    assert len(trimmed) == 3


def test_the_memory_of_this_process_is_known() -> None:
    before = memory_used()
    block = bytearray(50_000_000)
    assert memory_used() - before > 40_000_000
    del block
