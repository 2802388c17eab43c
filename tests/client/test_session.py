"""Sessions: pushed messages with credit, delivery numbers, and detection of lost consumers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from millrace import errors, limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue, engine_and_shard
from millrace.client.session import Session, leave, lose
from millrace.core.commands import Command
from millrace.core.model import ShardId
from millrace.core.session_commands import SuspectSession
from tests.client.harness import SMALL, Clock, embedded, eventually, opened, run, timed


async def take(session: Session, count: int) -> list[Lease]:
    """Return the next messages, in order of arrival."""
    return [await anext(session) for _ in range(count)]


def numbers(leases: list[Lease]) -> list[int | None]:
    return [lease.number for lease in leases]


async def state(queue: Queue, seq: int) -> str:
    return (await queue.explain(seq)).state


async def is_suspected(queue: Queue) -> bool:
    """Return True if the only session of the queue is suspected."""
    engine, shard = engine_and_shard(queue)
    assert isinstance(engine, EmbeddedEngine)
    view = engine._node.commit_loop_of(shard).view(shard)
    assert view is not None
    [cell] = view.sessions.values()
    return cell.suspected_ms > 0


async def session_count(queue: Queue) -> int:
    engine, shard = engine_and_shard(queue)
    assert isinstance(engine, EmbeddedEngine)
    view = engine._node.commit_loop_of(shard).view(shard)
    assert view is not None
    return len(view.sessions)


WOKEN = limits.WAIT_STEP_MS / 2000
"""Seconds within which an answer shows that a waiting call was woken: it asks anew by itself later,
and finds then what it was not told."""


async def stays_empty(session: Session) -> None:
    """Check that nothing arrives; whatever was decided before has not delivered to it."""
    waiting = asyncio.ensure_future(anext(session))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting


@embedded
async def test_r4_deliveries_are_numbered_without_gaps(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"%d" % at for at in range(50)])
    async with queue.session(credit=7) as session:
        for at in range(50):
            message = await anext(session)
            assert (message.number, message.body) == (at, b"%d" % at)
            await message.settle()
    assert (await queue.stats())["live"] == 0


@embedded
async def test_r4_what_is_held_comes_again_under_the_same_numbers(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"a", b"b", b"c", b"d"])
    async with queue.session() as session:
        first = await take(session, 4)
        await first[1].settle()
        await session.redeliver(1)
        again = await take(session, 2)
        assert [(one.number, one.body) for one in again] == [(2, b"c"), (3, b"d")]
        await queue.publish(b"e")
        assert (await anext(session)).number == 4
        assert await queue.settle(again) == {}
        assert await queue.settle([first[0], first[2]]) == {}


@embedded
async def test_r4_what_was_settled_meanwhile_does_not_come_again(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"a", b"b", b"c"])
    async with queue.session() as session:
        first = await take(session, 3)
        await session.redeliver()
        assert (await anext(session)).body == b"a"
        # They are on their way again, and are settled under the objects of before.
        await first[1].settle()
        assert (await anext(session)).body == b"c"


@embedded
async def test_r4_numbers_follow_the_priorities(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"low", priority=0)
    await queue.publish(b"usual")
    await queue.publish(b"high", priority=9)
    async with queue.session() as session:
        found = await take(session, 3)
        assert [(one.number, one.body) for one in found] == [
            (0, b"high"),
            (1, b"usual"),
            (2, b"low"),
        ]
        await session.redeliver()
        assert [one.body for one in await take(session, 3)] == [b"high", b"usual", b"low"]


@embedded
async def test_r4_large_bodies_are_read_in_parts(m: Millrace) -> None:
    queue = await m.queue("orders")
    size = limits.LEASE_BYTES_MAX // 100
    bodies = [bytes([at]) * size for at in range(110)]
    for body in bodies:
        await queue.publish(body)
    async with queue.session(credit=200) as session:
        for at, body in enumerate(bodies):
            message = await anext(session)
            assert (message.number, message.body) == (at, body)
            await message.settle()


@embedded
async def test_r5_unknown_numbers_change_nothing(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"a", b"b", b"c", b"d"])
    async with queue.session() as session:
        found = await take(session, 3)
        assert await session.settle([0, 99]) == {}
        assert await session.settle(0) == {}
        assert await session.release(77) == {}
        assert await session.discard([5, 6]) == {}
        assert [await state(queue, seq) for seq in (1, 2, 3)] == ["settled", "leased", "leased"]
        # The program has not been given the fourth: a number beyond what it knows names nothing.
        assert await session.settle(upto=99) == {}
        assert await state(queue, 4) == "leased"
        await found[0].settle()
    assert (await queue.stats())["live"] == 1


@embedded
async def test_r5_settling_up_to_a_number_is_settling_all_of_them(m: Millrace) -> None:
    queue = await m.queue("orders")
    for body in (b"a", b"b", b"c", b"d"):
        await queue.publish(body)
    async with queue.session() as session:
        await take(session, 4)
        assert await session.settle(upto=2) == {}
        assert (await queue.stats())["settled"] == 3
        assert await session.release(3, failed=True) == {}
        again = await anext(session)
        assert (again.number, again.failures, again.deliveries) == (4, 1, 2)
        assert await session.discard(upto=4) == {}
        assert (await queue.stats())["dropped"] == 1


@embedded
async def test_r5_what_was_replaced_is_told_by_its_number(m: Millrace) -> None:
    queue = await m.queue("orders", keyed=True)
    await queue.publish(b"old", key=b"k")
    await queue.publish(b"other", key=b"j")
    async with queue.session() as session:
        await take(session, 2)
        await queue.publish(b"new", key=b"k")
        assert (await anext(session)).body == b"new"
        refused = await session.settle(upto=1)
        assert list(refused) == [0]
        assert isinstance(refused[0], errors.Superseded)


@embedded
async def test_r6_no_more_than_the_credit_is_held(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"a", b"b", b"c", b"d"])
    async with queue.session(credit=2) as session:
        found = await take(session, 2)
        await stays_empty(session)
        assert [await state(queue, seq) for seq in (2, 3)] == ["leased", "ready"]
        await found[0].settle()
        assert (await anext(session)).body == b"c"
        await found[1].release()
        assert (await anext(session)).body == b"b"
        await stays_empty(session)


@embedded
async def test_r6_a_message_is_handed_out_with_the_publish_that_brings_it(m: Millrace) -> None:
    queue = await m.queue("orders")
    async with queue.session(credit=5) as session:
        waiting = asyncio.ensure_future(anext(session))
        await stays_empty(session)
        await queue.publish(b"a")
        # It was decided with the publish: nobody could have taken it in between.
        assert await state(queue, 1) == "leased"
        assert (await queue.explain(1)).session is not None
        assert (await waiting).body == b"a"


@embedded
async def test_r6_credit_that_is_granted_is_used_up(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"a", b"b", b"c", b"d"])
    async with asyncio.timeout(WOKEN), queue.session(credit=1, refill=False) as session:
        first = await anext(session)
        await first.settle()
        await stays_empty(session)
        assert await session.grant(2) == 0
        assert numbers(await take(session, 2)) == [1, 2]
        await stays_empty(session)
        assert await session.grant(5, drain=True) == 4
        assert (await anext(session)).number == 3
        await queue.publish(b"e")
        await stays_empty(session)
        assert await session.grant(0, drain=True) == 0
        with pytest.raises(errors.TooLarge) as caught:
            await session.grant(limits.SESSION_CREDIT_MAX + 1)
        assert (caught.value.field, caught.value.limit) == ("credit", limits.SESSION_CREDIT_MAX)


@embedded
async def test_r6_credit_that_is_refilled_cannot_be_granted(m: Millrace) -> None:
    queue = await m.queue("orders")
    async with queue.session() as session:
        with pytest.raises(errors.Invalid, match="refill=False"):
            await session.grant(1)


@embedded
async def test_sessions_and_lease_calls_wait_in_one_row(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"a")
    async with AsyncExitStack() as stack:
        busy = await stack.enter_async_context(queue.session(credit=1))
        await anext(busy)
        idle = await stack.enter_async_context(queue.session(credit=1))
        waiting = asyncio.ensure_future(queue.lease(1, wait=2 * WOKEN))
        await stays_empty(idle)
        # The first has no credit left: that is nothing to the others.
        await queue.publish_many([b"b", b"c"])
        async with asyncio.timeout(WOKEN):
            [lease] = await waiting
            message = await anext(idle)
        assert {lease.body, message.body} == {b"b", b"c"}
        await stays_empty(busy)


@embedded
async def test_r7_closing_gives_back_at_once_and_counts_no_failure(m: Millrace) -> None:
    queue = await m.queue("orders", max_failures=1, max_deliveries=2)
    await queue.publish_many([b"a", b"b"])
    async with queue.session() as session:
        await anext(session)
    leases = await queue.lease(10)
    # The second was only there ahead: it was not delivered.
    assert [(one.body, one.deliveries, one.failures) for one in leases] == [
        (b"a", 2, 0),
        (b"b", 1, 0),
    ]


@embedded
async def test_r7_what_was_held_by_a_closed_session_is_not_settled_by_it(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"a")
    async with queue.session() as session:
        message = await anext(session)
    with pytest.raises(errors.Stale):
        await message.settle()
    with pytest.raises(errors.Closed):
        await anext(session)
    await session.close()


@embedded
async def test_r7_a_cancelled_session_keeps_what_it_holds(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"a", b"b", b"c"])
    async with queue.session(credit=2) as session:
        first = await anext(session)
        await session.cancel()
        rest = [message async for message in session]
        assert [message.body for message in rest] == [b"b"]
        await queue.publish(b"d")
        assert await state(queue, 3) == "ready"
    assert await state(queue, 2) == "leased"
    await first.settle()
    await rest[0].settle()
    assert (await queue.stats())["live"] == 2


@timed
async def test_r7_a_session_that_was_dropped_is_suspected_and_its_messages_return(
    m: Millrace, clock: Clock
) -> None:
    clock.stop()
    queue = await m.queue("orders")
    await queue.publish(b"a")
    session = await queue.session(suspect=60).open()
    await anext(session)
    del session
    gc.collect()
    await eventually(lambda: is_suspected(queue))
    clock.forward(seconds=59)
    assert await queue.lease(1, wait=0.05) == []
    clock.forward(seconds=2)
    [lease] = await queue.lease(1, wait=30)
    assert (lease.deliveries, lease.failures) == (2, 1)


@timed
async def test_r7_a_session_that_was_dropped_can_be_resumed(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"a", b"b", b"c"])
    session = await queue.session(credit=2, name="picker").open()
    first = await anext(session)
    await first.settle()
    text = session.id
    del session
    gc.collect()
    async with queue.session(resume=text) as resumed:
        assert resumed.name == "picker"
        found = await take(resumed, 2)
        assert [(one.number, one.body) for one in found] == [(1, b"b"), (2, b"c")]
        await queue.publish(b"d")
        # Its credit is what it was.
        await stays_empty(resumed)
        assert await resumed.settle(upto=2) == {}
        assert (await anext(resumed)).number == 3
        clock.forward(seconds=3600)
        assert (await queue.explain(4)).session is not None
    with pytest.raises(errors.Gone):
        await queue.session(resume=text).open()


@embedded
async def test_r7_whoever_resumes_is_heard_alone(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"a")
    first = await queue.session().open()
    await anext(first)
    waiting = asyncio.ensure_future(anext(first))
    await stays_empty(first)
    async with queue.session(resume=first.id) as second:
        assert (await anext(second)).number == 0
        with pytest.raises(errors.Stale):
            await waiting
        with pytest.raises(errors.Stale):
            await first.grant(1)
        # Nor does its end end anything.
        await first.close()
        await queue.publish(b"b")
        assert (await anext(second)).number == 1


async def ends_while_it_is_resumed(
    m: Millrace, end: Callable[[Session], Awaitable[None] | None]
) -> Queue:
    """Resume a session, as after a refused settle, while another task ends it."""
    queue = await m.queue("orders")
    await queue.publish(b"a")
    session = await queue.session().open()
    await anext(session)
    feed = session._buffer
    assert feed is not None
    engine, shard = engine_and_shard(queue)
    await engine.ask(shard, SuspectSession(feed.claim), bool)
    resuming = asyncio.ensure_future(feed.resume(feed.claim))
    await asyncio.sleep(0)
    ending = end(session)
    if ending is not None:
        await ending
    await resuming
    return queue


@embedded
async def test_r7_a_session_that_is_closed_while_it_is_resumed_ends(m: Millrace) -> None:
    queue = await ends_while_it_is_resumed(m, Session.close)
    assert await session_count(queue) == 0
    assert [lease.body for lease in await queue.lease(1)] == [b"a"]


@embedded
async def test_r7_a_session_whose_client_is_lost_while_it_is_resumed_ends(m: Millrace) -> None:
    queue = await ends_while_it_is_resumed(m, lose)
    [lease] = await queue.lease(1, wait=10)
    assert (lease.body, lease.failures) == (b"a", 1)


@embedded
async def test_r7_a_session_that_is_left_while_it_is_resumed_is_suspected(m: Millrace) -> None:
    queue = await ends_while_it_is_resumed(m, leave)
    await eventually(lambda: is_suspected(queue))


def test_r7_after_a_restart_a_session_is_suspected_then_returned(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with opened(tmp_path / "data", clock=clock) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"a", b"b"])
            session = await queue.session(suspect=60).open()
            await take(session, 2)
            text = session.id
            # As if the process had been killed: nobody closes it.
            m._keepalive.closers.clear()
            session._buffer = None
        async with opened(tmp_path / "data", clock=clock) as m:
            queue = await m.find("orders")
            async with queue.session(resume=text) as again:
                assert [one.body for one in await take(again, 2)] == [b"a", b"b"]
                m._keepalive.closers.clear()
                assert again._buffer is not None
                again._buffer.is_over = True
        async with opened(tmp_path / "data", clock=clock) as m:
            queue = await m.find("orders")
            assert await queue.lease(1) == []
            # From the first look around on its time runs.
            await eventually(lambda: is_suspected(queue))
            clock.forward(seconds=61)
            leases = await queue.lease(10, wait=30)
            assert [(one.body, one.failures) for one in leases] == [(b"a", 1), (b"b", 1)]

    run(main())


@embedded
async def test_r7_deleting_the_queue_ends_the_session(m: Millrace) -> None:
    queue = await m.queue("orders")
    async with queue.session() as session:
        waiting = asyncio.ensure_future(anext(session))
        await stays_empty(session)
        await m.delete_queue("orders")
        with pytest.raises(errors.NotFound, match="deleted"):
            await waiting
        with pytest.raises(errors.NotFound):
            await anext(session)


@timed
async def test_a_session_may_hold_each_message_for_a_time(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    await queue.publish(b"a")
    async with queue.session(credit=1, lease=30) as session:
        message = await anext(session)
        assert message.deadline_ms == clock() + 30_000
        clock.forward(seconds=31)
        [lease] = await queue.lease(1)
        assert (lease.body, lease.failures) == (b"a", 1)
        with pytest.raises(errors.Stale):
            await message.settle()


@timed
async def test_a_session_needs_no_extension(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"a")
    async with queue.session() as session:
        async with await anext(session) as message:
            clock.forward(seconds=24 * 3600)
            await message.extend(1)
            assert await queue.lease(1) == []
        assert (await queue.stats())["settled"] == 1


def test_closing_the_engine_gives_everything_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data", settings=SMALL) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"a", b"b"])
            session = await queue.session().open()
            await anext(session)
        with pytest.raises(errors.Closed):
            await anext(session)
        async with opened(tmp_path / "data", settings=SMALL) as m:
            queue = await m.find("orders")
            leases = await queue.lease(10)
            assert [(one.deliveries, one.failures) for one in leases] == [(2, 0), (1, 0)]

    run(main())


@embedded
async def test_odd_arguments_are_refused(m: Millrace) -> None:
    queue = await m.queue("orders")
    other = await m.queue("other")
    with pytest.raises(errors.Invalid):
        queue.session(credit=0)
    with pytest.raises(errors.TooLarge):
        queue.session(credit=limits.SESSION_CREDIT_MAX + 1)
    with pytest.raises(errors.Invalid):
        queue.session(name="no name!")
    with pytest.raises(errors.Invalid, match="not open"):
        await queue.session().grant(1)
    await queue.publish(b"a")
    async with queue.session(credit=0, refill=False) as session:
        with pytest.raises(errors.Invalid):
            await session.settle()
        with pytest.raises(errors.Invalid):
            await session.settle(1, upto=2)
        with pytest.raises(errors.Invalid):
            await session.settle(-1)
        with pytest.raises(errors.Invalid):
            await session.grant(-1)
        with pytest.raises(errors.Forged):
            other.session(resume=session.id)
        with pytest.raises(errors.Forged):
            queue.session(resume="nonsense")
        [lease] = await queue.lease(1)
        with pytest.raises(errors.Forged):
            queue.session(resume=lease.receipt)
        with pytest.raises(errors.Gone):
            await queue.settle(session.id)


@embedded
async def test_r7_a_close_that_is_interrupted_closes_all_the_same(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"a", b"b"])
    session = await queue.session().open()
    await anext(session)
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    leases = await queue.lease(10, wait=30)
    assert [(one.deliveries, one.failures) for one in leases] == [(2, 0), (1, 0)]


@embedded
async def test_r7_a_session_that_is_lost_while_nothing_is_taken_is_suspected_later(
    m: Millrace,
) -> None:
    queue = await m.queue("orders")
    session = await queue.session().open()
    engine, _ = engine_and_shard(queue)
    tell = engine.tell
    refused: list[Command] = []

    def full(shard: ShardId, command: Command) -> None:
        if not refused:
            refused.append(command)
            raise errors.Full("the inbox is full", field="inbox", after_ms=1)
        tell(shard, command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "tell", full)
        del session
        gc.collect()
        await eventually(lambda: is_suspected(queue))
    assert len(refused) == 1
