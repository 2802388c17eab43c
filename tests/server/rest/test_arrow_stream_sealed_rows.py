"""Rows that lie in sealed files, sent as they lie there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from millrace import Millrace, Settings
from millrace.client.embedded import EmbeddedEngine
from millrace.client.message import Message
from millrace.client.queue import engine_and_shards
from millrace.core.state.fold import Reader
from millrace.node import Node, real_ports
from tests.server.rest.harness import served
from tests.server.rest.test_snapshots import ARROW, table

ROWS = "/v1/spaces/default/queues/orders/rows"
BODIES = [b"%04d" % at * 500 for at in range(2000)]


async def fill(folder: Path, compressed: str) -> None:
    """Sealed: batches with all of their rows, one with a row that was settled, and a stage."""
    node = await Node.open(real_ports(folder), Settings())
    async with Millrace(EmbeddedEngine(node)) as millrace:
        queue = await millrace.queue("orders", compressed=compressed)
        await queue.publish_many(BODIES[:500])
        await queue.publish_many(
            [Message(body, key=b"k", headers={"a": "b"}) for body in BODIES[500:1000]]
        )
        await queue.stage("later", BODIES[1000:1500])
        await queue.publish_staged(["later"])
        await queue.publish_many(BODIES[1500:])
        await node.checkpointer.checkpoint()
        await node.checkpointer.seal_all()
        [lease] = await queue.lease(1)
        await lease.settle()


@pytest.mark.parametrize("compressed", ["none", "lz4"])
def test_what_lies_in_files_is_sent_as_it_lies_there(tmp_path: Path, compressed: str) -> None:
    async def main() -> None:
        await fill(tmp_path, compressed)
        async with served(tmp_path) as server:
            queue = await server.millrace.find("orders")
            engine, shards = engine_and_shards(queue)
            batches = engine.packed(shards.ids[0], 0, 2000, Reader(), least=100_000)
            kinds = [type(one) async for one in batches]
            assert pa.RecordBatch in kinds
            assert (pa.Buffer in kinds) == (compressed == "none")
            for after, upto in ((0, 2000), (1, 2000), (7, 1234), (500, 1500), (1999, 2000)):
                address = f"{ROWS}?after={after}&upto={upto}"
                found = table(await server.ask("GET", address, headers={"accept": ARROW}))
                first = max(after, 1)
                assert found.column("seq").to_pylist() == list(range(first + 1, upto + 1))
                assert found.column("value").to_pylist() == BODIES[first:upto]
                found.validate(full=True)
            whole = table(await server.ask("GET", ROWS, headers={"accept": ARROW}))
            keys = whole.column("key").to_pylist()
            assert (keys[498], keys[499], keys[-1]) == (None, b"k", None)

    asyncio.run(main())
