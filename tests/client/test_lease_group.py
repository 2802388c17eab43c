"""Automatic lease extension, with an engine that is busy or has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import pytest

from millrace import errors, limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.lease import grant_of
from millrace.client.millrace import Millrace
from millrace.core.commands import (
    Command,
    Extend,
    LeaseMessages,
    Release,
    Settle,
)
from millrace.core.model import ShardId
from millrace.node import Node, real_ports
from tests.client.harness import SMALL, opened, run
from tests.simulation.harness import Bench

T = TypeVar("T")


class BusyEngine(EmbeddedEngine):
    """An engine that refuses some commands with `Full`, a given number of times."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.refusals = 0
        self.refused: type[Command] = Extend

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        if self.refusals and isinstance(command, self.refused):
            self.refusals -= 1
            raise errors.Full("busy", after_ms=1)
        return await super().ask(shard, command, kind, wait_ms=wait_ms)


def test_work_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    async def main() -> None:
        engine = BusyEngine(await Node.open(real_ports(tmp_path), SMALL))
        engine.refused, engine.refusals = LeaseMessages, 3
        async with Millrace(engine) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            lease = await anext(queue.work())
            assert (lease.body, engine.refusals) == (b"x", 0)

    run(main())


def test_a_failed_context_raises_its_own_error_where_nothing_is_taken_back(tmp_path: Path) -> None:
    async def main() -> None:
        engine = BusyEngine(await Node.open(real_ports(tmp_path), SMALL))
        engine.refused, engine.refusals = Release, 1
        async with Millrace(engine) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            with pytest.raises(ZeroDivisionError):
                async with (await queue.lease())[0] as lease:
                    1 / len(lease.headers)
            assert engine.refusals == 0

    run(main())


def test_many_lease_calls_are_ended_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.CALLS_AT_ONCE_MAX < limits.INBOX_COMMANDS_MAX
    monkeypatch.setattr(limits, "INBOX_COMMANDS_MAX", 50)
    monkeypatch.setattr(limits, "CALLS_AT_ONCE_MAX", 20)

    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"x"] * 120)
            leases = [(await queue.lease())[0] for _ in range(120)]
            assert await queue.extend(leases, 60) == {}
            assert await queue.release(leases[:60]) == {}
            refused = await queue.settle([lease.receipt for lease in leases])
            assert sorted(refused) == list(range(1, 61))
            assert (await queue.stats())["settled"] == 60

    run(main())


def test_what_was_answered_counts_where_some_found_no_room(tmp_path: Path) -> None:
    async def main() -> None:
        engine = BusyEngine(await Node.open(real_ports(tmp_path), SMALL))
        async with Millrace(engine) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"x"] * 5)
            leases = [(await queue.lease())[0] for _ in range(5)]
            await leases[4].release()
            engine.refused, engine.refusals = Settle, 2
            with pytest.raises(errors.Full):
                await queue.settle(leases)
            assert (await queue.stats())["settled"] == 2
            assert [len(grant_of(lease).open) for lease in leases] == [1, 1, 0, 0, 0]
            assert list(await queue.settle(leases)) == [5]
            assert (await queue.stats())["settled"] == 4

    run(main())


# --- On virtual time -----------------------------------------------------------------------------


def test_extending_is_tried_again_while_the_engine_is_busy() -> None:
    async def script(_: Millrace, node: Node) -> None:
        engine = BusyEngine(node)
        queue = await Millrace(engine).queue("orders")
        await queue.publish(b"x")
        engine.refusals = 5
        async with (await queue.lease(seconds=30))[0] as lease:
            first = lease.deadline_ms
            await asyncio.sleep(29)
            assert engine.refusals == 0
            assert lease.deadline_ms > first
        assert (await queue.stats())["settled"] == 1

    Bench().live(script)


def test_extending_ends_with_the_queue() -> None:
    async def script(m: Millrace, node: Node) -> None:
        queue = await m.queue("orders")
        await queue.publish(b"x")
        before = len(asyncio.all_tasks())
        work = queue.work(seconds=30)
        lease = await anext(work)
        assert len(asyncio.all_tasks()) > before
        await m.delete_queue("orders")
        await asyncio.sleep(100)
        assert len(asyncio.all_tasks()) == before
        with pytest.raises(errors.NotFound):
            await lease.settle()

    Bench().live(script)


def test_a_settled_lease_is_not_extended() -> None:
    async def script(m: Millrace, node: Node) -> None:
        queue = await m.queue("orders")
        await queue.publish(b"x")
        before = len(asyncio.all_tasks())
        work = queue.work(seconds=30)
        lease = await anext(work)
        until = lease.deadline_ms
        await lease.settle()
        await asyncio.sleep(100)
        assert len(asyncio.all_tasks()) == before
        assert (lease.lost, lease.deadline_ms) == (None, until)

    Bench().live(script)


def test_a_message_that_waited_for_its_turn_is_extended_in_time() -> None:
    """Ten leased at once, each worked on for ten seconds: no other worker ever gets one of them."""

    async def script(m: Millrace, node: Node) -> list[int]:
        queue = await m.queue("orders")
        await queue.publish_many([b"x"] * 3)
        stolen: list[int] = []

        async def steal() -> None:
            while True:
                stolen.extend(lease.seq for lease in await queue.lease(10, seconds=1, wait=60))

        leases = await queue.lease(10, seconds=30)
        thief = asyncio.create_task(steal())
        for lease in leases[:2]:
            async with lease:
                await asyncio.sleep(10)
        # The third is taken into use ten seconds before its end, and worked on for longer.
        async with leases[2]:
            await asyncio.sleep(100)
        thief.cancel()
        assert (await queue.stats())["settled"] == 3
        return stolen

    assert Bench().live(script) == []


def test_one_that_is_taken_into_use_late_is_extended_before_the_others() -> None:
    async def script(m: Millrace, node: Node) -> None:
        queue = await m.queue("orders")
        await queue.publish_many([b"x"] * 3)
        early, late, past = await queue.lease(3, seconds=30)
        async with early:
            await asyncio.sleep(20)
            async with late:
                await asyncio.sleep(15)
                assert (await queue.explain(late.seq)).state == "leased"
                assert (await queue.explain(past.seq)).state == "returned"
                async with past:
                    await asyncio.sleep(0.1)
                    assert (await queue.explain(past.seq)).state == "leased"

    Bench().live(script)


def test_a_longer_extension_is_not_cut_short() -> None:
    async def script(m: Millrace, node: Node) -> None:
        queue = await m.queue("orders")
        await queue.publish_many([b"x"] * 2)
        one, two = await queue.lease(2, seconds=30)
        async with one, two:
            await one.extend(100)
            until = one.deadline_ms
            first = two.deadline_ms
            await asyncio.sleep(40)
            assert one.deadline_ms == until
            assert (await queue.explain(one.seq)).until_ms == until
            assert two.deadline_ms > first
            await asyncio.sleep(100)
            assert one.deadline_ms > until
            assert (await queue.explain(one.seq)).state == "leased"

    Bench().live(script)
