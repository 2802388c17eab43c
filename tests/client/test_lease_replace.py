"""Replacing a leased message: a worker continues with the successor, under its own receipt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from weakref import ref

import pytest

from millrace import errors
from millrace.client.embedded import EmbeddedEngine
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace, engine_of
from millrace.node import Node
from tests.client.harness import Clock, embedded, opened, run, timed
from tests.simulation.harness import Bench


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


# --- What extends and ends a message by itself follows it -----------------------------------------


@embedded
async def test_5_3_a_context_settles_the_successor(m: Millrace) -> None:
    queue = await m.queue("jobs")
    await queue.publish(b"page 1")
    [lease] = await queue.lease()
    async with lease:
        new = await lease.replace(b"page 2")
        await new.replace(b"page 3")
    assert (await queue.stats())["settled"] == 3
    assert (await queue.stats())["live"] == 0


@embedded
async def test_5_3_a_context_and_work_settle_what_was_replaced_by_its_receipt(m: Millrace) -> None:
    queue = await m.queue("jobs")
    await queue.publish_many([b"page 1", b"page 1"])
    [lease] = await queue.lease()
    async with lease:
        new = await queue.replace(lease.receipt, b"page 2")
        await queue.replace(new.receipt, b"page 3")
    async for job in queue.work(idle=0):
        async with job:
            await queue.replace(job.receipt, b"page 2")
    assert (await queue.stats())["settled"] == 5
    assert (await queue.stats())["live"] == 0


@embedded
async def test_5_3_a_context_that_fails_releases_the_successor(m: Millrace) -> None:
    queue = await m.queue("jobs")
    await queue.publish(b"page 1")
    [lease] = await queue.lease()

    async def fail() -> None:
        async with lease:
            await lease.replace(b"page 2")
            raise ValueError("jam")

    with pytest.raises(ValueError, match="jam"):
        await fail()
    [again] = await queue.lease()
    assert (again.body, again.deliveries, again.failures) == (b"page 2", 2, 1)


@embedded
async def test_5_3_a_successor_that_was_ended_is_left_alone(m: Millrace) -> None:
    queue = await m.queue("jobs")
    await queue.publish_many([b"settle", b"release", b"discard"])
    for lease in await queue.lease(3):
        async with lease:
            new = await lease.replace(lease.body + b"d")
            await getattr(new, lease.body.decode())()
    stats = await queue.stats()
    assert (stats["settled"], stats["dropped"], stats["live"]) == (4, 1, 1)
    [again] = await queue.lease()
    assert (again.body, again.failures) == (b"released", 0)


@embedded
async def test_5_3_a_replacement_that_is_refused_changes_nothing(m: Millrace) -> None:
    log = await m.queue("log", retention="log")
    sessions = await m.queue("sessions")
    for queue in (log, sessions):
        await queue.publish(b"as it was")
    async with sessions.session(credit=1) as session, await anext(session) as held:
        with pytest.raises(errors.Invalid):
            await held.replace(b"other")
    async with (await log.lease())[0] as lease:
        with pytest.raises(errors.Invalid):
            await lease.replace(b"other")
    assert (await sessions.stats())["settled"] == 1
    assert await log.lease() == []


@embedded
async def test_5_3_a_lost_successor_ends_the_context(m: Millrace) -> None:
    prices = await m.queue("prices", keyed=True)
    await prices.publish(b"1", key="a")
    [lease] = await prices.lease()

    async def lose() -> None:
        async with lease:
            new = await lease.replace(b"2")
            await prices.publish(b"3", key="a")
            with pytest.raises(errors.Superseded):
                await new.extend(30)
            assert isinstance(lease.lost, errors.Superseded)

    with pytest.raises(errors.Superseded):
        await lose()
    assert [row.body for row in await prices.peek()] == [b"3"]


@embedded
async def test_5_3_an_extension_behind_the_end_of_a_message_has_lost_nothing(m: Millrace) -> None:
    queue = await m.queue("jobs")
    await queue.publish_many([b"a", b"b"])
    for lease in await queue.lease(2):
        async with lease:
            end = lease.replace(b"c") if lease.body == b"a" else lease.settle()
            ended, refused = await asyncio.gather(
                end, queue.extend([lease], 60), return_exceptions=True
            )
            assert not isinstance(ended, BaseException)
            assert not isinstance(refused, BaseException)
            if isinstance(engine_of(m), EmbeddedEngine):
                # It is asked in the same batch, behind the end; a server may do it before.
                assert list(refused) == [lease.seq]
            assert lease.lost is None
    assert (await queue.stats())["live"] == 0


def test_5_3_a_context_extends_the_successor() -> None:
    async def script(m: Millrace, node: Node) -> None:
        queue = await m.queue("jobs")
        await queue.publish(b"page 1")
        [lease] = await queue.lease(seconds=30)
        async with lease:
            await asyncio.sleep(20)
            second = await lease.replace(b"page 2")
            await asyncio.sleep(100)
            assert (await queue.explain(second.seq)).state == "leased"
            third = await second.replace(b"page 3", seconds=2)
            await asyncio.sleep(100)
            assert (await queue.explain(third.seq)).state == "leased"
            assert third.deadline_ms > second.deadline_ms
        assert (await queue.stats())["live"] == 0

    Bench().live(script)


def test_5_3_work_extends_the_successor_as_long_as_it_is_held() -> None:
    async def script(m: Millrace, node: Node) -> None:
        queue = await m.queue("jobs")
        await queue.publish(b"page 1")
        lease = await anext(queue.work(seconds=30))
        for page in (2, 3):
            lease = await lease.replace(b"page %d" % page)
            await asyncio.sleep(100)
            assert (await queue.explain(lease.seq)).state == "leased"
        seq = lease.seq
        # Dropped without a word: it runs out, although it was replaced before.
        del lease
        await asyncio.sleep(100)
        assert (await queue.explain(seq)).state == "returned"

    Bench().live(script)


def test_5_3_leases_that_were_replaced_are_let_go() -> None:
    async def script(m: Millrace, node: Node) -> None:
        queue = await m.queue("jobs")
        await queue.publish(b"page 1")
        [lease] = await queue.lease()
        seen: list[ref[Lease]] = []
        async with lease:
            new = lease
            for _ in range(10):
                new = await new.replace(b"next")
                seen.append(ref(new))
            assert [one() for one in seen[:-1]] == [None] * 9
        assert (await queue.stats())["settled"] == 11

    Bench().live(script)
