"""TTL: a message that is not settled in time is never delivered again."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import errors
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from tests.client.harness import Clock, embedded, eventually, opened, run, timed


async def bodies(queue: Queue, count: int = 10) -> list[bytes]:
    return [lease.body for lease in await queue.lease(count, seconds=3600)]


@timed
async def test_nobody_gets_what_has_expired_however_late_the_tick(
    m: Millrace, clock: Clock
) -> None:
    clock.stop()
    queue = await m.queue("mail")
    await queue.publish(b"short", ttl=10)
    await queue.publish_many([Message(b"own", ttl=5), b"shared", Message(b"long", ttl=60)], ttl=20)
    await queue.publish(b"for ever")
    clock.forward(seconds=10)
    assert await bodies(queue, 1) == [b"shared"]
    clock.forward(seconds=50)
    assert await bodies(queue) == [b"for ever"]
    stats = await queue.stats()
    assert (stats["expired"], stats["live"]) == (3, 2), "who is held is not ended"


@timed
async def test_who_is_held_expires_when_it_comes_back(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("mail", ttl=30)
    await queue.publish_many([b"settled", b"released", b"run out"])
    first, second, third = await queue.lease(3, seconds=60)
    clock.forward(seconds=31)
    assert await queue.lease() == []
    await first.settle()
    await second.release()
    assert await queue.lease() == []
    clock.forward(seconds=60)
    assert await queue.lease() == []
    with pytest.raises(errors.Stale):
        await third.settle()
    stats = await queue.stats()
    assert (stats["settled"], stats["expired"], stats["live"]) == (1, 2, 0)


@timed
async def test_expired_messages_go_where_dead_letters_go(m: Millrace, clock: Clock) -> None:
    clock.stop()
    dead = await m.queue("dead")
    queue = await m.queue("mail", ttl=10, dead_letter="dead", dead_letter_expired=True)
    await queue.publish_many([b"a", b"b"])
    await queue.publish(b"c", priority=9)
    clock.forward(seconds=10)
    assert await queue.lease() == []

    async def have_arrived() -> bool:
        return (await dead.stats())["live"] == 3

    await eventually(have_arrived)
    assert sorted(row.body or b"" for row in await dead.peek()) == [b"a", b"b", b"c"]
    assert dict((await dead.peek())[0].headers)["millrace-dead-reason"] == b"expired"
    assert (await queue.stats())["live"] == 0


def test_times_survive_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    clock.stop()

    async def first() -> None:
        async with opened(tmp_path, clock=clock) as m:
            queue = await m.queue("mail")
            await queue.publish_many([b"%d" % at for at in range(5_000)], ttl=60)
            await queue.publish(b"held", ttl=60)
            await queue.publish(b"stays")
            await queue.lease(10, seconds=3600)
            clock.forward(seconds=30)

    async def second() -> None:
        async with opened(tmp_path, clock=clock) as m:
            queue = await m.queue("mail")
            clock.forward(seconds=30)

            async def have_expired() -> bool:
                await queue.lease(seconds=3600)
                return (await queue.stats())["expired"] == 4_991

            await eventually(have_expired)
            assert (await queue.stats())["live"] == 11

    run(first())
    run(second())


@embedded
async def test_times_that_no_message_has(m: Millrace) -> None:
    queue = await m.queue("mail")
    for bad in (-1, "x", 1e12):
        with pytest.raises((errors.Invalid, errors.TooLarge)) as refused:
            await queue.publish(b"a", ttl=bad)  # type: ignore[arg-type]
        assert refused.value.field == "ttl"
    with pytest.raises(errors.Invalid):
        await queue.stage("s", [Message(b"a", ttl=-5)])
    with pytest.raises(errors.Invalid) as refused:
        await m.queue("book", retention="log", ttl=5)
    assert refused.value.field == "ttl"
    book = await m.queue("book", retention="log")
    with pytest.raises(errors.Invalid):
        await book.publish(b"a", ttl=5)
    with pytest.raises(errors.Invalid):
        await book.stage("s", [b"a"], ttl=5)
