"""Replacing a leased message: a worker goes on with the successor, under a receipt of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import errors
from millrace.client.millrace import Millrace
from tests.client.harness import Clock, embedded, opened, run, timed


@timed
async def test_a8_the_successor_is_held_by_the_same_worker(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("jobs")
    await queue.publish(b"page 1", key="k", headers={"h": "v"})
    await queue.publish(b"other")
    [lease] = await queue.lease(seconds=60)
    new = await lease.replace(b"page 2")
    assert (new.body, new.key, new.headers, new.seq) == (b"page 2", b"k", (("h", b"v"),), 3)
    assert (new.deliveries, new.failures, new.deadline_ms) == (1, 0, clock() + 60_000)
    assert new.time_ms == clock()
    with pytest.raises(errors.Superseded):
        await lease.settle()
    with pytest.raises(errors.Superseded):
        await lease.replace(b"late")
    assert [other.body for other in await queue.lease(5)] == [b"other"]
    newer = await new.replace(b"page 3", key="l", headers=(), seconds=10)
    clock.forward(seconds=10)
    [again] = await queue.lease(5, seconds=5)
    assert (again.body, again.key, again.headers) == (b"page 3", b"l", ())
    assert (again.deliveries, again.failures) == (2, 1)
    with pytest.raises(errors.Stale):
        await newer.replace(b"someone else has it")
    await again.settle()
    assert [row.body for row in await queue.peek()] == [b"other"]


def test_a_message_is_replaced_by_its_receipt(tmp_path: Path) -> None:
    async def first() -> str:
        async with opened(tmp_path) as m:
            queue = await m.queue("jobs", keyed=True)
            await queue.publish(b"a", key="k", headers={"h": "v"})
            [lease] = await queue.lease()
            new = await queue.replace(lease.receipt, b"b", seconds=3600)
            return new.receipt

    async def second(receipt: str) -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("jobs")
            assert await queue.lease() == []
            new = await queue.replace(receipt, b"c")
            assert (new.body, new.key, new.headers) == (b"c", b"k", (("h", b"v"),))
            with pytest.raises(errors.Superseded):
                await queue.replace(receipt, b"d")
            await new.settle()
            with pytest.raises(errors.Stale):
                await queue.replace(new.receipt, b"e")
            with pytest.raises(errors.Forged):
                await queue.replace("nonsense", b"e")
            assert (await queue.stats())["live"] == 0

    run(second(run(first())))


@embedded
async def test_a_context_that_replaced_its_message_settles_nothing_more(m: Millrace) -> None:
    queue = await m.queue("jobs")
    await queue.publish(b"a")
    [lease] = await queue.lease()
    async with lease, await lease.replace(b"b") as new:
        assert new.body == b"b"
    assert (await queue.stats())["live"] == 0
