"""Opens a folder, shares it, reports it, and keeps it open until its input ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import millrace
from tests.client.harness import SMALL


async def main(path: Path) -> None:
    async with millrace.open(path, settings=SMALL) as m, millrace.share(m):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
