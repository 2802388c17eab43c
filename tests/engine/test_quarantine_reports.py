"""Unreadable rows quarantine their own queue; engine, other queues, restarts and deletes go on."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from millrace.client.queue import Queue, engine_and_shard
from millrace.core.answers import Leased
from millrace.core.cells import Kind
from millrace.core.commands import (
    Command,
    EndQuarantine,
    LeaseMessages,
    Mend,
    Publish,
)
from millrace.core.model import ShardId
from millrace.core.state.view import number_key
from millrace.engine.command_request import CommandRequest
from millrace.errors import Quarantined
from millrace.node import Node
from millrace.store.row_location import UNREADABLE
from tests.engine.poison import ask, poison, publish_poison
from tests.engine.test_checkpointer import AMPLE, BODIES, Machine
from tests.engine.test_checkpointer_damage import file_of, settle_all, share_a_file


async def command(node: Node, shard: int, command: Command) -> object:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    node.commit_loop_of(ShardId(shard)).submit(CommandRequest(ShardId(shard), command, future))
    return await future


def shard_of(queue: Queue) -> int:
    return engine_and_shard(queue)[1]


async def check_refused(queue: Queue) -> None:
    """Check that the queue refuses reads and writes."""
    with pytest.raises(Quarantined):
        await queue.publish(b"more")
    with pytest.raises(Quarantined):
        await queue.lease()
    with pytest.raises(Quarantined):
        await queue.peek(10)
    with pytest.raises(Quarantined):
        async with queue.snapshot():
            pass


async def check_served(queue: Queue) -> None:
    """Check that all operations of the queue work."""
    before = len(await queue.peek(1000))
    await queue.publish(b"sound")
    assert len(await queue.peek(1000)) == before + 1
    await settle_all(queue)
    assert await queue.peek(10) == []


def is_quarantined(node: Node, shard: int) -> bool:
    return node.store.cell(ShardId(shard), Kind.QUARANTINE, b"") is not None


@pytest.mark.parametrize("reads", ["peek", "lease", "seal", "restart", "kill"])
def test_sec_01_an_unreadable_block_in_the_log_ends_no_engine(reads: str) -> None:
    machine = Machine(AMPLE)

    async def live() -> None:
        node, m = await machine.open()
        bad, good = await m.queue("bad"), await m.queue("good")
        await bad.publish(b"first")
        leases = await bad.lease()
        await publish_poison(node, bad)
        await good.publish(b"x")
        if reads == "peek":
            with pytest.raises(Quarantined):
                await bad.peek(10)
            assert is_quarantined(node, shard_of(bad)), "it is told once it is committed"
        elif reads == "lease":
            with pytest.raises(Quarantined):
                await bad.lease(10)
        elif reads == "seal":
            await node.checkpointer.seal_all()
        elif reads == "restart":
            await m.close()
            node, m = await machine.open()
            bad, good = await m.find("bad"), await m.find("good")
            await node.checkpointer.seal_all()
        else:
            return
        await asyncio.sleep(10)
        assert is_quarantined(node, shard_of(bad))
        await check_refused(bad)
        await check_served(good)
        if reads != "restart":
            await bad.settle(leases)
        await node.checkpointer.seal_all()
        assert machine.disk.names("quarantine"), "the bytes are kept"
        await m.close()

    machine.live(live())
    if reads == "kill":
        machine.disk = machine.disk.crash()

    async def live_again() -> None:
        node, m = await machine.open()
        await asyncio.sleep(10)
        bad, good = await m.find("bad"), await m.find("good")
        assert is_quarantined(node, shard_of(bad))
        await check_refused(bad)
        await check_served(good)
        generations = [live.generation for live in node.log.segments()]
        for body in BODIES * 3:
            await good.publish(body)
            await settle_all(good)
        await node.checkpointer.seal_all()
        assert node.log.segments()[0].generation > generations[0], "segments are recycled"
        await m.delete_queue("bad")
        again = await m.queue("bad")
        await check_served(again)
        await m.close()

    machine.live(live_again())


def test_a_flipped_bit_in_a_sealed_file_does_the_same() -> None:
    machine = Machine(AMPLE)
    a, _ = machine.live(share_a_file(machine))
    machine.disk.flip(*file_of(machine, a))

    async def live() -> None:
        node, m = await machine.open()
        bad, good = await m.find("a"), await m.find("b")
        await settle_all(good)
        await node.checkpointer.checkpoint()
        await asyncio.sleep(10)
        assert is_quarantined(node, a), "sealing has found it"
        await check_refused(bad)
        await check_served(good)
        await m.close()

    machine.live(live())

    async def purge() -> None:
        node, m = await machine.open()
        bad = await m.find("a")
        await check_refused(bad)
        await bad.purge()
        await check_served(bad)
        await node.checkpointer.checkpoint()
        await asyncio.sleep(10)
        await node.checkpointer.seal_all()
        assert node.store.damaged_files() == {}, "the file is gone with its rows"
        await m.close()

    machine.live(purge())


@pytest.mark.parametrize("finds", ["peek", "seal"])
def test_a_damaged_record_of_an_old_segment_closes_its_own_queue(finds: str) -> None:
    """The record lies before the start of the replay, so that the folder can be opened."""
    machine = Machine(AMPLE)

    async def write() -> tuple[str, int, int]:
        node, m = await machine.open()
        bad, good = await m.queue("bad"), await m.queue("good")
        await bad.publish(b"before")
        await good.publish(b"x" * 3000)
        await bad.publish(b"y" * 3000)
        await good.publish(b"z" * 3000)
        await bad.publish(b"after")
        found = node.store._layered.row_index.at(shard_of(bad), 2)
        assert found is not None
        hold = node.log.hold(found[1].home)
        assert hold is not None
        with hold:
            name = hold.segment().name
        await node.checkpointer.checkpoint()
        await m.close()
        return name, found[1].offset + 1000, shard_of(bad)

    name, offset, shard = machine.live(write())
    machine.disk.flip(name, offset)

    async def live() -> None:
        node, m = await machine.open()
        bad, good = await m.find("bad"), await m.find("good")
        if finds == "peek":
            with pytest.raises(Quarantined):
                await bad.peek(10)
        else:
            await node.checkpointer.seal_all()
            await asyncio.sleep(1)
        cells = [key for _, key, _ in node.store.cells(ShardId(shard), Kind.QUARANTINE)]
        assert cells == [b"", number_key(2)], "nothing but the row in that record"
        await check_refused(bad)
        assert [len(row.body or b"") for row in await good.peek(10)] == [3000, 3000]
        await check_served(good)
        assert await command(node, shard, Mend(((2, 2),))) == 1
        await command(node, shard, EndQuarantine())
        assert [row.body for row in await bad.peek(10)] == [b"before", b"after"]
        await m.close()

    machine.live(live())


def test_bytes_that_were_set_aside_survive_a_power_failure() -> None:
    machine = Machine(AMPLE)

    async def live() -> None:
        node, m = await machine.open()
        queue = await m.queue("q")
        await publish_poison(node, queue)
        await node.checkpointer.seal_all()
        await asyncio.sleep(1)

    machine.live(live())
    machine.disk = machine.disk.crash()

    async def live_again() -> None:
        node, m = await machine.open()
        queue = await m.find("q")
        assert is_quarantined(node, shard_of(queue))
        data = node.store.raw_bytes(ShardId(shard_of(queue)), 1)()
        assert data == b"".join(bytes(part) for part in poison().encode())
        await m.close()

    machine.live(live_again())


def test_all_shards_of_a_queue_are_closed() -> None:
    machine = Machine(AMPLE)

    async def live() -> None:
        node, m = await machine.open()
        queue = await m.queue("q", shards=3)
        for number in range(30):
            await queue.publish(b"x", key=b"%d" % number)
        leases = await queue.lease(5)
        shards = cast("tuple[int, ...]", queue._shards.ids)
        await publish_poison(node, queue, shards[1])
        await node.checkpointer.seal_all()
        await asyncio.sleep(1)
        assert all(is_quarantined(node, shard) for shard in shards)
        await check_refused(queue)
        await queue.settle(leases)
        await queue.purge()
        assert not any(is_quarantined(node, shard) for shard in shards)
        await queue.publish(b"again", key=b"k")
        [lease] = await queue.lease(5)
        await queue.settle([lease])
        await m.close()

    machine.live(live())


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("seals", [False, True])
def test_dropping_the_rows_opens_the_queue_again(*, keyed: bool, seals: bool) -> None:
    machine = Machine(AMPLE)

    async def live() -> None:
        node, m = await machine.open()
        queue = await m.queue("q", keyed=keyed)
        shard = shard_of(queue)
        await queue.publish(b"one", key=b"1" if keyed else None)
        await publish_poison(node, queue)
        await queue.publish(b"four", key=b"4" if keyed else None)
        if seals:
            await node.checkpointer.seal_all()
        with pytest.raises(Quarantined):
            await queue.peek(10)
        assert await command(node, shard, Mend(((2, 3),))) == 2
        assert await command(node, shard, EndQuarantine()) is True
        assert [row.body for row in await queue.peek(10)] == [b"one", b"four"]
        await settle_all(queue)
        meta = node.store.meta(ShardId(shard))
        assert meta is not None
        assert (meta.published, meta.live, meta.died[5]) == (4, 0, 2)
        await node.checkpointer.seal_all()
        await asyncio.sleep(5)
        places = list(node.store._layered.row_index.between(shard, 1, meta.last_seq))
        assert not [place for _, place in places if place.flags & UNREADABLE]
        await m.close()

    machine.live(live())


def test_a_topic_waits_for_a_quarantined_queue_and_serves_the_others() -> None:
    machine = Machine(AMPLE)

    async def live() -> None:
        node, m = await machine.open()
        topic = await m.topic("t")
        bad, good = await m.queue("bad"), await m.queue("good")
        await topic.subscribe("bad")
        await topic.subscribe("good")
        await publish_poison(node, bad)
        with pytest.raises(Quarantined):
            await bad.peek(10)
        for number in range(5):
            await topic.publish(b"%d" % number)
        await asyncio.sleep(5)
        assert len(await good.peek(10)) == 5
        await bad.purge()
        await asyncio.sleep(5)
        assert len(await bad.peek(10)) == 5, "nothing was lost meanwhile"
        await m.close()

    machine.live(live())


def test_unreadable_rows_of_a_topic_hold_up_nothing_once_they_are_dropped() -> None:
    machine = Machine(AMPLE)

    async def publish() -> int:
        node, m = await machine.open()
        topic = await m.topic("t")
        await m.queue("q", max_messages=1)
        await topic.subscribe("q")
        shard = topic._shard
        await topic.publish(b"1")
        await asyncio.sleep(1)
        await topic.publish(b"2")
        await ask(node, shard, Publish(poison()))
        await topic.publish(b"5")
        await m.close()
        return shard

    shard = machine.live(publish())

    async def live() -> None:
        node, m = await machine.open()
        topic, queue = await m.find_topic("t"), await m.find("q")
        other = await m.topic("other")
        await other.publish(b"y")
        await settle_all(queue)
        await asyncio.sleep(5)
        await settle_all(queue)
        await asyncio.sleep(5)
        assert is_quarantined(node, shard)
        with pytest.raises(Quarantined):
            await topic.publish(b"6")
        assert await command(node, shard, Mend(((3, 4),))) == 2
        await command(node, shard, EndQuarantine())
        await topic.publish(b"6")
        found: list[bytes] = []
        for _ in range(5):
            await asyncio.sleep(3)
            while leases := await queue.lease(1):
                found += [lease.body for lease in leases]
                await queue.settle(leases)
        assert found == [b"5", b"6"]
        await m.close()

    machine.live(live())


def test_dead_letters_wait_for_a_quarantined_queue() -> None:
    machine = Machine(AMPLE)

    async def live() -> None:
        node, m = await machine.open()
        letters = await m.queue("letters")
        queue = await m.queue("q", dead_letter="letters", max_failures=1)
        await publish_poison(node, letters)
        with pytest.raises(Quarantined):
            await letters.peek(1)
        await queue.publish(b"x")
        [lease] = await queue.lease()
        await lease.discard()
        await asyncio.sleep(5)
        await queue.publish(b"y")
        assert len(await queue.lease(5)) == 1
        await letters.purge()
        await asyncio.sleep(5)
        assert [row.body for row in await letters.peek(5)] == [b"x"]
        await m.close()

    machine.live(live())


def test_a_waiting_lease_is_told() -> None:
    machine = Machine(AMPLE)

    async def live() -> None:
        node, m = await machine.open()
        queue = await m.queue("q")
        await publish_poison(node, queue)
        taken = await command(node, shard_of(queue), LeaseMessages(10, 600_000))
        assert isinstance(taken, Leased)
        assert len(taken.seqs) == 2
        waits = asyncio.ensure_future(queue.lease(wait=60))
        await asyncio.sleep(1)
        assert not waits.done()
        with pytest.raises(Quarantined):
            await queue.peek(10)
        with pytest.raises(Quarantined):
            await asyncio.wait_for(waits, 5)
        await m.close()

    machine.live(live())
