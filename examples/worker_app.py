"""A worker program: a chain of two steps, dead letters, graceful shutdown on a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile

import millrace


async def cut(message: millrace.Lease, transaction: millrace.Transaction) -> None:
    """The first step: what it publishes and the end of its message are one."""
    for part in message.body.split(b", "):
        transaction.publish("parts", part)


def polish(message: millrace.Lease, transaction: millrace.Transaction) -> None:
    """The second step, in a thread: it may block."""
    if message.body == b"sand":
        raise ValueError("sand cannot be polished")
    transaction.publish("polished", message.body + b", polished")


def put_aside(
    message: millrace.Lease, error: BaseException, transaction: millrace.Transaction
) -> millrace.Verdict:
    """Decide about a message that has failed three times: move it to the queue `bad`."""
    transaction.publish("bad", message.body, headers={"error": str(error)})
    return millrace.Verdict.SETTLE


async def stop_when_all_is_done(m: millrace.Millrace) -> None:
    """In place of the person who presses Ctrl-C."""
    polished, bad = await m.queue("polished"), await m.queue("bad")
    while len(await polished.peek()) + len(await bad.peek()) < 5:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with millrace.open(folder) as m:
            stones, parts = await m.queue("stones"), await m.queue("parts")
            await m.queue("polished")
            await m.queue("bad")
            await stones.publish_many([b"granite, marble", b"slate, sand, basalt"])
            polishing = millrace.Worker(parts, polish, max_failures=3, on_poison=put_aside)
            async with millrace.Worker(stones, cut) as cutting:
                stopping = asyncio.create_task(stop_when_all_is_done(m))
                await polishing.run(signals=True)
                await stopping
            print(f"cut: {cutting.stats}")
            print(f"polished: {polishing.stats}")
            for row in await (await m.find("polished")).peek():
                print((row.body or b"").decode())
            for row in await (await m.find("bad")).peek():
                print(f"put aside: {(row.body or b'').decode()}, {dict(row.headers)}")


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s")
    asyncio.run(main())
