"""Workers: leases that are extended during the work, and a message that fails twice."""

from __future__ import annotations

import asyncio
import tempfile

import millrace


async def carve(lease: millrace.Lease) -> None:
    if lease.body == b"marble" and lease.failures < 2:
        raise ValueError("the chisel slipped")


async def worker(name: str, queue: millrace.Queue) -> None:
    # The loop ends when nothing came for a while; without `idle` it would go on for ever.
    async for lease in queue.work(batch=2, seconds=30, idle=0.2):
        try:
            # Settled if the body ends well; released, and counted as a failure, if it raises.
            async with lease:
                await carve(lease)
        except ValueError as error:
            print(f"{name}: {lease.body.decode()}: {error}, delivery {lease.deliveries}")
        else:
            print(f"{name}: {lease.body.decode()} is done, delivery {lease.deliveries}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with millrace.open(folder) as m:
            stones = await m.queue("stones")
            await stones.publish_many([b"granite", b"marble", b"slate", b"basalt"])
            await asyncio.gather(worker("Ann", stones), worker("Ben", stones))
            print(f"{(await stones.stats())['settled']} stones are done")


if __name__ == "__main__":
    asyncio.run(main())
