"""Attempt ids: a repeated lease call returns the same messages under the same receipts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import errors
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.core.commands import LeaseMessages
from tests.client.harness import Clock, embedded, opened, run, timed


@embedded
async def test_the_same_attempt_gets_the_same_receipts(m: Millrace) -> None:
    queue = await m.queue("jobs")
    await queue.publish_many([b"a", b"b", b"c"])
    await queue.publish(b"high", priority=9)
    first = await queue.lease(2, attempt="x")
    again = await queue.lease(2, attempt="x")
    assert [lease.body for lease in again] == [b"high", b"a"]
    assert [lease.receipt for lease in again] == [lease.receipt for lease in first]
    assert [lease.deadline_ms for lease in again] == [lease.deadline_ms for lease in first]
    [other] = await queue.lease(1, attempt="y")
    assert other.body == b"b"
    await again[0].settle()
    [new] = await queue.lease(2, attempt="x")
    assert new.body == b"c", "something became of the first ones: it is a new call"
    assert await queue.lease(attempt="z") == []
    await queue.publish(b"d")
    assert [lease.body for lease in await queue.lease(attempt="z")] == [b"d"]


@embedded
async def test_a_repeat_that_nobody_heard_gives_back_nothing(m: Millrace) -> None:
    """The caller still holds the result of its first call."""
    queue = await m.queue("jobs")
    await queue.publish(b"a")
    [first] = await queue.lease(seconds=600, attempt="x")
    engine = m._engine
    assert isinstance(engine, EmbeddedEngine)
    repeat = engine.submit(queue.shards.first, LeaseMessages(1, 600_000, "x"))
    told = asyncio.get_running_loop().create_future()
    engine.then(repeat, told.set_result)
    await told
    engine.take_back(repeat)
    assert await queue.lease() == []
    await first.settle()


@timed
async def test_what_ran_out_or_is_too_old_is_a_new_call(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("jobs")
    await queue.publish(b"a")
    [first] = await queue.lease(seconds=10, attempt="x")
    clock.forward(seconds=10)
    [again] = await queue.lease(seconds=3600, attempt="x")
    assert (again.version, again.deliveries) == (first.version + 1, 2)
    clock.forward(seconds=299)
    assert [lease.receipt for lease in await queue.lease(attempt="x")] == [again.receipt]
    clock.forward(seconds=1)
    assert await queue.lease(attempt="x") == []


def test_attempts_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> str:
        async with opened(tmp_path) as m:
            queue = await m.queue("jobs")
            await queue.publish(b"a")
            [lease] = await queue.lease(seconds=3600, attempt="x")
            return lease.receipt

    async def second() -> str:
        async with opened(tmp_path) as m:
            queue = await m.queue("jobs")
            [lease] = await queue.lease(attempt="x")
            await lease.settle()
            return lease.receipt

    assert run(first()) == run(second())


@embedded
async def test_bad_ids_are_refused(m: Millrace) -> None:
    queue = await m.queue("jobs")
    for bad in ("", 7, "x" * 401):
        with pytest.raises((errors.Invalid, errors.TooLarge)) as refused:
            await queue.lease(attempt=bad)  # type: ignore[arg-type]
        assert refused.value.field == "attempt"
