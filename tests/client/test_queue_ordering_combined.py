"""Ordered groups combined with the other features of a queue."""

from __future__ import annotations

import pytest

from millrace import errors
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from tests.client.harness import Clock, embedded, eventually, timed


def rows(*named: str) -> list[Message]:
    """Return messages such as "a0", whose groups are their first letters."""
    return [Message(name.encode(), group=name[0]) for name in named]


@timed
async def test_what_expires_frees_its_group(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("accounts", order="group")
    await queue.publish_many(rows("a0"), ttl=10)
    await queue.publish_many(rows("a1", "b0"))
    await queue.publish(b"b1", group="b", ttl=10)
    [held] = await queue.lease(1, seconds=60)
    assert held.body == b"a0"
    clock.forward(seconds=11)
    [other] = await queue.lease(9, seconds=60)
    assert other.body == b"b0", "b1 has expired, and a1 waits for a0"
    await held.release()
    assert [lease.body for lease in await queue.lease(9, seconds=60)] == [b"a1"]
    await other.settle()
    assert await queue.lease(9) == []
    assert (await queue.stats())["expired"] == 2


@embedded
async def test_sessions_wait_for_groups_as_lease_calls_do(m: Millrace) -> None:
    queue = await m.queue("accounts", order="group")
    await queue.publish_many(rows("a0", "a1", "b0"))
    [held] = await queue.lease(1)
    async with queue.session(credit=1) as session:
        first = await anext(session)
        assert (held.body, first.body) == (b"a0", b"b0")
        await first.settle()
        await held.settle()
        second = await anext(session)
        assert second.body == b"a1"
        await queue.publish_many(rows("a2"))
        assert await queue.lease(5) == [], "the session holds the group"
        await second.settle()
        third = await anext(session)
        assert third.body == b"a2"
        await third.settle()


@embedded
async def test_what_a_session_held_is_its_groups_first_again(m: Millrace) -> None:
    queue = await m.queue("accounts", order="group")
    await queue.publish_many(rows("a0", "a1"))
    async with queue.session(credit=1) as session:
        assert (await anext(session)).body == b"a0"
    assert [lease.body for lease in await queue.lease(1)] == [b"a0"]


@embedded
async def test_a_successor_keeps_its_group_waiting(m: Millrace) -> None:
    queue = await m.queue("accounts", order="group")
    await queue.publish_many(rows("a0", "a1"))
    [lease] = await queue.lease(1)
    new = await lease.replace(b"a0, page 2")
    assert new.group == b"a"
    assert await queue.lease(5) == []
    await new.release()
    [again] = await queue.lease(1)
    assert again.body == b"a0, page 2", "before a1, as the one it follows was"
    await again.settle()
    assert [lease.body for lease in await queue.lease(5)] == [b"a1"]


@embedded
async def test_what_comes_by_a_topic_waits_in_its_group(m: Millrace) -> None:
    topic, queue = await m.topic("events"), await m.queue("accounts", order="group")
    await topic.subscribe(queue)
    await topic.publish_many(rows("a0", "a1", "b0"), until_arrived=True)
    [first, other] = await queue.lease(2)
    assert [first.body, other.body] == [b"a0", b"b0"]
    assert await queue.lease(5) == []
    await first.settle()
    assert [lease.body for lease in await queue.lease(5)] == [b"a1"]


@embedded
async def test_a_group_is_on_one_shard_and_in_order(m: Millrace) -> None:
    queue = await m.queue("accounts", order="group", shards=3, route="group")
    names = [f"{group}{at}" for at in range(3) for group in "abcdefgh"]
    await queue.publish_many(rows(*names))
    got: dict[bytes, list[bytes]] = {}
    seen = 0
    while seen < len(names):
        leases = await queue.lease(4)
        assert leases, got
        for lease in leases:
            got.setdefault(lease.group, []).append(lease.body)
        await queue.settle(leases)
        seen += len(leases)
    assert got == {g.encode(): [f"{g}{at}".encode() for at in range(3)] for g in "abcdefgh"}


@embedded
async def test_a_repeat_is_in_no_group_twice(m: Millrace) -> None:
    queue = await m.queue("accounts", order="group")
    assert await queue.publish(b"a0", group="a", dedup="x") == 1
    assert await queue.publish(b"a0", group="b", dedup="x") == 1
    [lease] = await queue.lease(5)
    assert (lease.body, lease.group) == (b"a0", b"a")
    await lease.settle()
    assert await queue.publish(b"a0", group="a", dedup="x") == 1
    assert await queue.lease(5) == []


@embedded
async def test_a_purge_empties_groups_and_frees_those_that_were_held(m: Millrace) -> None:
    for order in ("group", "fair", "strict"):
        queue = await m.queue(order, order=order)
        await queue.publish_many(rows("a0", "a1", "b0", "b1"))
        [held] = await queue.lease(1)
        await queue.purge()
        assert await queue.lease(5) == []
        await queue.publish_many(rows("a2"))
        assert [lease.body for lease in await queue.lease(5)] == [b"a2"]
        with pytest.raises(errors.Refused):
            await held.settle()
        assert (await queue.stats())["purged"] == 4


@embedded
async def test_a_redrive_brings_messages_back_into_their_groups(m: Millrace) -> None:
    dead = await m.queue("dead")
    queue = await m.queue("accounts", order="group", dead_letter="dead")
    await queue.publish_many(rows("a0", "a1", "b0"))
    await queue.discard(await queue.lease(9))

    async def have_arrived() -> bool:
        return (await dead.stats())["published"] == 3

    await eventually(have_arrived)
    assert (await dead.redrive().run()).moved == 3
    leases = await queue.lease(2)
    assert [(lease.group, lease.body) for lease in leases] == [(b"a", b"a0"), (b"b", b"b0")]
    assert await queue.lease(5) == []
    await leases[0].settle()
    assert [lease.body for lease in await queue.lease(5)] == [b"a1"]


@embedded
async def test_a_newer_revision_takes_the_place_of_none_in_flight(m: Millrace) -> None:
    queue = await m.queue("table", order="group", keyed=True)
    await queue.publish(b"1", key="k")
    [held] = await queue.lease(1)
    await queue.publish(b"2", key="k")
    [newer] = await queue.lease(1)
    assert newer.body == b"2", "whom it waited for is no more"
    with pytest.raises(errors.Superseded):
        await held.settle()
