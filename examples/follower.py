"""A follower that keeps a table of the newest prices, and survives being stopped at any point.

Table and cursor are committed together: here the table is a file that is replaced whole, and holds
the boundary that it reflects, so that it never matters where the follower was stopped.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import millrace


def load(path: Path) -> tuple[int, dict[str, str]]:
    if not path.exists():
        return 0, {}
    found = json.loads(path.read_text())
    return found["boundary"], found["prices"]


def save(path: Path, boundary: int, prices: dict[str, str]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"boundary": boundary, "prices": prices}))
    new.replace(path)


async def follow(queue: millrace.Queue, path: Path) -> None:
    boundary, prices = load(path)
    cursor = await queue.cursor("prices")
    while (snapshot := await cursor.next()) is not None:
        # After a crash between `save` and `commit`, the same rows come again.
        async for row in snapshot.rows():
            key = (row.key or b"").decode()
            if row.seq <= boundary:
                continue
            if row.body is None:
                prices.pop(key, None)
            else:
                prices[key] = row.body.decode()
        save(path, snapshot.boundary, prices)
        await snapshot.commit()
        print(f"up to {snapshot.boundary}: {prices}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prices.json"
        async with millrace.open(Path(folder) / "data") as m:
            queue = await m.queue("prices", keyed=True)
            await queue.publish_many(
                [millrace.Message(b"5", "nails"), millrace.Message(b"20", "hammer")]
            )
            await follow(queue, path)
            await queue.publish(b"6", key="nails")
            await queue.publish(None, key="hammer")
        async with millrace.open(Path(folder) / "data") as m:
            await follow(await m.find("prices"), path)


if __name__ == "__main__":
    asyncio.run(main())
