"""Priorities and delays: the order and time of delivery."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import errors, limits
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.node import Node
from tests.client.harness import Clock, embedded, opened, run, timed
from tests.simulation.harness import Bench


async def bodies(queue: Queue, count: int = 10) -> list[bytes]:
    return [lease.body or b"" for lease in await queue.lease(count, seconds=3600)]


@embedded
async def test_the_highest_priority_comes_first_within_a_call_too(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"usual")
    await queue.publish(b"low", priority=0)
    await queue.publish(b"high", priority=9)
    await queue.publish(b"same", priority=4)
    assert await bodies(queue, 1) == [b"high"]
    await queue.publish(b"high again", priority=9)
    assert await bodies(queue) == [b"high again", b"usual", b"same", b"low"]


@embedded
async def test_messages_of_one_call_have_priorities_of_their_own(m: Millrace) -> None:
    queue = await m.queue("orders")
    rows: list[bytes | Message] = [
        Message(b"a"),
        Message(b"b", priority=1),
        b"c",
        Message(b"d", priority=8),
    ]
    assert await queue.publish_many(rows, priority=6) == range(1, 5)
    assert await bodies(queue) == [b"d", b"a", b"c", b"b"]


@timed
async def test_nobody_gets_a_message_before_its_delay_is_over(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    seq = await queue.publish(b"later", delay=60)
    await queue.publish_many([Message(b"a", delay=0), b"b"], delay=30)
    assert seq == 1
    assert await bodies(queue) == [b"a"]
    explained = await queue.explain(1)
    assert (explained.state, explained.until_ms) == ("delayed", clock() + 60_000)
    assert [row.body for row in await queue.peek()] == [b"later", b"a", b"b"]
    clock.forward(seconds=30)
    assert await bodies(queue) == [b"b"]
    clock.forward(seconds=29.999)
    assert await bodies(queue) == []
    clock.forward(seconds=0.001)
    assert (await queue.explain(1)).state == "ready"
    assert await bodies(queue) == [b"later"]


@timed
async def test_a_queue_delays_what_names_no_other_delay(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders", delay=5)
    assert (await queue.spec()).delay_ms == 5_000
    await queue.publish(b"a")
    await queue.publish(b"now", delay=0)
    await queue.stage("s", [b"staged"])
    await queue.publish_staged(["s"])
    assert await bodies(queue) == [b"now"]
    clock.forward(seconds=5)
    assert await bodies(queue) == [b"a", b"staged"]
    await queue.configure(delay=0)
    await queue.publish(b"b")
    assert await bodies(queue) == [b"b"]


@timed
async def test_a_transaction_publishes_with_priority_and_delay(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    async with m.transaction() as t:
        t.publish(queue, b"usual")
        t.publish(queue, b"high", priority=7)
        t.publish(queue, b"later", delay=1)
        t.publish_many(queue, [b"low"], priority=2)
    assert await bodies(queue) == [b"high", b"usual", b"low"]
    clock.forward(seconds=1)
    assert await bodies(queue) == [b"later"]


def test_a_lease_call_that_waits_is_woken_when_a_delay_is_over() -> None:
    bench = Bench()

    async def script(m: Millrace, _: Node) -> None:
        queue = await m.queue("orders")
        waiting = asyncio.create_task(queue.lease(1, wait=30))
        await asyncio.sleep(0)
        began = bench.clock.seconds
        await queue.publish(b"later", delay=20)
        await queue.publish(b"soon", delay=10)
        [lease] = await waiting
        assert lease.body == b"soon"
        assert 10 <= bench.clock.seconds - began < 11

    bench.live(script)


def test_one_that_begins_to_wait_later_is_woken_as_well() -> None:
    bench = Bench()

    async def script(m: Millrace, _: Node) -> None:
        queue = await m.queue("orders")
        began = bench.clock.seconds
        await queue.publish(b"soon", delay=10)
        [lease] = await queue.lease(1, wait=30)
        assert lease.body == b"soon"
        assert 10 <= bench.clock.seconds - began < 11

    bench.live(script)


def test_what_waits_apart_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    clock.stop()

    async def write() -> None:
        async with opened(tmp_path / "data", clock=clock) as m:
            queue = await m.queue("orders")
            await queue.publish(b"later", delay=60)
            await queue.publish_many([b"usual", Message(b"high", priority=9)])

    async def read() -> None:
        async with opened(tmp_path / "data", clock=clock) as m:
            queue = await m.queue("orders")
            assert await bodies(queue) == [b"high", b"usual"]
            clock.forward(seconds=60)
            assert await bodies(queue) == [b"later"]

    run(write())
    run(read())


@timed
async def test_of_a_key_the_newest_revision_alone_comes_to_its_turn(
    m: Millrace, clock: Clock
) -> None:
    clock.stop()
    queue = await m.queue("orders", keyed=True)
    await queue.publish(b"old", key="k", delay=5)
    await queue.publish(b"new", key="k", delay=9)
    await queue.publish(b"gone", key="l", priority=9)
    await queue.publish(None, key="l", delay=5)
    assert await bodies(queue) == []
    clock.forward(seconds=5)
    assert await bodies(queue) == []
    clock.forward(seconds=4)
    assert await bodies(queue) == [b"new"]


@timed
async def test_a_purge_ends_what_waits_apart(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    await queue.publish_many([b"%d" % at for at in range(5000)], delay=5)
    await queue.publish(b"high", priority=9)
    await queue.purge()
    await queue.publish(b"after", delay=1)
    clock.forward(seconds=5)
    assert await bodies(queue) == [b"after"]
    assert (await queue.stats())["live"] == 1


@embedded
async def test_what_no_queue_takes_is_refused_by_name(m: Millrace) -> None:
    queue = await m.queue("orders")
    log = await m.queue("log", retention="log")
    for priority in (-1, 10, True, 1.5, "high"):
        with pytest.raises(errors.Invalid) as refused:
            await queue.publish(b"x", priority=priority)  # type: ignore[arg-type]
        assert refused.value.field == "priority"
    with pytest.raises(errors.Invalid) as negative:
        await queue.publish_many([Message(b"x", delay=-1)])
    assert negative.value.field == "delay"
    with pytest.raises(errors.TooLarge) as long:
        await queue.publish(b"x", delay=1e9)
    assert (long.value.field, long.value.limit) == ("delay", limits.DELAY_MS_MAX // 1000)
    for field in ("priority", "delay"):
        message = Message(b"x", **{field: 1})  # type: ignore[arg-type]
        with pytest.raises(errors.Invalid) as of_a_log:
            await log.publish_many([message])
        assert of_a_log.value.field == field
        with pytest.raises(errors.Invalid) as staged:
            await log.stage("s", [message])
        assert staged.value.field == field
    with pytest.raises(errors.Invalid) as setting:
        await log.configure(delay=1)
    assert setting.value.field == "delay"
    assert (await queue.stats())["published"] == 0
