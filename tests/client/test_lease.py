"""A lease: settled, released, extended, lost."""

from __future__ import annotations

import asyncio

import pytest

from millrace import errors
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue, extend_within
from tests.client.harness import Clock, embedded, timed


async def filled(m: Millrace, count: int) -> Queue:
    queue = await m.queue("orders")
    await queue.publish_many([b"%d" % n for n in range(1, count + 1)])
    return queue


@embedded
async def test_a_lease_shows_its_message(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"body", key="k", headers={"a": "b"})
    row = (await queue.peek())[0]
    lease = (await queue.lease(seconds=40))[0]
    assert (lease.body, lease.key, lease.headers, lease.seq) == (
        b"body",
        b"k",
        (("a", b"b"),),
        1,
    )
    assert (lease.deliveries, lease.failures, lease.version) == (1, 0, 1)
    assert lease.time_ms == row.time_ms
    assert 0 < lease.deadline_ms - lease.time_ms - 40_000 < 10_000
    assert lease.lost is None
    assert isinstance(lease.receipt, str)


@embedded
async def test_q6_leases_are_exclusive_and_in_order(m: Millrace) -> None:
    queue = await filled(m, 10)
    first = await queue.lease(4)
    second, third = await asyncio.gather(queue.lease(4), queue.lease(4))
    assert [lease.seq for lease in first] == [1, 2, 3, 4]
    assert [lease.seq for lease in second + third] == [5, 6, 7, 8, 9, 10]
    assert await queue.lease(4) == []


@embedded
async def test_settling_is_final_and_counted_once(m: Millrace) -> None:
    queue = await filled(m, 2)
    lease = (await queue.lease())[0]
    await lease.settle()
    await lease.settle()
    assert await queue.settle(lease) == {}
    assert await queue.settle(lease.receipt) == {}
    assert await queue.settle([lease, lease.receipt]) == {}
    stats = await queue.stats()
    assert (stats["settled"], stats["live"]) == (1, 1)
    with pytest.raises(errors.Stale, match="settled"):
        await lease.release()


@embedded
async def test_a_released_message_comes_back_first(m: Millrace) -> None:
    queue = await filled(m, 3)
    lease = (await queue.lease())[0]
    await lease.release()
    await lease.release()
    again = (await queue.lease())[0]
    assert (again.seq, again.deliveries, again.failures) == (1, 2, 0)
    await again.release(failed=True)
    once_more = (await queue.lease())[0]
    assert (once_more.seq, once_more.deliveries, once_more.failures) == (1, 3, 1)
    assert once_more.version > again.version > lease.version
    for old in (lease, again):
        with pytest.raises(errors.Stale):
            await old.settle()
    await once_more.settle()


@timed
async def test_a_receipt_holds_until_another_has_the_message(m: Millrace, clock: Clock) -> None:
    queue = await filled(m, 2)
    late, lost = await queue.lease(2, seconds=30)
    clock.forward(seconds=31)
    await late.settle()
    other = (await queue.lease())[0]
    assert (other.seq, other.deliveries, other.failures) == (2, 2, 1)
    with pytest.raises(errors.Stale, match="someone else"):
        await lost.settle()
    with pytest.raises(errors.Stale):
        await lost.extend(10)
    assert isinstance(lost.lost, errors.Stale)
    await other.settle()
    assert (await queue.stats())["settled"] == 2


@timed
async def test_who_asks_to_be_on_time_is_refused_what_is_late(m: Millrace, clock: Clock) -> None:
    queue = await filled(m, 3)
    first, second, third = await queue.lease(3, seconds=30)
    await queue.extend(third.receipt, 60, on_time=True)
    assert await queue.settle([first], on_time=True) == {}
    clock.forward(seconds=31)
    refused = await queue.settle([first, second, third], on_time=True)
    assert {seq: type(error) for seq, error in refused.items()} == {2: errors.Late}
    for late in (
        queue.settle(second, on_time=True),
        queue.release(second, on_time=True, delay=5),
        queue.extend(second.receipt, 30, on_time=True),
    ):
        with pytest.raises(errors.Late) as told:
            await late
        assert (told.value.code, told.value.field) == ("late", "receipt")
    assert (await queue.stats())["settled"] == 2
    await queue.settle(second.receipt)
    assert (await queue.stats())["settled"] == 3


@timed
async def test_an_extended_message_stays(m: Millrace, clock: Clock) -> None:
    queue = await filled(m, 2)
    kept, left = await queue.lease(2, seconds=30)
    before = left.deadline_ms
    await kept.extend(100)
    assert kept.deadline_ms > before
    assert left.deadline_ms == before
    clock.forward(seconds=60)
    assert [lease.seq for lease in await queue.lease(2)] == [left.seq]
    clock.forward(seconds=60)
    assert kept.seq in [lease.seq for lease in await queue.lease(2)]


