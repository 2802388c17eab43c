"""Size estimates of commands, by which they are truncated, refused and stalled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyroaring import BitMap64

from millrace.client.settings import QueueSettings
from millrace.core.cells import Kind
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Extend,
    LeaseMessages,
    Publish,
    Release,
    Settle,
    Stage,
)
from millrace.core.format.block import Block
from millrace.core.model import LeaseId, NewMessage, ShardId
from millrace.engine.command_request import CommandRequest
from tests.client.harness import opened, run

SHARD = ShardId(1)
HEADED = tuple(
    NewMessage(b"body", b"key", (("name", b"v" * 10_000), ("other", b"w" * 10_000)))
    for _ in range(100)
)


def size_of(command: Command) -> int:
    loop = asyncio.new_event_loop()
    try:
        return CommandRequest(SHARD, command, loop.create_future()).size
    finally:
        loop.close()


def test_messages_weigh_the_same_within_a_transaction() -> None:
    alone = size_of(Publish(HEADED))
    assert alone >= Block.of_messages(HEADED).size() * 0.9
    assert size_of(ApplyTransaction(((SHARD, Publish(HEADED)),))) == alone
    assert size_of(ApplyTransaction(((SHARD, Publish(HEADED)),) * 3)) == 3 * alone


def test_blocks_weigh_what_they_are() -> None:
    block = Block.of_messages(HEADED)
    for command in (Publish(block), Stage("s", block)):
        assert size_of(command) == block.size()
    assert size_of(ApplyTransaction(((SHARD, Publish(block)),))) == block.size()


@pytest.mark.parametrize("count", [1, 10_000])
def test_leases_weigh_by_their_messages(count: int) -> None:
    seqs = BitMap64(range(1, count + 1))
    for command in (
        LeaseMessages(count, 1_000),
        Settle(LeaseId(1), seqs, b""),
        Release(LeaseId(1), seqs, b""),
        Extend(LeaseId(1), seqs, b"", 1_000),
    ):
        assert size_of(command) >= 12 * count


@pytest.mark.parametrize(
    "settings",
    [
        QueueSettings(),
        QueueSettings(order="group"),
        QueueSettings(order="fair"),
        QueueSettings(delivery="partitions"),
    ],
)
def test_the_cells_of_groups_and_ids_are_counted(tmp_path: Path, settings: QueueSettings) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders", **settings)
            await queue.publish(b"so that its settings are known")
            shard = queue.shards.first
            node = m._engine._node  # type: ignore[attr-defined]
            has_keys = "delivery" not in settings
            rows = tuple(NewMessage(b"x", b"%d" % n if has_keys else None) for n in range(1000))
            future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            request = CommandRequest(shard, Publish(rows), future)
            bare = request.size
            node.commit_loop_of(shard).submit(request)
            await future
            kinds = (Kind.TURN, Kind.GROUP, Kind.RING, Kind.ID)
            cells = sum(
                len(key) + len(value)
                for kind in kinds
                for _, key, value in node.store.cells(shard, kind)
            )
            assert bare + cells <= request.size <= bare + 3 * cells

    run(main())
