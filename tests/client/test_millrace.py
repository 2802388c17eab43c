"""Queues are found, created, listed and deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millrace import errors
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.core.changes import Entry
from millrace.wal.record import LogPosition
from tests.client.harness import embedded, opened, run


@embedded
async def test_a_queue_is_made_once(m: Millrace) -> None:
    first = await m.queue("orders", keyed=True)
    again = await m.queue("orders", keyed=True)
    bare = await m.queue("orders")
    seq = await first.publish(b"one", key="k")
    assert [row.seq for row in await again.peek()] == [seq]
    assert (await bare.spec()).keyed
    assert (first.name, first.space) == ("orders", "default")


@embedded
async def test_other_settings_are_refused(m: Millrace) -> None:
    await m.queue("orders", keyed=True, retention="log", keep_deletes=60)
    others = {
        "keyed is True; make another queue": m.queue("orders", keyed=False),
        "retention is 'log'; configure it": m.queue("orders", retention="work"),
        "keep_deletes is 60 s; configure it": m.queue("orders", keep_deletes=61),
        "rate is 0, rate_burst is 0; configure it": m.queue("orders", rate=5),
    }
    for said, other in others.items():
        with pytest.raises(errors.Exists, match="'orders' is there with other settings") as caught:
            await other
        assert said in str(caught.value)
    spec = await (await m.find("orders")).spec()
    assert (spec.keyed, spec.retention, spec.keep_deletes_ms) == (True, "log", 60_000)


@embedded
async def test_a_queue_is_placed_beside_another(m: Millrace) -> None:
    orders = await m.queue("orders")
    shipped = await m.queue("shipped", beside="orders")
    # Beside a queue that is itself beside another one: all three are in one place.
    billed = await m.queue("billed", beside="shipped")
    for queue in (shipped, billed, await m.find("billed")):
        assert queue.shards.placed_by == "default/orders"
    assert orders.shards.placed_by == ""
    # Asking again is no error, also the other way round.
    for name, beside in (("shipped", "billed"), ("orders", "billed"), ("shipped", "orders")):
        await m.queue(name, beside=beside)
    # The place stays when the queue of that name is gone.
    await m.delete_queue("orders")
    late = await m.queue("late", beside="billed")
    assert late.shards.placed_by == "default/orders"
    async with m.transaction() as t:
        t.publish(shipped, b"1")
        t.publish(late, b"2")
    assert [len(await queue.peek()) for queue in (shipped, late)] == [1, 1]


@embedded
async def test_a_place_is_fixed_when_the_queue_is_made(m: Millrace) -> None:
    await m.queue("orders")
    await m.queue("shipped")
    with pytest.raises(errors.Exists, match="'shipped' is not placed beside") as caught:
        await m.queue("shipped", beside="orders")
    assert caught.value.field == "beside"
    for name in ("shipped", "new"):
        with pytest.raises(errors.NotFound, match="no queue 'default/gone'") as missing:
            await m.queue(name, beside="gone")
        assert missing.value.field == "beside"
    for bad in ("a/b", "", "x" * 200):
        with pytest.raises((errors.Invalid, errors.TooLarge)):
            await m.queue("new", beside=bad)
    assert await m.queues() == ["orders", "shipped"]


@embedded
async def test_the_nearest_setting_is_named(m: Millrace) -> None:
    typo: Any = {"max_failurs": 5}
    odd: Any = {"colour": "red"}
    with pytest.raises(errors.Invalid, match="did you mean 'max_failures'"):
        await m.queue("orders", **typo)
    with pytest.raises(errors.Invalid, match="there are keyed, retention"):
        await m.queue("orders", **odd)


@embedded
async def test_who_names_no_settings_takes_what_another_makes(m: Millrace) -> None:
    keyed, bare, log = await asyncio.gather(
        m.queue("events", keyed=True, retention="log"),
        m.queue("events"),
        m.queue("events", retention="log"),
    )
    assert await keyed.spec() == await bare.spec() == await log.spec()
    await asyncio.gather(keyed.configure(retention="work"), bare.configure(keep_deletes=5))
    spec = await log.spec()
    assert (spec.keyed, spec.retention, spec.keep_deletes_ms) == (True, "work", 5_000)


@embedded
async def test_many_make_the_same_queue_at_once(m: Millrace) -> None:
    queues = await asyncio.gather(*(m.queue("orders") for _ in range(20)))
    await asyncio.gather(*(queue.publish(b"x") for queue in queues))
    assert await m.queues() == ["orders"]
    assert (await queues[0].stats())["published"] == 20


@embedded
async def test_queues_are_listed_by_space(m: Millrace) -> None:
    await m.queue("b")
    await m.queue("a")
    other = await m.queue("a", space="other")
    await other.publish(b"x")
    assert await m.queues() == ["a", "b"]
    assert await m.queues(space="other") == ["a"]
    assert await m.queues(space="none") == []
    assert await (await m.find("a")).peek() == []
    assert len(await (await m.find("a", space="other")).peek()) == 1


@embedded
async def test_a_deleted_queue_is_gone_for_good(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"old")
    lease = (await queue.lease())[0]
    assert await m.delete_queue("orders")
    assert not await m.delete_queue("orders")
    assert await m.queues() == []
    with pytest.raises(errors.NotFound, match="orders"):
        await m.find("orders")
    for call in (queue.publish(b"x"), queue.peek(), queue.lease(), lease.settle(), queue.stats()):
        with pytest.raises(errors.NotFound, match="deleted"):
            await call
    anew = await m.queue("orders")
    assert await anew.peek() == []
    with pytest.raises(errors.NotFound):
        await queue.publish(b"x")
    with pytest.raises(errors.Forged):
        await anew.settle(lease)


@embedded
async def test_who_waits_for_a_queue_hears_of_its_end(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursor = await queue.cursor("report")
    waiting = [
        asyncio.create_task(queue.lease(wait=30)),
        asyncio.create_task(cursor.next(wait=30)),
    ]
    await queue.explain(1)
    await m.delete_queue("orders")
    for task in waiting:
        with pytest.raises(errors.NotFound, match="deleted"):
            await task


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders", keyed=True)
            await queue.publish(b"one", key="k1", headers={"a": "b"}, producer="p", number=1)
            await queue.publish(b"two", key="k2")
            lease = (await queue.lease())[0]
            receipt = lease.receipt
            snapshot = await (await queue.cursor("report")).next()
            assert snapshot is not None
            await snapshot.commit(1)
            await queue.stage("s", [b"x", b"y"])
        async with opened(tmp_path) as m:
            assert await m.queues() == ["orders"]
            queue = await m.find("orders")
            assert (await queue.spec()).keyed
            assert [row.body for row in await queue.peek()] == [b"one", b"two"]
            assert await queue.producer("p") == 1
            assert await queue.cursors() == {"report": 1}
            assert await queue.stages() == {"s": 2}
            assert (await queue.explain(1)).state == "leased"
            await queue.settle(receipt)
            cursor = await queue.cursor("report")
            again = await cursor.next()
            assert again is not None
            assert [row.body async for row in again.rows()] == [b"two"]

    run(main())


@embedded
async def test_closing_twice_is_harmless(m: Millrace) -> None:
    queue = await m.queue("orders")
    await asyncio.gather(m.close(), m.close())
    await m.close()
    with pytest.raises(errors.Closed):
        await queue.publish(b"x")
    with pytest.raises(errors.Closed):
        await queue.peek()
    with pytest.raises(errors.Closed):
        await m.queues()
    assert "closed" in repr(m)


@embedded
async def test_who_waits_hears_of_the_close(m: Millrace) -> None:
    queue = await m.queue("orders")
    waiting = asyncio.create_task(queue.lease(wait=30))
    await queue.explain(1)
    await m.close()
    with pytest.raises(errors.Closed):
        await waiting


def test_a_cancelled_close_closes_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            closing = asyncio.create_task(m.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            # The folder was let go, so that it can be opened while the first one is in scope.
            async with opened(tmp_path) as again:
                assert len(await (await again.find("orders")).peek()) == 1

    run(main())


@embedded
async def test_objects_say_what_they_are(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    lease = (await queue.lease())[0]
    cursor = await queue.cursor("report")
    snapshot = await cursor.next()
    async with m.transaction() as transaction:
        transaction.settle(lease)
    assert repr(m).startswith("<Millrace at ")
    assert repr(queue) == "<Queue default/orders>"
    assert repr(lease) == "<Lease of message 1 by call 1>"
    assert repr(cursor) == "<Cursor report at 0>"
    assert repr(snapshot) == "<Snapshot after 0 up to 1>"
    assert repr(transaction) == "<Transaction of 1 parts>"


@embedded
async def test_only_committed_names_are_told(m: Millrace) -> None:
    """A queue that is being created or deleted may be rolled back."""
    await m.queue("stays")
    engine = m._engine
    assert isinstance(engine, EmbeddedEngine)
    node = engine._node
    found: list[tuple[list[str], bool]] = []
    fold = node.store.fold

    def folded(entry: Entry, position: LogPosition | None) -> None:
        found.append((node.queue_names("default"), node.find_queue("default", "new") is not None))
        fold(entry, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.store, "fold", folded)
        await m.queue("new")
        await m.delete_queue("new")
    assert found == [(["stays"], False), (["new", "stays"], True)]
    assert await m.queues() == ["stays"]


def test_what_was_replaced_while_the_engine_closed_is_told_as_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("jobs")
            await queue.publish(b"page 1")
            [lease] = await queue.lease()
            new, _ = await asyncio.gather(lease.replace(b"page 2"), m.close())
            assert new.body == b"page 2"

    run(main())
