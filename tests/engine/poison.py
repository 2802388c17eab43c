"""Blocks that pass every check at the front, and that nobody can read afterwards."""

from __future__ import annotations

import asyncio
import struct

from millrace.client.queue import Queue, engine_and_shard
from millrace.core.commands import Publish, Stage
from millrace.core.format.block import Block
from millrace.core.format.column import Column
from millrace.core.model import ShardId
from millrace.engine.command_request import CommandRequest
from millrace.node import Node


def poison(size: int = 3000) -> Block:
    """Build a block of two rows with decreasing offsets; the record that holds it is intact."""
    offsets = struct.pack("<3i", 0, size, size - 1)
    return Block(2, Column(offsets, memoryview(bytes(size))))


async def ask(node: Node, shard: int, command: Publish | Stage) -> object:
    """Submit a command that no client would send."""
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    node.commit_loop_of(ShardId(shard)).submit(CommandRequest(ShardId(shard), command, future))
    return await future


async def publish_poison(node: Node, queue: Queue, shard: int | None = None) -> None:
    """Publish two unreadable rows to the queue."""
    await ask(node, engine_and_shard(queue)[1] if shard is None else shard, Publish(poison()))
