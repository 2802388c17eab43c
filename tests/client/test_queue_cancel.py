"""A cancelled call loses no message that was leased, and disturbs no other call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import pytest

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace, engine_of
from tests.client.harness import embedded, eventually

T = TypeVar("T")


async def cancel(task: asyncio.Task[T]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@embedded
async def test_a_waiting_lease_that_is_cancelled_takes_nothing(m: Millrace) -> None:
    queue = await m.queue("orders")
    waiting = asyncio.create_task(queue.lease(wait=30))
    await queue.explain(1)
    await cancel(waiting)
    await queue.publish(b"x")
    lease = (await queue.lease())[0]
    assert lease.deliveries == 1


@embedded
async def test_a_lease_that_was_not_decided_never_is(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    task = asyncio.create_task(queue.lease())
    await asyncio.sleep(0)
    await cancel(task)
    assert (await queue.explain(1)).state == "ready"


@pytest.mark.parametrize("turns", range(1, 12))
def test_a_lease_is_given_back_whenever_it_is_cancelled(tmp_path: Path, turns: int) -> None:
    """After each turn of the event loop the call may wait at another place."""

    @embedded
    async def at(m: Millrace) -> None:
        queue = await m.queue("orders")
        await queue.publish(b"x")
        task = asyncio.create_task(queue.lease(seconds=3600))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            found = await task
        except asyncio.CancelledError:
            found = []

        async def ready() -> bool:
            return (await queue.explain(1)).state in ("ready", "returned")

        if not found:
            await eventually(ready)
            found = await queue.lease()
        assert [lease.body for lease in found] == [b"x"]
        await found[0].settle()

    at(tmp_path)


@embedded
async def test_an_answer_that_was_not_seen_any_more_is_undone(m: Millrace) -> None:
    """One commit answers both calls; the first cancels the second, whose answer has arrived."""
    queue = await m.queue("orders")
    await queue.publish(b"x")

    async def publish_and_cancel() -> None:
        await queue.publish(b"y")
        leasing.cancel()

    publishing = asyncio.create_task(publish_and_cancel())
    leasing = asyncio.create_task(queue.lease(seconds=3600))
    await publishing
    with pytest.raises(asyncio.CancelledError):
        await leasing

    async def returned() -> bool:
        return (await queue.explain(1)).state == "returned"

    await eventually(returned)
    leases = await queue.lease(2)
    assert [lease.deliveries for lease in leases] == [1, 1], "nobody has seen it"
    assert leases[0].version == 2


@embedded
async def test_a_snapshot_that_nobody_heard_of_is_let_go(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    for turns in range(1, 12):

        async def take() -> None:
            async with queue.snapshot():
                await asyncio.Event().wait()

        task = asyncio.create_task(take())
        for _ in range(turns):
            await asyncio.sleep(0)
        await cancel(task)
    # While a pin stood, the row that dies would be kept for it.
    lease = (await queue.lease())[0]
    await lease.settle()
    async with queue.snapshot() as snapshot:
        assert snapshot.arrow().read_all().num_rows == 0


@embedded
async def test_a_cancelled_cursor_reads_on(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursor = await queue.cursor("report")
    waiting = asyncio.create_task(cursor.next(wait=30))
    await queue.explain(1)
    await cancel(waiting)
    await queue.publish_many([b"1", b"2"])
    for turns in range(1, 8):
        task = asyncio.create_task(cursor.next())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            break
    again = await queue.cursor("report")
    snapshot = await again.next()
    assert snapshot is not None
    assert [row.body async for row in snapshot.rows()] == [b"1", b"2"]


@embedded
async def test_others_go_on_beside_the_cancelled(m: Millrace) -> None:
    queue = await m.queue("orders")
    tasks = [asyncio.create_task(queue.publish(b"%d" % n)) for n in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.wait(tasks)
    kept = {n: task.result() for n, task in enumerate(tasks) if not task.cancelled()}
    rows = {row.seq: row.body for row in await queue.peek(200)}
    assert list(kept) == list(range(1, 100, 2))
    told = {seq: b"%d" % n for n, seq in kept.items()}
    assert rows.items() >= told.items()
    # Nothing was decided yet: those that were cancelled never are. Some may have been sent.
    assert rows == told or not isinstance(engine_of(m), EmbeddedEngine)
    assert await queue.publish(b"after") == len(rows) + 1
