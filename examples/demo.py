"""A short tour: publish, lease, settle, follow two snapshots of a keyed queue, and serve it.

`make run` runs it. It works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

import millrace

SEGMENT_BYTES = 16 * 1024 * 1024


def say(text: str = "") -> None:
    print(text)


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


async def publish(orders: millrace.Queue) -> None:
    title("Publish: an answer means that it is on disk")
    seq = await orders.publish(b"two pounds of nails", key="order-1", producer="till-4", number=1)
    say(f"  order-1 is message {seq}")
    again = await orders.publish(b"two pounds of nails", key="order-1", producer="till-4", number=1)
    say(f"  the same number of the same producer again: still message {again}, nothing was doubled")
    seqs = await orders.publish_many(
        [
            millrace.Message(b"one hammer", key="order-2"),
            millrace.Message(b"a keg of paint", key="order-3", headers={"colour": "red"}),
        ]
    )
    say(f"  two more, all or nothing: messages {seqs[0]} to {seqs[-1]}")


async def follow(cursor: millrace.Cursor, which: str) -> None:
    snapshot = await cursor.next()
    if snapshot is None:
        say("  nothing new")
        return
    say(f"  {which}: what lies after {snapshot.after}, up to the boundary {snapshot.boundary}")
    for row in snapshot.arrow().read_all().to_pylist():
        value = "deleted" if row["value"] is None else row["value"].decode()
        say(f"    {row['seq']:>3}  {row['key'].decode():<8}  {value}")
    await snapshot.commit()


async def change(orders: millrace.Queue) -> None:
    title("Meanwhile a revision and a delete: a keyed queue keeps the newest of each key")
    await orders.publish(b"two hammers", key="order-2")
    await orders.publish(None, key="order-3")
    say("  order-2 is now two hammers, order-3 was cancelled")


async def work(m: millrace.Millrace, orders: millrace.Queue) -> None:
    title("Work: a lease is exclusive, settling is final")
    shipped = await m.queue("shipped")
    async for lease in orders.work(idle=0):
        say(f"  {lease.key!r}: {lease.body.decode()}")
        # The order is settled and its shipment published at once, or neither is.
        async with m.transaction() as t:
            t.settle(lease)
            t.publish(shipped, b"shipped: " + lease.body, key=lease.key)
    say(f"  {(await orders.stats())['settled']} settled, {len(await shipped.peek())} shipped")


async def measure(m: millrace.Millrace) -> None:
    title("Speed, roughly")
    queue = await m.queue("speed")
    bodies = [bytes(1000)] * 1000

    async def publisher() -> None:
        for _ in range(10):
            await queue.publish_many(bodies)

    began = time.perf_counter()
    await asyncio.gather(*(publisher() for _ in range(4)))
    say(f"  published {40_000 / (time.perf_counter() - began):>10,.0f} messages of 1 KB a second")
    began = time.perf_counter()
    async with queue.snapshot() as snapshot:
        table = snapshot.arrow().read_all()
    say(f"  read      {table.num_rows / (time.perf_counter() - began):>10,.0f} of them a second")


async def serve(folder: str) -> None:
    title("Serve the folder: the same objects from another process, and REST")
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millrace.cli", "serve", "--json"),
        *("--data", folder, "--listen", "127.0.0.1:0"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "MILLRACE_ENGINE_SEGMENT_BYTES": str(SEGMENT_BYTES)},
    )
    assert server.stdout is not None
    try:
        told = json.loads(await server.stdout.readline())
        token = (await asyncio.to_thread(Path(told["token_file"]).read_text)).strip()
        async with millrace.connect(told["address"], token=token) as m:
            shipped = await m.find("shipped")
            for lease in await shipped.lease(10):
                say(f"  {lease.body.decode()}")
                await lease.settle()
        path = "/v1/spaces/default/queues/shipped"
        request = Request(told["address"] + path, headers={"authorization": f"Bearer {token}"})
        answer = await asyncio.to_thread(lambda: urlopen(request).read())
        say(f"  GET {path}: {json.loads(answer)['stats']['settled']} settled")
    finally:
        server.terminate()
        await server.wait()


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        settings = millrace.Settings(segment_bytes=SEGMENT_BYTES)
        async with millrace.open(folder, settings=settings) as m:
            orders = await m.queue("orders", keyed=True)
            report = await orders.cursor("report")
            await publish(orders)
            title("Follow: one consistent snapshot after another")
            await follow(report, "the first snapshot")
            await change(orders)
            title("Follow on: only what is new")
            await follow(report, "the second snapshot")
            await work(m, orders)
            await measure(m)
        title("Close and open again: everything is there")
        async with millrace.open(folder, settings=settings) as m:
            for name in await m.queues():
                stats = await (await m.find(name)).stats()
                say(f"  {name:<8} {stats['published']:>6} published, {stats['live']:>6} live")
        await serve(folder)


if __name__ == "__main__":
    asyncio.run(main())
