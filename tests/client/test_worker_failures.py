"""Workers and failures: retry delays, limits, dead letters."""

from __future__ import annotations

import asyncio

from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.transaction import Transaction
from millrace.client.worker import Verdict, Worker, WorkerStats
from tests.client.harness import embedded, eventually


async def fail(message: Lease) -> None:
    raise ValueError("never")


async def arrived(queue: Queue, count: int) -> bool:
    return (await queue.stats())["published"] == count


@embedded
async def test_what_waited_ahead_was_not_handed_out(m: Millrace) -> None:
    """However often workers restart, prefetched messages do not count a delivery."""
    queue = await m.queue("orders", max_deliveries=1)
    await queue.publish_many([b"first", b"ahead"])
    for seq in (1, 2):
        began = asyncio.Event()

        async def handle(message: Lease, began: asyncio.Event = began, seq: int = seq) -> None:
            assert (message.seq, message.deliveries) == (seq, 1)
            began.set()

        async with Worker(queue, handle, concurrency=1, prefetch=1) as worker:
            await began.wait()
            worker.stop()
        assert (await queue.explain(2)).state in (
            "returned",
            "ready",
            "settled" if seq == 2 else "",
        )
    assert (await queue.stats())["settled"] == 2


@embedded
async def test_poison_is_discarded(m: Millrace) -> None:
    dead = await m.queue("dead")
    queue = await m.queue("orders", dead_letter="dead")
    await queue.publish_many([b"a", b"b"])

    def judge(message: Lease, error: BaseException) -> Verdict:
        return Verdict.DISCARD

    worker = Worker(queue, fail, max_failures=2, on_poison=judge, idle=0)
    await worker.run()
    assert worker.stats == WorkerStats(failed=4)
    await eventually(lambda: arrived(dead, 2))
    assert {row.body for row in await dead.peek()} == {b"a", b"b"}


@embedded
async def test_a_discard_and_its_transaction_are_one(m: Millrace) -> None:
    dead, notes = await m.queue("dead"), await m.queue("notes")
    queue = await m.queue("orders", dead_letter="dead")
    await queue.publish(b"a")

    def judge(message: Lease, error: BaseException, transaction: Transaction) -> Verdict:
        transaction.publish("notes" if message.failures else "nowhere", message.body)
        return Verdict.DISCARD

    worker = Worker(queue, fail, max_failures=1, on_poison=judge, idle=0)
    await worker.run()
    # The first time there was no such queue, so that it was only released.
    assert worker.stats == WorkerStats(failed=2)
    await eventually(lambda: arrived(dead, 1))
    assert [row.body for row in await notes.peek()] == [b"a"]


@embedded
async def test_the_queue_says_when_a_failure_is_the_last(m: Millrace) -> None:
    dead = await m.queue("dead")
    queue = await m.queue("orders", max_failures=3, dead_letter="dead")
    await queue.publish(b"a")
    worker = Worker(queue, fail, idle=0)
    await worker.run()
    assert worker.stats == WorkerStats(failed=3)
    await eventually(lambda: arrived(dead, 1))
