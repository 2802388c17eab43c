"""`Queue.work`: iterating over messages with automatic extension."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import errors
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from tests.client.harness import Clock, embedded, eventually, opened, run, timed


@embedded
async def test_work_drains_a_queue(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"%d" % n for n in range(25)])
    bodies = []
    async for lease in queue.work(batch=10, idle=0):
        async with lease:
            bodies.append(lease.body)
    assert bodies == [b"%d" % n for n in range(25)]
    assert (await queue.stats())["settled"] == 25


@embedded
async def test_work_waits_for_more(m: Millrace) -> None:
    queue = await m.queue("orders")
    seen: asyncio.Queue[Lease] = asyncio.Queue()

    async def work() -> None:
        async for lease in queue.work():
            await lease.settle()
            seen.put_nowait(lease)

    task = asyncio.create_task(work())
    for n in range(3):
        await queue.publish(b"%d" % n)
        assert (await seen.get()).body == b"%d" % n
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await queue.stats())["settled"] == 3


@embedded
async def test_a_loop_that_is_left_gives_back_what_it_leased_ahead(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 10)
    async for lease in queue.work(batch=10, seconds=3600):
        await lease.settle()
        if lease.seq == 3:
            break

    async def returned() -> bool:
        return (await queue.explain(10)).state == "returned"

    await eventually(returned)
    assert [lease.seq for lease in await queue.lease(10)] == [4, 5, 6, 7, 8, 9, 10]


@embedded
async def test_a_context_gives_back_at_its_end(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 3)
    async with queue.work(seconds=3600) as work:
        lease = await anext(work)
    assert [other.seq for other in await queue.lease(3)] == [2, 3]
    await lease.settle()
    with pytest.raises(errors.Closed):
        await anext(work)


@embedded
async def test_a_cancelled_step_ends_nothing(m: Millrace) -> None:
    queue = await m.queue("orders")
    work = queue.work()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(work), 0.01)
    await queue.publish(b"x")
    lease = await anext(work)
    assert lease.deliveries == 1
    await lease.settle()


@timed
async def test_leases_are_extended_while_they_are_worked_on(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    await queue.publish(b"x")
    lease = await anext(queue.work(seconds=0.2))
    for _ in range(3):
        clock.forward(seconds=0.19)
        await extended(lease)
        assert await queue.lease() == []
    await lease.settle()
    assert await queue.lease() == []
    assert (await queue.stats())["settled"] == 1


async def extended(lease: Lease) -> None:
    """Wait until the lease was extended."""
    before = lease.deadline_ms

    async def is_later() -> bool:
        return lease.deadline_ms > before

    await eventually(is_later)


@timed
async def test_a_context_extends_its_lease(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    await queue.publish(b"x")
    async with (await queue.lease(seconds=0.2))[0] as lease:
        clock.forward(seconds=0.19)
        await extended(lease)
        clock.forward(seconds=0.19)
        assert await queue.lease() == []
    assert (await queue.stats())["settled"] == 1


@timed
async def test_d6_what_the_program_dropped_runs_out(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    await queue.publish_many([b"1", b"2"])
    work = queue.work(seconds=0.2, batch=1)
    kept = await anext(work)
    dropped = await anext(work)
    del dropped
    for _ in range(2):
        clock.forward(seconds=0.19)
        await extended(kept)
    again = await queue.lease(2)
    assert [(lease.body, lease.deliveries, lease.failures) for lease in again] == [(b"2", 2, 1)]
    await kept.settle()


@embedded
async def test_a_worker_hears_that_its_message_was_superseded(m: Millrace) -> None:
    queue = await m.queue("prices", keyed=True)
    await queue.publish(b"1", key="a")
    work = queue.work(seconds=0.05)
    lease = await anext(work)
    await queue.publish(b"2", key="a")

    async def told() -> bool:
        return isinstance(lease.lost, errors.Superseded)

    await eventually(told)

    async def finish() -> None:
        async with lease:
            pass

    with pytest.raises(errors.Superseded):
        await finish()


def test_what_is_kept_at_the_close_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"1", b"2"])
            work = queue.work(seconds=3600)
            lease = await anext(work)
        with pytest.raises(errors.Closed):
            await lease.settle()
        async with opened(tmp_path) as m:
            queue = await m.find("orders")
            assert [lease.deliveries for lease in await queue.lease(2)] == [2, 2]

    run(main())


@embedded
async def test_many_workers_share_a_queue(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"%d" % n for n in range(300)])

    async def work() -> list[int]:
        seqs = []
        async for lease in queue.work(batch=7, idle=0):
            async with lease:
                seqs.append(lease.seq)
        return seqs

    shares = await asyncio.gather(*(work() for _ in range(5)))
    assert sorted(seq for share in shares for seq in share) == list(range(1, 301))
