"""Transactions: all operations or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import errors, limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.transaction import Transaction
from millrace.core.model import Epoch, GroupId, History, Index, ShardId
from millrace.engine.commit_loop import CommitLoop
from millrace.journal.local import LocalJournal
from millrace.node import LOCAL, Node, real_ports
from tests.client.harness import SMALL, embedded, opened, run


async def done(t: Transaction) -> None:
    async with t:
        pass


@embedded
async def test_everything_is_done_at_once(m: Millrace) -> None:
    orders = await m.queue("orders")
    shipped = await m.queue("shipped", keyed=True)
    await orders.publish_many([b"1", b"2", b"3", b"4"])
    await shipped.stage("s", [b"staged"])
    settled, released, kept, by_receipt = await orders.lease(4)
    before = kept.deadline_ms
    cursor = await orders.cursor("report")
    snapshot = await cursor.next()
    assert snapshot is not None
    async with orders.snapshot() as pinned:
        async with m.transaction() as t:
            t.settle(settled)
            t.settle(by_receipt.receipt)
            t.release(released, failed=True)
            t.extend(kept, 3600)
            one = t.publish("shipped", b"a", key="k", headers={"h": "v"}, producer="p", number=1)
            many = t.publish_many(shipped, [b"b", Message(b"c", "k")])
            staged = t.publish_staged("shipped", ["s"])
            t.commit(snapshot)
            t.unpin(pinned)
        assert one.value == 1
        assert many.value == range(2, 4)
        assert staged.value == range(4, 5)
        with pytest.raises(errors.SnapshotExpired):
            pinned.arrow().read_all()
    assert [row.body for row in await shipped.peek()] == [b"b", b"c", b"staged"]
    assert (await orders.stats())["settled"] == 2
    assert kept.deadline_ms > before
    assert await orders.cursors() == {"report": 4}
    assert cursor.position.seq == 4
    again = (await orders.lease(4))[0]
    assert (again.seq, again.failures) == (released.seq, 1)


@embedded
async def test_where_one_part_is_refused_nothing_is_done(m: Millrace) -> None:
    orders, shipped = await m.queue("orders"), await m.queue("shipped")
    await orders.publish_many([b"1", b"2"])
    good, stale = await orders.lease(2)
    await stale.release()
    await orders.lease()
    t = m.transaction()
    later = t.publish(shipped, b"x")
    t.settle(good)
    t.settle(stale)
    with pytest.raises(errors.Stale):
        await done(t)
    assert await shipped.peek() == []
    assert (await orders.stats())["settled"] == 0
    with pytest.raises(errors.Closed):
        _ = later.value
    await good.settle()


@embedded
async def test_an_error_in_the_body_does_nothing(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    lease = (await queue.lease())[0]
    t = m.transaction()
    t.settle(lease)
    with pytest.raises(ZeroDivisionError):
        async with t:
            1 / len(lease.headers)
    assert (await queue.stats())["settled"] == 0
    await lease.settle()


def test_an_empty_transaction_is_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        node = await Node.open(real_ports(tmp_path), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            await m.queue("orders")
            before = node.store.applied(LOCAL)
            t = m.transaction()
            await done(t)
            assert node.store.applied(LOCAL) == before > 0
            with pytest.raises(errors.Closed):
                t.publish("orders", b"x")

    run(main())


@embedded
async def test_many_leases_are_one_part(m: Millrace) -> None:
    queue = await m.queue("orders")
    count = limits.TRANSACTION_PARTS_MAX + 500
    await queue.publish_many([b"x"] * count)
    async with m.transaction() as t:
        t.settle(await queue.lease(count))
        t.publish(queue, b"done")
    stats = await queue.stats()
    assert (stats["settled"], stats["live"]) == (count, 1)


@embedded
async def test_settling_and_replacing_is_a_settle(m: Millrace) -> None:
    queue = await m.queue("prices", keyed=True)
    await queue.publish(b"1", key="a")
    lease = (await queue.lease())[0]
    async with m.transaction() as t:
        t.publish(queue, b"2", key="a")
        t.settle(lease)
    stats = await queue.stats()
    assert (stats["settled"], stats["superseded"], stats["live"]) == (1, 0, 1)


@embedded
async def test_a_repeat_is_answered_as_before(m: Millrace) -> None:
    queue = await m.queue("orders")
    for _ in range(2):
        async with m.transaction() as t:
            later = t.publish(queue, b"x", producer="p", number=1)
        assert later.value == 1
    assert (await queue.stats())["published"] == 1


@embedded
async def test_queues_are_named_within_a_space(m: Millrace) -> None:
    other = await m.queue("orders", space="other")
    async with m.transaction(space="other") as t:
        t.publish("orders", b"x")
    assert len(await other.peek()) == 1
    t = m.transaction()
    t.publish("orders", b"x")
    with pytest.raises(errors.NotFound, match="orders"):
        await done(t)


# --- Bad input -----------------------------------------------------------------------------------


@embedded
async def test_a_transaction_is_done_once(m: Millrace) -> None:
    queue = await m.queue("orders")
    async with m.transaction() as t:
        t.publish(queue, b"x")
    with pytest.raises(errors.Closed, match="ended"):
        t.publish(queue, b"y")
    assert (await queue.stats())["published"] == 1


@embedded
async def test_too_many_parts_are_refused(m: Millrace) -> None:
    queue = await m.queue("orders")
    t = m.transaction()
    for _ in range(limits.TRANSACTION_PARTS_MAX + 1):
        t.publish(queue, b"x")
    with pytest.raises(errors.TooLarge) as caught:
        await done(t)
    assert (caught.value.field, caught.value.limit) == ("parts", limits.TRANSACTION_PARTS_MAX)
    assert await queue.peek() == []


@embedded
async def test_more_than_a_record_is_refused(m: Millrace) -> None:
    queue = await m.queue("orders")
    t = m.transaction()
    for _ in range(20):
        t.publish(queue, bytes(100_000))
    with pytest.raises(errors.TooLarge, match="record"):
        await done(t)
    assert await queue.peek() == []
    assert await queue.publish(b"x") == 1


@embedded
async def test_a_message_cannot_be_ended_twice(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    lease = (await queue.lease())[0]
    t = m.transaction()
    t.settle(lease)
    t.release(lease)
    with pytest.raises(errors.Invalid, match="twice"):
        await done(t)
    assert (await queue.stats())["settled"] == 0


@embedded
async def test_unknown_queues_are_refused(m: Millrace) -> None:
    queue = await m.queue("orders")
    t = m.transaction()
    t.publish(queue, b"x")
    t.publish("missing", b"x")
    with pytest.raises(errors.NotFound, match="missing"):
        await done(t)
    t = m.transaction()
    t.publish(queue, b"x")
    t.publish(await m.queue("doomed"), b"x")
    await m.delete_queue("doomed")
    with pytest.raises(errors.NotFound, match="deleted"):
        await done(t)
    assert await queue.peek() == []
    with pytest.raises(errors.Invalid, match="queue"):
        m.transaction().publish(5, b"x")  # type: ignore[arg-type]
    with pytest.raises(errors.Invalid, match="no name"):
        m.transaction().publish("a b", b"x")


def test_what_is_of_another_millrace_is_refused(tmp_path: Path) -> None:
    """Its numbers may be valid here, with another meaning."""

    async def main() -> None:
        async with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
            here, there = await one.queue("orders"), await two.queue("orders")
            for queue in (here, there):
                await queue.publish(b"x")
            foreign = (await there.lease())[0]
            own = (await here.lease())[0]
            cursor = await there.cursor("report")
            snapshot = await cursor.next()
            assert snapshot is not None
            t = one.transaction()
            for call in (
                lambda: t.publish(there, b"x"),
                lambda: t.settle(foreign),
                lambda: t.settle([own, foreign.receipt]),
                lambda: t.release(foreign.receipt),
                lambda: t.commit(snapshot),
                lambda: t.unpin(snapshot),
            ):
                with pytest.raises(errors.Forged):
                    call()
            with pytest.raises(errors.Forged):
                await here.settle(foreign)
            assert (await here.stats())["settled"] == 0

    run(main())


class TwoGroups(Node):
    """A node whose second queue is in another commit group."""

    def commit_loop_of(self, shard: ShardId) -> CommitLoop:
        return self.other if shard == 2 else super().commit_loop_of(shard)

    other: CommitLoop


def test_two_commit_groups_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        node = await TwoGroups.open(real_ports(tmp_path), SMALL)
        assert isinstance(node, TwoGroups)
        first = node.commit_loop_of(ShardId(0))
        node.other = first
        async with Millrace(EmbeddedEngine(node)) as m:
            here, there = await m.queue("here"), await m.queue("there")
            await here.publish(b"x")
            lease = (await here.lease())[0]
            history = History(bytes(16))
            journal = LocalJournal(GroupId(1), Epoch(1), history, Index(0), node.writer)
            node.other = CommitLoop(journal, node.store, node.now_ms)
            t = m.transaction()
            t.settle(lease)
            t.publish(there, b"x")
            with pytest.raises(errors.AcrossGroups, match="commit group"):
                await done(t)
            node.other = first
            assert (await here.stats())["settled"] == 0
            assert await there.peek() == []

    run(main())