@embedded
async def test_many_are_judged_one_by_one(m: Millrace) -> None:
    queue = await filled(m, 6)
    first, second = await queue.lease(2), await queue.lease(4)
    await first[0].release()
    again = (await queue.lease())[0]
    refused = await queue.settle([*first, second[0], second[1].receipt])
    assert refused.keys() == {1}
    assert isinstance(refused[1], errors.Stale)
    assert (await queue.stats())["settled"] == 3
    assert await queue.extend([again, *second[2:]], 60) == {}
    assert second[2].deadline_ms == second[3].deadline_ms > second[0].deadline_ms
    assert await queue.release([again.receipt, *second[2:]], failed=True) == {}
    assert [(lease.seq, lease.failures) for lease in await queue.lease(9)] == [
        (1, 1),
        (5, 1),
        (6, 1),
    ]


@embedded
async def test_one_that_is_refused_raises(m: Millrace) -> None:
    queue = await filled(m, 1)
    lease = (await queue.lease())[0]
    await queue.release(lease)
    await queue.lease()
    for one in (lease, lease.receipt):
        with pytest.raises(errors.Stale):
            await queue.settle(one)
        with pytest.raises(errors.Stale):
            await queue.extend(one, 10)
        with pytest.raises(errors.Stale):
            await queue.release(one)


@embedded
async def test_a_newer_revision_supersedes_a_lease(m: Millrace) -> None:
    queue = await m.queue("prices", keyed=True)
    await queue.publish(b"1", key="a")
    lease = (await queue.lease())[0]
    await queue.publish(b"2", key="a")
    with pytest.raises(errors.Superseded):
        await lease.extend(10)
    assert isinstance(lease.lost, errors.Superseded)
    with pytest.raises(errors.Superseded):
        await lease.settle()
    newer = (await queue.lease())[0]
    assert newer.body == b"2"
    await newer.settle()


@embedded
async def test_a_context_settles(m: Millrace) -> None:
    queue = await filled(m, 1)
    async with (await queue.lease())[0] as lease:
        assert lease.body == b"1"
    assert (await queue.stats())["settled"] == 1


@embedded
async def test_a_context_that_fails_releases(m: Millrace) -> None:
    queue = await filled(m, 1)
    with pytest.raises(ZeroDivisionError):
        async with (await queue.lease())[0] as lease:
            1 / len(lease.headers)
    again = (await queue.lease())[0]
    assert (again.deliveries, again.failures) == (2, 1)


@embedded
async def test_a_cancelled_context_releases_politely(m: Millrace) -> None:
    queue = await filled(m, 1)
    begun = asyncio.Event()

    async def work(lease: Lease) -> None:
        async with lease:
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work((await queue.lease())[0]))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = (await queue.lease())[0]
    assert (again.deliveries, again.failures) == (2, 0)


@embedded
async def test_a_context_leaves_alone_what_its_body_ended(m: Millrace) -> None:
    queue = await filled(m, 2)
    first, second = await queue.lease(2)
    async with first:
        await first.release()
    async with second, m.transaction() as t:
        t.settle(second)
    assert (await queue.stats())["settled"] == 1
    assert [lease.seq for lease in await queue.lease(2)] == [1]


@embedded
async def test_a_failed_context_raises_its_own_error(m: Millrace) -> None:
    queue = await filled(m, 1)
    lease = (await queue.lease())[0]

    async def fail() -> None:
        async with lease:
            await queue.purge()
            1 / len(lease.headers)

    with pytest.raises(ZeroDivisionError):
        await fail()


@embedded
async def test_waiting_ends_with_the_first_message(m: Millrace) -> None:
    queue = await m.queue("orders")
    assert await queue.lease(wait=0.01) == []
    waiting = asyncio.create_task(queue.lease(5, wait=30))
    await queue.explain(1)
    await queue.publish_many([b"1", b"2"])
    assert [lease.body for lease in await waiting] == [b"1", b"2"]


@embedded
async def test_waiters_are_served_in_turn(m: Millrace) -> None:
    queue = await m.queue("orders")
    waiting = [asyncio.create_task(queue.lease(wait=30)) for _ in range(3)]
    await queue.explain(1)
    await queue.publish_many([b"1", b"2", b"3"])
    bodies = [lease.body for task in waiting for lease in await task]
    assert bodies == [b"1", b"2", b"3"]


@embedded
async def test_who_waits_is_given_what_another_lets_run_out(m: Millrace) -> None:
    """Also if the other worker leased it while this one was already waiting."""
    queue = await m.queue("orders")
    waiting = [asyncio.create_task(queue.lease(seconds=0.05, wait=30)) for _ in range(2)]
    await queue.explain(1)
    await queue.publish(b"x")
    found = [(await task)[0] for task in waiting]
    assert [lease.deliveries for lease in found] == [1, 2]


@embedded
async def test_who_waits_is_given_what_another_releases(m: Millrace) -> None:
    queue = await filled(m, 1)
    lease = (await queue.lease())[0]
    waiting = asyncio.create_task(queue.lease(wait=30))
    await queue.explain(1)
    await lease.release()
    assert (await waiting)[0].deliveries == 2


@embedded
async def test_who_waits_is_given_what_another_holds_no_longer(m: Millrace) -> None:
    queue = await filled(m, 1)
    lease = (await queue.lease())[0]
    waiting = asyncio.create_task(queue.lease(wait=30))
    await queue.explain(1)
    await extend_within(queue, lease.receipt, 0, 600)
    assert (await waiting)[0].deliveries == 2
