"""The topic forwarder: a queue that refuses messages does not delay the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millrace import errors, limits
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.topic import Subscription, Topic
from millrace.core.cells import Kind
from millrace.core.changes import Batch
from millrace.core.state.view import View
from millrace.errors import Fatal
from millrace.node import Node
from tests.simulation.harness import SETTINGS, Bench

SMALL = SETTINGS
LARGE = replace(SETTINGS, segment_bytes=4 * 1024 * 1024)

ROWS = [b"first", bytes(500_000), b"last"]


async def bodies(m: Millrace, name: str) -> list[bytes | None]:
    return [row.body for row in await (await m.find(name)).peek(10_000)]


async def states(topic: Topic) -> dict[str, Subscription]:
    return {one.name: one for one in await topic.subscriptions()}


async def publish(m: Millrace, _: Node) -> None:
    """Publish three messages, one of which needs a large record; nothing is forwarded yet."""
    topic = await m.topic("orders")
    for name in ("all", "small"):
        await m.queue(name)
    await topic.subscribe("all")
    await topic.subscribe("small", filter={"large": {"exists": False}})
    rows = [Message(row, headers={"large": "x"} if len(row) > 100 else {}) for row in ROWS]
    await topic.publish_many(rows)


def stuck() -> Bench:
    """A topic with a message that exceeds every record of the log."""
    bench = Bench(LARGE)
    bench.live(publish, close=False)
    bench.settings = SMALL
    return bench


def test_what_cannot_be_forwarded_keeps_no_other_queue_waiting() -> None:
    async def look(m: Millrace, _: Node) -> None:
        topic = await m.find_topic("orders")
        await asyncio.sleep(3)
        found = await states(topic)
        assert await bodies(m, "small") == [b"first", b"last"]
        assert await bodies(m, "all") == [b"first"]
        assert (found["small"].lag, found["small"].trouble) == (0, "")
        assert found["all"].lag == 2
        assert "record" in found["all"].trouble
        before = found["all"].lag_seconds
        await asyncio.sleep(3)
        assert (await states(topic))["all"].lag_seconds >= before + 3 > 3
        # Later messages reach the other queues at once, and not with the next attempt.
        for number in range(10):
            await topic.publish(b"later")
            await asyncio.sleep(0.02)
            assert len(await bodies(m, "small")) == 3 + number
        assert (await topic.describe()).lag == 12

    async def mend(m: Millrace, _: Node) -> None:
        topic = await m.find_topic("orders")
        await asyncio.sleep(3)
        assert await bodies(m, "all") == [*ROWS, *[b"later"] * 10]
        assert (await states(topic))["all"].trouble == ""
        assert (await topic.describe()).lag == 0

    bench = stuck()
    bench.live(look)
    bench.settings = LARGE
    bench.live(mend)
    assert not bench.failures


def test_a_topic_refuses_more_than_may_wait_and_names_the_slowest() -> None:
    async def look(m: Millrace, _: Node) -> None:
        topic = await m.find_topic("orders")
        await topic.configure(max_lag=2)
        await asyncio.sleep(3)
        with pytest.raises(errors.Full, match="'all' to default/all") as refused:
            await topic.publish(b"more")
        assert (refused.value.field, refused.value.limit) == ("max_lag", 2)
        await topic.unsubscribe("all")
        assert (await topic.publish(b"more", until_arrived=True)).queues == {"small": 3}

    bench = stuck()
    bench.live(look)
    assert not bench.failures


@pytest.mark.parametrize("how", ["unsubscribe", "delete queue", "delete topic", "close", "fail"])
def test_who_waits_hears_of_the_end(how: str) -> None:
    async def look(m: Millrace, node: Node) -> object:
        topic = await m.find_topic("orders")
        await asyncio.sleep(3)
        waiting = asyncio.create_task(topic.publish(b"x", until_arrived=True))
        await asyncio.sleep(3)
        assert not waiting.done()
        match how:
            case "unsubscribe":
                await topic.unsubscribe("all")
            case "delete queue":
                await m.delete_queue("all")
            case "delete topic":
                await topic.delete()
            case "close":
                await m.close()
            case _:
                node.commit_loop_of(await shard_of(m)).fail(Fatal("broken"))
                with pytest.raises(Fatal, match="broken"):
                    await waiting
                with pytest.raises(Fatal, match="broken"):
                    await node.forwarder.arrived(await shard_of(m), 1, 1)
                return "fail"
        return (await waiting).queues

    bench = stuck()
    told = bench.live(look, close=how != "fail")
    fate = "later" if how == "close" else "gone"
    assert told == ("fail" if how == "fail" else {"all": fate, "small": 3})
    assert not bench.failures


async def shard_of(m: Millrace):  # type: ignore[no-untyped-def]
    return await m._engine.find_topic("default", "orders")


def test_a_subscription_that_fell_behind_reads_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cached: every row is read from the store, also for filters."""
    monkeypatch.setattr(limits, "FORWARD_MEMORY_BYTES_MAX", 0)

    async def main(m: Millrace, node: Node) -> None:
        topic = await m.topic("orders")
        for name in ("all", "even", "keyed"):
            await m.queue(name, keyed=name == "keyed")
        await topic.subscribe("all")
        await topic.subscribe("even", filter={"even": "yes"})
        await topic.subscribe("keyed")
        for number in range(40):
            headers = {"even": "yes"} if number % 2 == 0 else {}
            await topic.publish(b"%d" % number + bytes(3000), key=f"k{number}", headers=headers)
            if number == 20:
                await node.checkpointer.checkpoint()
                await node.checkpointer.seal_all()
        await asyncio.sleep(3)
        whole = [b"%d" % number + bytes(3000) for number in range(40)]
        assert await bodies(m, "all") == whole
        assert await bodies(m, "keyed") == whole
        assert await bodies(m, "even") == whole[::2]

    bench = Bench()
    bench.live(main)
    assert not bench.failures


