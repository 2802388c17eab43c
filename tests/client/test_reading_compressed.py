"""Messages of a compressed queue, in the log and in sealed files, are read like any others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.maintenance.watermarks import memory_used
from millrace.node import Node, real_ports
from millrace.settings import Settings
from tests.client.harness import run

SETTINGS = Settings(segment_bytes=1024 * 1024, log_segments_unsealed=0)
BODIES = [b"%05d " % at * 50 for at in range(2_000)]


async def read(queue: Queue) -> None:
    """Check that workers and followers get every message unchanged."""
    assert [row.body for row in await queue.peek(3_000)] == BODIES
    async with queue.snapshot() as snapshot:
        table = await asyncio.to_thread(lambda: snapshot.arrow().read_all())
    assert table.column("value").to_pylist() == BODIES
    leases = await queue.lease(500)
    assert [lease.body for lease in leases] == BODIES[:500]
    await queue.release(leases)
    row = await queue.get(1_234)
    assert row is not None
    assert row.body == BODIES[1_233]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_it_is_read_from_the_log_after_a_start_and_sealed(tmp_path: Path, codec: str) -> None:
    async def main() -> None:
        for life in range(3):
            node = await Node.open(real_ports(tmp_path / "data"), SETTINGS)
            async with Millrace(EmbeddedEngine(node)) as m:
                queue = await m.queue("log", retention="log", compressed=codec)
                if not life:
                    before = node.log.mark()
                    await queue.publish_many(BODIES)
                    after = node.log.mark()
                    assert after.generation == before.generation
                    assert after.offset - before.offset < sum(map(len, BODIES)) // 3
                await read(queue)
                if life == 1:
                    await node.checkpointer.checkpoint()
                    while await node.checkpointer.reclaim():
                        pass
                    await read(queue)

    run(main())


def test_what_is_short_in_the_log_takes_no_memory(tmp_path: Path) -> None:
    """Small blocks stay compressed in memory, too, not just in the log."""

    async def main() -> None:
        node = await Node.open(real_ports(tmp_path / "data"), SETTINGS)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue = await m.queue("log", retention="log", compressed="zstd")
            before = memory_used()
            for _ in range(200):
                await queue.publish(bytes(900_000))
            assert memory_used() - before < 90_000_000

    run(main())
