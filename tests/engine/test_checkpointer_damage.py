"""A damaged sealed file: reads of its rows are refused, and all other requests are served."""

from __future__ import annotations

import asyncio

import pytest

from millrace.client.queue import Queue, engine_and_shard
from millrace.core.commands import PublishStaged
from millrace.core.model import NewMessage, ShardId
from millrace.engine.command_request import CommandRequest
from millrace.errors import Quarantined
from millrace.store.sealed import FOLDER, file_number, read_footer
from tests.engine.test_checkpointer import AMPLE, BODIES, Machine


def file_of(machine: Machine, shard: int) -> tuple[str, int]:
    """Return the file with the shard's rows, and their offset in it."""
    for name in machine.disk.names(FOLDER):
        for line in read_footer(machine.disk, file_number(name) or 0):
            if line.shard == shard:
                return f"{FOLDER}/{name}", line.offset + line.length // 2
    raise AssertionError("they were not sealed")


async def share_a_file(machine: Machine, *, keyed: bool = False) -> tuple[int, int]:
    """Put rows of two queues in one file; return the shards of both."""
    node, m = await machine.open()
    shards: list[int] = []
    for name, count in (("a", 40), ("b", 60)):
        queue = await m.queue(name, keyed=keyed)
        shards.append(engine_and_shard(queue)[1])
        for number, body in enumerate(BODIES[:count]):
            await queue.publish(body, key=b"%d" % number if keyed else None)
    await node.checkpointer.seal_all()
    await m.close()
    a, b = shards
    assert file_of(machine, a)[0] == file_of(machine, b)[0]
    return a, b


async def settle_all(queue: Queue) -> None:
    while leases := await queue.lease(100):
        await queue.settle(leases)


def test_one_damaged_batch_does_not_end_the_engine() -> None:
    machine = Machine(AMPLE)
    a, _ = machine.live(share_a_file(machine))
    machine.disk.flip(*file_of(machine, a))

    async def live() -> None:
        node, m = await machine.open()
        damaged, sound = await m.find("a"), await m.find("b")
        await settle_all(sound)
        await node.checkpointer.checkpoint()
        await asyncio.sleep(10)
        assert len(node.store.damaged_files()) == 1, "the file is sparse, and was to be emptied"
        with pytest.raises(Quarantined):
            await damaged.peek(100)
        for body in BODIES:
            await sound.publish(body)
        # Sealing of other rows goes on.
        await node.checkpointer.seal_all()
        assert len(await sound.peek(1_000)) == len(BODIES)
        await m.close()

    machine.live(live())
    machine.live(live_again(machine))


async def live_again(machine: Machine) -> None:
    """Check the same after every open."""
    _, m = await machine.open()
    await asyncio.sleep(10)
    queue = await m.find("b")
    await queue.publish(b"after")
    await m.close()


def test_a_missing_file_does_not_end_the_engine() -> None:
    machine = Machine(AMPLE)
    a, _ = machine.live(share_a_file(machine, keyed=True))
    name, _ = file_of(machine, a)

    async def live() -> None:
        node, m = await machine.open()
        damaged, sound = await m.find("a"), await m.find("b")
        await settle_all(sound)
        machine.disk.remove(name)
        node.store._row_reader.files.close()
        with pytest.raises(Quarantined):
            await damaged.peek(100)
        await node.checkpointer.checkpoint()
        await asyncio.sleep(10)
        assert len(node.store.damaged_files()) == 1
        await sound.publish(b"after", key=b"after")
        await m.close()

    machine.live(live())


def test_what_cannot_be_decided_is_refused_alone() -> None:
    """The keys of a damaged stage are unknown; other queues are not affected."""
    machine = Machine(AMPLE)

    async def stage() -> int:
        node, m = await machine.open()
        queue = await m.queue("a", keyed=True)
        await m.queue("b")
        await queue.stage(
            "s", [NewMessage(body, b"%d" % at) for at, body in enumerate(BODIES[:10])]
        )
        await node.checkpointer.seal_all()
        await m.close()
        return engine_and_shard(queue)[1]

    async def publish(shard: int) -> None:
        node, m = await machine.open()
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        node.commit_loop_of(ShardId(shard)).submit(
            CommandRequest(ShardId(shard), PublishStaged(("s",), None), future)
        )
        with pytest.raises(Quarantined):
            await future
        await (await m.find("b")).publish(b"after")
        await m.close()

    shard = machine.live(stage())
    machine.disk.flip(*file_of(machine, shard))
    machine.live(publish(shard))
