"""Extending by itself, where the engine is busy or has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import pytest

from millrace import errors
from millrace.client.engine import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.core.commands import Command, Extend, Lease
from millrace.core.model import ShardId
from millrace.node import Node, real_ports
from tests.client.harness import SMALL, embedded, eventually, run

T = TypeVar("T")


class BusyEngine(EmbeddedEngine):
    """An engine that has no room for some commands, as often as it is told."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.refusals = 0
        self.refused: type[Command] = Extend

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        if self.refusals and isinstance(command, self.refused):
            self.refusals -= 1
            raise errors.Full("busy", after_ms=1)
        return await super().ask(shard, command, kind, wait_ms=wait_ms)


def test_extending_is_tried_again_while_the_engine_is_busy(tmp_path: Path) -> None:
    async def main() -> None:
        engine = BusyEngine(await Node.open(real_ports(tmp_path), SMALL))
        async with Millrace(engine) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            engine.refusals = 5
            async with (await queue.lease(seconds=1))[0] as lease:
                first = lease.deadline_ms

                async def is_later() -> bool:
                    return lease.deadline_ms > first

                await eventually(is_later)
            assert engine.refusals == 0
            assert (await queue.stats())["settled"] == 1

    run(main())


def test_work_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    async def main() -> None:
        engine = BusyEngine(await Node.open(real_ports(tmp_path), SMALL))
        engine.refused, engine.refusals = Lease, 3
        async with Millrace(engine) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            lease = await anext(queue.work())
            assert (lease.body, engine.refusals) == (b"x", 0)

    run(main())


@embedded
async def test_extending_ends_with_the_queue(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    work = queue.work(seconds=0.02)
    lease = await anext(work)
    before = len(asyncio.all_tasks())
    await m.delete_queue("orders")

    async def is_over() -> bool:
        return len(asyncio.all_tasks()) < before

    await eventually(is_over)
    with pytest.raises(errors.NotFound):
        await lease.settle()


@embedded
async def test_a_settled_lease_is_not_extended(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    before = len(asyncio.all_tasks())
    work = queue.work(seconds=0.02)
    lease = await anext(work)
    await lease.settle()

    async def is_over() -> bool:
        return len(asyncio.all_tasks()) == before

    await eventually(is_over)
    assert lease.lost is None