class Served:
    """A listener that counts the subscriptions which each batch of a topic has served."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_commit(self, view: View, batch: Batch | None) -> None:
        if view.topic is not None and batch is not None:
            kinds = [kind for kind, _, _ in batch.changes.cells]
            self.counts.append(kinds.count(Kind.SUBSCRIPTION))

    def on_failure(self, error: Fatal) -> None:
        raise error


def test_many_subscriptions_are_served_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch touches the queues of more of them than its limit says."""
    monkeypatch.setattr(limits, "FORWARD_PARCELS_MAX", 4)

    async def main(m: Millrace, node: Node) -> list[int]:
        topic = await m.topic("orders")
        names = [f"q{at}" for at in range(10)]
        for name in names:
            await topic.subscribe(await m.queue(name))
        served = Served()
        node.commit_loop_of(await shard_of(m)).add_listener(served)
        published = await topic.publish_many([b"one", b"two"], until_arrived=True)
        assert published.queues == {name: [1, 2] for name in names}
        for name in names:
            assert await bodies(m, name) == [b"one", b"two"]
        return served.counts

    bench = Bench()
    assert bench.live(main) == [0, 4, 4, 2]
    assert not bench.failures


def test_a_full_queue_holds_up_its_own_subscription_alone() -> None:
    async def fill(m: Millrace, _: Node) -> None:
        topic = await m.topic("orders")
        await m.queue("all")
        await m.queue("few", max_messages=3)
        await topic.subscribe("all")
        await topic.subscribe("few")
        await topic.publish_many([b"%d" % at for at in range(8)])
        await asyncio.sleep(3)
        assert len(await bodies(m, "all")) == 8
        assert await bodies(m, "few") == [b"0", b"1", b"2"], "as many as there is room for"
        found = await states(topic)
        assert (found["few"].lag, found["all"].lag) == (5, 0)
        assert "holds its 3 messages" in found["few"].trouble
        await topic.publish(b"8")
        await asyncio.sleep(0.02)
        assert len(await bodies(m, "all")) == 9

    async def catch_up(m: Millrace, _: Node) -> None:
        topic, few = await m.find_topic("orders"), await m.find("few")
        got: list[bytes] = []
        for _times in range(5):
            await asyncio.sleep(3)
            leases = await few.lease(10)
            assert len(leases) <= 3
            got += [lease.body for lease in leases]
            await few.settle(leases)
        assert got == [b"%d" % at for at in range(9)]
        assert ((await states(topic))["few"].lag, (await states(topic))["few"].trouble) == (0, "")

    bench = Bench(SMALL)
    bench.live(fill, close=False)
    bench.live(catch_up)
    assert not bench.failures
