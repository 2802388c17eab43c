"""How large a request is taken to be: what it is cut, refused and stalled by."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap64

from millrace.core.block import Block
from millrace.core.commands import (
    Command,
    Extend,
    Lease,
    Publish,
    Release,
    Settle,
    Stage,
    Transaction,
)
from millrace.core.model import LeaseId, Message, ShardId
from millrace.shard.request import Request

SHARD = ShardId(1)
HEADED = tuple(
    Message(b"body", b"key", (("name", b"v" * 10_000), ("other", b"w" * 10_000)))
    for _ in range(100)
)


def size_of(command: Command) -> int:
    loop = asyncio.new_event_loop()
    try:
        return Request(SHARD, command, loop.create_future()).size
    finally:
        loop.close()


def test_messages_weigh_the_same_within_a_transaction() -> None:
    alone = size_of(Publish(HEADED))
    assert alone >= Block.of_messages(HEADED).size() * 0.9
    assert size_of(Transaction(((SHARD, Publish(HEADED)),))) == alone
    assert size_of(Transaction(((SHARD, Publish(HEADED)),) * 3)) == 3 * alone


def test_blocks_weigh_what_they_are() -> None:
    block = Block.of_messages(HEADED)
    for command in (Publish(block), Stage("s", block)):
        assert size_of(command) == block.size()
    assert size_of(Transaction(((SHARD, Publish(block)),))) == block.size()


@pytest.mark.parametrize("count", [1, 10_000])
def test_leases_weigh_by_their_messages(count: int) -> None:
    seqs = BitMap64(range(1, count + 1))
    for command in (
        Lease(count, 1_000),
        Settle(LeaseId(1), seqs, b""),
        Release(LeaseId(1), seqs, b""),
        Extend(LeaseId(1), seqs, b"", 1_000),
    ):
        assert size_of(command) >= 12 * count
