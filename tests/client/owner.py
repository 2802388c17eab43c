"""Opens a folder, reports it, and keeps it open until its input ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.client.harness import opened


async def main(path: Path) -> None:
    async with opened(path) as m:
        queue = await m.queue("orders")
        await queue.publish(b"from the owner")
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
