"""One program, three ways: embedded, over the socket of the owner's folder, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

import millrace
from millrace import errors, limits
from millrace.client.millrace import Millrace, engine_of
from millrace.client.remote import RemoteEngine
from tests.client.harness import SMALL, eventually, run
from tests.client.test_shared_folder import sharer
from tests.server.server_process import Process

pytestmark = pytest.mark.process

Way = Callable[[Path], AbstractAsyncContextManager[Millrace]]


@asynccontextmanager
async def by_open(path: Path) -> AsyncIterator[Millrace]:
    async with millrace.open(path, settings=SMALL) as m:
        yield m


@asynccontextmanager
async def by_share(path: Path) -> AsyncIterator[Millrace]:
    with sharer(path):
        async with millrace.open(path) as m:
            assert isinstance(engine_of(m), RemoteEngine)
            yield m


@asynccontextmanager
async def by_connect(path: Path) -> AsyncIterator[Millrace]:
    with Process(path) as server:
        async with millrace.connect(server.address, token=server.token) as m:
            yield m


async def queues_and_leases(m: Millrace) -> None:
    queue = await m.queue("orders", keyed=True, max_failures=5)
    assert await queue.publish(b"1", key="a", headers={"h": "v"}, producer="p", number=1) == 1
    assert await queue.publish(b"1", key="a", headers={"h": "v"}, producer="p", number=1) == 1
    assert await queue.publish_many([b"2", b"3", b"4"]) == range(2, 5)
    assert await queue.producer("p") == 1
    first, second, third = await queue.lease(3, seconds=30)
    assert (first.body, first.key, first.headers) == (b"1", b"a", (("h", b"v"),))
    await first.extend(60)
    await first.settle()
    await queue.release(second.receipt, failed=True)
    assert await queue.discard([third]) == {}
    with pytest.raises(errors.Stale):
        await second.settle()
    assert (await queue.explain(1)).state == "settled"
    [again] = await queue.lease()
    assert (again.seq, again.failures) == (2, 1)
    new = await again.replace(b"2 and more")
    await new.settle()
    assert [row.body for row in await queue.peek()] == [b"4"]
    found = await queue.get(4)
    assert found is not None
    assert (await queue.holders()).in_flight == 0
    assert (await queue.configure(max_failures=6)) == await queue.spec()
    with pytest.raises(errors.Exists):
        await m.queue("orders", keyed=False)
    with pytest.raises(errors.NotFound, match="did you mean 'orders'"):
        await m.find("order")
    assert await queue.purge() == 5
    async for lease in queue.work(idle=0):
        raise AssertionError(lease)


async def topics_and_shards(m: Millrace) -> None:
    wide = await m.queue("wide", shards=3)
    topic = await m.topic("news")
    await topic.subscribe("wide", filter={"kind": ["sale"]})
    await topic.publish(b"no", headers={"kind": "other"})
    await topic.publish_many([millrace.Message(b"yes", headers={"kind": "sale"})] * 6)

    async def is_there() -> bool:
        return (await wide.stats())["live"] == 6

    await eventually(is_there)
    assert len(await wide.lease(10)) == 6
    [subscription] = (await topic.describe()).subscriptions
    assert (subscription.forwarded, subscription.filtered) == (6, 1)
    long = await m.topic("t" * limits.TOPIC_NAME_CHARS_MAX)
    assert await m.topics() == ["news", long.name]
    assert (await m.find_topic(long.name)).name == long.name
    await long.configure(max_lag=7)
    assert await m.delete_topic("news")
    assert await m.delete_topic(long.name)


async def cursors_stages_and_transactions(m: Millrace) -> None:
    source, target = await m.queue("source"), await m.queue("target")
    await source.publish_many([b"%d" % n for n in range(500)])
    cursor = await source.cursor("report", retain=True)
    snapshot = await anext(cursor)
    assert len([row async for row in snapshot.rows()]) == 500
    table = await asyncio.to_thread(snapshot.arrow().read_all)
    assert table.column("value").to_pylist()[:2] == [b"0", b"1"]
    await target.stage("later", [b"x", b"y"])
    [lease] = await source.lease()
    async with source.snapshot() as pinned, m.transaction() as t:
        t.settle(lease)
        one = t.publish(target, b"a")
        staged = t.publish_staged(target, ["later"])
        t.commit(snapshot)
        t.unpin(pinned)
    assert (one.value, staged.value) == (1, range(2, 4))
    assert await cursor.next() is None
    assert await source.cursors() == {"report": 500}
    refused = m.transaction()
    refused.publish(target, b"never")
    refused.extend(lease, 60)
    with pytest.raises(errors.Stale):
        async with refused:
            pass
    assert (await target.stats())["live"] == 3
    assert await cursor.delete()


async def sessions_publishers_and_workers(m: Millrace) -> None:
    jobs, done = await m.queue("jobs"), await m.queue("done")
    async with jobs.publisher("web", window=8) as publisher:
        for n in range(40):
            await publisher.send(b"%d" % n)
    async with jobs.session(credit=4, name="till") as session:
        numbers = []
        async for lease in session:
            numbers.append(lease.number)
            await session.settle(upto=lease.number)
            if lease.number == 9:
                break
        assert numbers == list(range(10))
        text = session.id
    with pytest.raises(errors.Gone):
        await jobs.session(resume=text).open()
    async with jobs.session(credit=0, refill=False) as granted:
        await granted.grant(2)
        assert [(await anext(granted)).body for _ in range(2)] == [b"10", b"11"]
        assert await granted.grant(0, drain=True) == 0

    async def work(job: millrace.Lease, t: millrace.Transaction) -> None:
        t.publish(done, job.body)

    worker = millrace.Worker(jobs, work, idle=0, concurrency=3)
    await worker.run()
    assert worker.stats.handled == 30
    assert sorted(int(row.body or b"") for row in await done.peek(100)) == list(range(10, 40))


async def letters_and_care(m: Millrace, backups: Path) -> None:
    dead = await m.queue("dead")
    mail = await m.queue("mail", max_failures=1, dead_letter="dead")
    await mail.publish(b"bad")
    [lease] = await mail.lease()
    await lease.release(failed=True)

    async def is_dead() -> bool:
        return (await dead.stats())["live"] == 1

    await eventually(is_dead)
    assert (await dead.redrive(to="mail").run()).moved == 1
    heard: list[tuple[int, int]] = []
    made = await m.backup(backups, progress=lambda done, of: heard.append((done, of)))
    assert heard[-1][0] == heard[-1][1] > 0
    assert made.path.parent == backups
    assert (await millrace.verify(backups)).rows > 0
    health = await m.health()
    assert (health.damaged, health.refuses) == ((), None)
    assert not await m.unfollow()
    assert await m.delete_queue("mail")
    assert "default" in await m.spaces()


@pytest.mark.parametrize("way", [by_open, by_share, by_connect])
def test_a_program_does_the_same_wherever_the_engine_is(tmp_path: Path, way: Way) -> None:
    async def main() -> None:
        async with way(tmp_path / "data") as m:
            await queues_and_leases(m)
            await topics_and_shards(m)
            await cursors_stages_and_transactions(m)
            await sessions_publishers_and_workers(m)
            await letters_and_care(m, tmp_path / "backups")

    run(main())
