"""Maximum length of queues: publishes are refused, or the oldest waiting messages dropped; and the
maximum in flight."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import millrace
from millrace import errors, limits
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue, lease_with_result
from millrace.core.commands import LeaseMessages as LeaseCommand
from tests.client.harness import Clock, embedded, eventually, run, timed


async def bodies(queue: Queue, count: int = 100) -> list[bytes]:
    return [lease.body for lease in await queue.lease(count)]


async def fill(queue: Queue) -> int:
    """Publish until the queue is full by bytes; return the number of messages."""
    taken = 0
    while True:
        try:
            await queue.publish(bytes(1_000))
        except errors.Full:
            break
        taken += 1
    with pytest.raises(errors.Full) as refused:
        await queue.publish(bytes(1_000))
    assert refused.value.field == "max_bytes"
    return taken


@embedded
async def test_a_full_queue_refuses_and_settling_makes_room(m: Millrace) -> None:
    queue = await m.queue("jobs", max_messages=3)
    await queue.publish_many([b"a", b"b"])
    with pytest.raises(errors.Full) as refused:
        await queue.publish_many([b"c", b"d"])
    assert (refused.value.field, refused.value.limit) == ("max_messages", 3)
    assert refused.value.after_ms > 0
    await queue.publish(b"c", delay=60)
    [first] = await queue.lease()
    with pytest.raises(errors.Full):
        await queue.publish(b"d")
    with pytest.raises(errors.TooLarge) as large:
        await queue.publish_many([b"x"] * 4)
    assert (large.value.field, large.value.limit) == ("max_messages", 3)
    await first.settle()
    await queue.publish(b"d")
    assert (await queue.stats())["live"] == 3
    await queue.stage("s", [b"e"])
    with pytest.raises(errors.Full):
        await queue.publish_staged(["s"])
    await queue.configure(max_messages=4)
    await queue.publish_staged(["s"])
    assert (await queue.stats())["live"] == 4


@embedded
async def test_publishes_at_the_same_time_are_counted_one_by_one(m: Millrace) -> None:
    queue = await m.queue("jobs", max_messages=5)
    answers = await asyncio.gather(
        *(queue.publish(b"%d" % at) for at in range(20)), return_exceptions=True
    )
    assert sum(isinstance(answer, errors.Full) for answer in answers) == 15
    assert (await queue.stats())["live"] == 5


@embedded
async def test_a_transaction_that_settles_makes_room_for_itself(m: Millrace) -> None:
    queue = await m.queue("jobs", max_messages=2)
    await queue.publish_many([b"a", b"b"])
    [first] = await queue.lease()

    async def settle_and_publish(*bodies: bytes) -> None:
        async with m.transaction() as t:
            for body in bodies:
                t.publish(queue, body)
            t.settle(first)

    with pytest.raises(errors.Full):
        await settle_and_publish(b"c", b"d")
    await settle_and_publish(b"c")
    assert (await queue.stats())["live"] == 2


@embedded
async def test_bytes_count_by_their_mean(m: Millrace) -> None:
    queue = await m.queue("jobs", max_bytes=100_000)
    with pytest.raises(errors.TooLarge) as large:
        await queue.publish(bytes(100_001))
    assert (large.value.field, large.value.limit) == ("max_bytes", 100_000)
    assert 85 <= await fill(queue) <= 100
    for lease in await queue.lease(100):
        await lease.settle()
    # The large ones are gone: small ones are not taken for as large.
    for _ in range(60):
        await queue.publish_many([b"small"] * 10)
    assert (await queue.stats())["live"] == 600


@embedded
async def test_the_oldest_that_wait_are_dropped(m: Millrace) -> None:
    queue = await m.queue("jobs", max_messages=3, overflow="drop")
    await queue.publish_many([b"held", b"old", b"older"])
    [held] = await queue.lease()
    await queue.publish_many([b"new", b"newer"])
    assert [row.body for row in await queue.peek()] == [b"held", b"new", b"newer"]
    stats = await queue.stats()
    assert (stats["dropped"], stats["live"]) == (2, 3)
    await queue.publish(b"urgent", priority=9)
    await queue.publish(b"late", delay=3600)
    await queue.publish(b"last")
    assert await bodies(queue) == [b"last"], "those that wait apart are dropped in their turn"
    with pytest.raises(errors.Full):
        await queue.publish_many([b"x", b"y"])
    await held.settle()


@embedded
async def test_what_is_dropped_is_a_dead_letter_and_a_full_queue_keeps_it_waiting(
    m: Millrace,
) -> None:
    dead = await m.queue("dead", max_messages=2)
    queue = await m.queue("jobs", max_messages=2, overflow="drop", dead_letter="dead")
    for at in range(7):
        await queue.publish(b"%d" % at)

    async def is_full() -> bool:
        return (await dead.stats())["live"] == 2

    async def all_came() -> bool:
        for lease in await dead.lease(10):
            arrived.append(lease.body)
            assert dict(lease.headers)["millrace-dead-reason"] == b"length"
            await lease.settle()
        return len(arrived) == 5

    arrived: list[bytes] = []
    await eventually(is_full)
    assert (await queue.stats())["live"] == 5, "three wait for room"
    await eventually(all_came)
    assert arrived == [b"0", b"1", b"2", b"3", b"4"]
    assert await bodies(queue) == [b"5", b"6"]


@embedded
async def test_dead_letters_go_on_from_queue_to_queue_and_never_round(m: Millrace) -> None:
    last = await m.queue("last")
    middle = await m.queue("middle", max_messages=2, overflow="drop", dead_letter="last")
    first = await m.queue("first", max_messages=2, overflow="drop", dead_letter="middle")
    for at in range(9):
        await first.publish(b"%d" % at)

    async def have_come() -> bool:
        return (await last.stats())["live"] == 5

    await eventually(have_come)
    assert [row.body for row in await middle.peek()] == [b"5", b"6"]
    await last.configure(max_messages=5, overflow="drop", dead_letter="first")
    await first.publish_many([b"9", b"10"])
    # They wait for room in middle, whose own would come back by way of last.
    assert (await first.stats())["live"] == 4
    await middle.settle(await middle.lease(2))

    async def have_gone_on() -> bool:
        return (await middle.stats())["live"] == 2

    await eventually(have_gone_on)
    assert [row.body for row in await middle.peek()] == [b"7", b"8"]
    assert (await last.stats())["published"] == 5


@embedded
async def test_what_is_dropped_waits_for_a_dead_letter_queue_that_was_deleted(m: Millrace) -> None:
    await m.queue("dead")
    queue = await m.queue("jobs", max_messages=2, overflow="drop", dead_letter="dead")
    await m.delete_queue("dead")
    for at in range(6):
        await queue.publish(b"%d" % at)
    [held] = await queue.lease()
    await held.discard()
    assert (await queue.stats())["live"] == 6, "nothing is gone"
    dead = await m.queue("dead")

    async def have_come() -> bool:
        return (await dead.stats())["live"] == 5

    await eventually(have_come)
    assert await bodies(dead) == [b"0", b"1", b"2", b"3", b"4"]
    assert await bodies(queue) == [b"5"]


@embedded
async def test_who_retains_what_was_settled_is_named(m: Millrace) -> None:
    queue = await m.queue("jobs", max_messages=2, overflow="drop")
    cursor = await queue.cursor("slow", start="beginning", retain=True)
    await queue.publish_many([b"a", b"b"])
    await queue.settle(await queue.lease(2))
    with pytest.raises(errors.Full, match="retaining cursors"):
        await queue.publish(b"c")
    snapshot = await cursor.next()
    assert snapshot is not None
    assert [row.body async for row in snapshot.rows()] == [b"a", b"b"]
    await snapshot.commit()
    await queue.publish(b"c")
    assert await bodies(queue) == [b"c"]


@embedded
async def test_a_repeat_is_answered_by_a_full_queue(m: Millrace) -> None:
    queue = await m.queue("jobs", max_messages=2)
    first = await queue.publish(b"a", producer="p", number=1)
    second = await queue.publish(b"b", dedup="b")
    assert await queue.publish(b"a", producer="p", number=1) == first
    assert await queue.publish(b"b", dedup="b") == second
    with pytest.raises(errors.Full):
        await queue.publish_many([Message(b"b", dedup="b"), Message(b"c")])
    assert (await queue.stats())["live"] == 2


def test_counts_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with millrace.open(tmp_path) as m:
            queue = await m.queue("jobs", max_messages=1_000, overflow="drop")
            for _ in range(3):
                await queue.publish_many([b"x"] * 500)
            await queue.publish(b"apart", priority=9)
            assert (await queue.stats())["dropped"] == 501
            few = await m.queue("few", max_bytes=10_000)
            await fill(few)

    async def second() -> None:
        async with millrace.open(tmp_path) as m:
            queue = await m.find("jobs")
            await queue.publish_many([b"y"] * 600)
            stats = await queue.stats()
            assert (stats["dropped"], stats["live"]) == (1_101, 1_000)
            assert len(await queue.lease(1_000)) == 1_000
            with pytest.raises(errors.Full):
                await queue.publish(b"z")
            few = await m.find("few")
            with pytest.raises(errors.Full):
                await few.publish(bytes(1_000))
            await few.settle(await few.lease(2))
            await few.publish(bytes(1_000))

    run(first())
    run(second())


@embedded
async def test_a_key_replaces_itself_in_a_full_queue(m: Millrace) -> None:
    queue = await m.queue("prices", keyed=True, max_messages=2)
    await queue.publish_many([Message(b"1", key="a"), Message(b"1", key="b")])
    await queue.publish_many([Message(b"2", key="a"), Message(b"3", key="a")])
    with pytest.raises(errors.Full):
        await queue.publish(b"1", key="c")
    assert (await queue.stats())["live"] == 2


@embedded
async def test_settings_that_do_not_fit(m: Millrace) -> None:
    for given, field in (
        ({"max_messages": -1}, "max_messages"),
        ({"max_bytes": "x"}, "max_bytes"),
        ({"overflow": "burst"}, "overflow"),
        ({"retention": "log", "max_messages": 5}, "max_messages"),
        ({"retention": "log", "max_bytes": 5}, "max_bytes"),
        ({"order": "group", "overflow": "drop", "max_messages": 5}, "overflow"),
    ):
        with pytest.raises(errors.Invalid) as refused:
            await m.queue("q", **given)
        assert refused.value.field == field
    queue = await m.queue("q", max_messages=5)
    with pytest.raises(errors.Invalid):
        await queue.configure(retention="log")


@embedded
async def test_a_lowered_maximum_is_reached_step_by_step(m: Millrace) -> None:
    queue = await m.queue("jobs")
    await queue.publish_many([b"x"] * 3_000)
    await queue.configure(max_messages=10, overflow="drop")
    for live in (1_977, 954, 10, 10):
        await queue.publish(b"y")
        assert (await queue.stats())["live"] == live


# --- With workers -----------------------------------------------------------------------------


@embedded
async def test_so_many_are_with_workers_and_a_long_poll_waits_for_one_that_ends(
    m: Millrace,
) -> None:
    queue = await m.queue("jobs", max_in_flight=2)
    await queue.publish_many([b"1", b"2", b"3", b"4"])
    first, second = await queue.lease(5)
    assert await queue.lease() == []
    assert await lease_with_result(queue, LeaseCommand(1, 1000), 0) == ([], True)
    assert (await queue.explain(3)).state == "blocked"
    waiting = asyncio.create_task(queue.lease(5, wait=20))
    await asyncio.sleep(0)
    await first.settle()
    [third] = await waiting
    assert third.body == b"3"
    waiting = asyncio.create_task(queue.lease(5, wait=20))
    await asyncio.sleep(0)
    await second.release()
    assert [lease.body for lease in await waiting] == [b"2"]
    await queue.configure(max_in_flight=0)
    assert await bodies(queue) == [b"4"]
    assert await lease_with_result(queue, LeaseCommand(1, 1000), 0) == ([], False)
    with pytest.raises(errors.TooLarge) as refused:
        await queue.configure(max_in_flight=limits.IN_FLIGHT_MAX + 1)
    assert (refused.value.field, refused.value.limit) == ("max_in_flight", limits.IN_FLIGHT_MAX)


@timed
async def test_a_long_poll_waits_for_what_runs_out(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("jobs", max_in_flight=1)
    await queue.publish_many([b"1", b"2"])
    await queue.lease(seconds=5)
    waiting = asyncio.create_task(queue.lease(5, wait=20))
    await asyncio.sleep(0)
    clock.forward(seconds=6)
    assert [lease.body for lease in await waiting] == [b"1"]


@embedded
async def test_a_session_is_handed_no_more_than_the_queue_allows(m: Millrace) -> None:
    queue = await m.queue("jobs", max_in_flight=2)
    await queue.publish_many([b"1", b"2", b"3"])
    async with queue.session(credit=10) as session:
        one, two = await anext(session), await anext(session)
        waiting = asyncio.create_task(anext(session))
        await asyncio.sleep(0)
        assert not waiting.done()
        await one.settle()
        assert (await waiting).body == b"3"
        assert two.body == b"2"
