"""An exactly-once chain of workers: one transaction settles the input and publishes the output."""

from __future__ import annotations

import asyncio
import tempfile

import millrace


async def square(m: millrace.Millrace, numbers: millrace.Queue, squares: millrace.Queue) -> None:
    async for lease in numbers.work(idle=0):
        # If the program ends before the transaction does, the number is leased again and nothing
        # was published; if it ends after, the square is there and the number is gone. An error in
        # here gives the number back at once, as failed: that is what the context of the lease does.
        async with lease, m.transaction() as t:
            t.settle(lease)
            t.publish(squares, str(int(lease.body) ** 2).encode(), key=lease.body)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with millrace.open(folder) as m:
            numbers, squares = await m.queue("numbers"), await m.queue("squares")
            await numbers.publish_many([str(number).encode() for number in range(1, 6)])
            await square(m, numbers, squares)
            for row in await squares.peek():
                print(f"{(row.key or b'').decode()} squared is {(row.body or b'').decode()}")

            # A lease that is no longer this worker's: nothing of the transaction is done.
            await numbers.publish(b"6")
            lost = (await numbers.lease())[0]
            await lost.release()
            await numbers.lease()
            try:
                async with m.transaction() as t:
                    t.settle(lost)
                    t.publish(squares, b"36")
            except millrace.Refused as error:
                print(f"refused: {error}; there are still {len(await squares.peek())} squares")


if __name__ == "__main__":
    asyncio.run(main())
