"""`seal_all` begins a new segment first, so that the segment in use is sealed, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, real_ports
from millrace.settings import Settings

SMALL = Settings(segment_bytes=1 << 20, log_segments_max=12)


def test_all_rows_lie_in_files_and_are_read_from_there(tmp_path: Path) -> None:
    async def main() -> None:
        node = await Node.open(real_ports(tmp_path / "data"), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue = await m.queue("orders")
            bodies = [b"%06d" % n * 100 for n in range(100)]
            publishing = [queue.publish(body) for body in bodies]
            await asyncio.gather(*publishing, node.checkpointer.seal_all())
            before = node.log.segments()[-1].generation
            await node.checkpointer.seal_all()
            assert node.store.needed_from() >= before
            files = (tmp_path / "data" / "sealed").iterdir()
            assert sum(file.stat().st_size for file in files) > 60_000
            # The log goes on in a new generation.
            await queue.publish(b"later")
            rows = await queue.peek(200)
            assert sorted(row.body or b"" for row in rows) == sorted([*bodies, b"later"])

    asyncio.run(asyncio.wait_for(main(), 60))
