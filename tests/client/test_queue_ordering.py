"""Orders, groups and rates, through the API."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import errors, limits
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.core import token_bucket
from tests.client.harness import Clock, embedded, opened, run, timed


async def bodies(queue: Queue, count: int = 10) -> list[bytes]:
    return [lease.body for lease in await queue.lease(count, seconds=3600)]


@embedded
async def test_strict_waits_for_the_last_call(m: Millrace) -> None:
    queue = await m.queue("steps", order="strict")
    await queue.publish_many([b"a", b"b", b"c"])
    first = await queue.lease(2)
    waiting = asyncio.create_task(queue.lease(5, wait=60))
    explained = await queue.explain(3)
    assert (explained.state, explained.lease) == ("blocked", first[0].version)
    await first[1].settle()
    assert not waiting.done()
    await first[0].release()
    assert [lease.body for lease in await waiting] == [b"a", b"c"]


@embedded
async def test_groups_go_on_beside_a_blocked_one(m: Millrace) -> None:
    queue = await m.queue("accounts", order="group")
    await queue.publish_many([Message(b"a%d" % at, group="a") for at in range(3)])
    await queue.publish(b"b0", group=b"b")
    await queue.publish(b"c0", key="c")
    await queue.publish(b"none")
    [first] = await queue.lease(1)
    assert (first.body, first.group) == (b"a0", b"a")
    others = await queue.lease(10)
    assert [(lease.body, lease.group) for lease in others] == [
        (b"b0", b"b"),
        (b"c0", b"c"),
        (b"none", b""),
    ]
    assert [row.group for row in await queue.peek()] == [b"a", b"a", b"a", b"b", b"c", b""]
    explained = await queue.explain(2)
    assert (explained.state, explained.lease) == ("blocked", first.version)
    waiting = asyncio.create_task(queue.lease(5, wait=60))
    await queue.publish(b"a3", group="a")
    assert not waiting.done()
    await first.settle()
    assert [lease.body for lease in await waiting] == [b"a1", b"a2", b"a3"]


@timed
async def test_a_waiting_call_is_woken_when_its_group_is_free(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("accounts", order="group")
    await queue.publish_many([Message(b"a", group="g"), Message(b"b", group="g")])
    [first] = await queue.lease(1, seconds=3600)
    await first.release(delay=0.05)
    again = await queue.lease(2, wait=60)
    assert [lease.body for lease in again] == [b"a"]
    assert clock() >= again[0].deadline_ms - 30_000


@embedded
async def test_fair_groups_take_turns(m: Millrace) -> None:
    queue = await m.queue("mail", order="fair")
    await queue.publish_many([Message(b"big", group="big")] * 1000)
    await queue.publish(b"small", group="small")
    await queue.publish(b"other", group="other")
    assert await bodies(queue, 2) == [b"big", b"small"]
    assert sorted(await bodies(queue, 2)) == [b"big", b"other"]
    assert await bodies(queue, 3) == [b"big"] * 3


@embedded
async def test_so_many_of_a_group_are_in_flight(m: Millrace) -> None:
    queue = await m.queue("mail", order="fair", group_in_flight=2)
    await queue.publish_many([Message(b"%d" % at, group="g") for at in range(5)])
    leases = await queue.lease(10)
    assert len(leases) == 2
    assert (await queue.explain(3)).state == "blocked"
    await leases[0].settle()
    assert len(await queue.lease(10)) == 1
    await queue.configure(group_in_flight=3)
    assert len(await queue.lease(10)) == 1
    await queue.configure(group_in_flight=0)
    assert len(await queue.lease(10)) == 1


@timed
async def test_a_queue_hands_out_at_its_rate(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("calls", rate=10, rate_burst=3)
    await queue.publish_many([b"%d" % at for at in range(9)])
    assert await bodies(queue) == [b"0", b"1", b"2"]
    explained = await queue.explain(4)
    assert (explained.state, explained.until_ms) == ("limited", clock() + 100)
    clock.forward(seconds=0.099)
    assert await bodies(queue) == []
    clock.forward(seconds=0.001)
    assert await bodies(queue) == [b"3"]
    clock.forward(seconds=60)
    assert len(await bodies(queue)) == 3
    await queue.configure(rate=0)
    assert len(await bodies(queue)) == 2


@embedded
async def test_who_waits_for_the_rate_is_woken(m: Millrace) -> None:
    queue = await m.queue("calls", rate=50, rate_burst=1)
    await queue.publish_many([b"a", b"b", b"c"])
    for body in (b"a", b"b", b"c"):
        [lease] = await queue.lease(1, wait=60)
        assert lease.body == body


def test_a_restart_gives_no_burst(tmp_path: Path) -> None:
    clock = Clock()
    clock.stop()

    async def main() -> None:
        for expected in (2, 0):
            async with opened(tmp_path / "data", clock=clock) as m:
                queue = await m.queue("calls", order="group", group_rate=0.1, group_burst=2)
                await queue.publish_many([Message(b"x", group="g")] * 3)
                leases = await queue.lease(5)
                assert len(leases) == expected
                if leases:
                    await queue.settle(leases)
                else:
                    assert (await queue.explain(3)).state == "limited"
        async with opened(tmp_path / "data", clock=clock) as m:
            clock.forward(seconds=10)
            assert len(await (await m.find("calls")).lease(5)) == 1

    run(main())


def test_groups_are_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("accounts", order="group")
            rows = [Message(b"%d" % at, group=b"%d" % (at % 7)) for at in range(700)]
            await queue.publish_many(rows)
            held = await queue.lease(3, seconds=3600)
            receipts = [lease.receipt for lease in held]
        seen: dict[bytes, list[int]] = {}
        async with opened(tmp_path / "data") as m:
            queue = await m.find("accounts")
            leases = await queue.lease(10)
            assert {lease.group for lease in leases} == {b"3", b"4", b"5", b"6"}
            await queue.release(leases)
            await queue.settle(receipts)
            while leases := await queue.lease(50):
                for lease in leases:
                    seen.setdefault(lease.group, []).append(int(lease.body))
                await queue.settle(leases)
        assert len(seen) == 7
        assert all(numbers == sorted(numbers) for numbers in seen.values())
        assert sum(map(len, seen.values())) == 697

    run(main())


@embedded
async def test_dead_letters_keep_their_group_and_free_it(m: Millrace) -> None:
    dead = await m.queue("dead", order="group")
    queue = await m.queue("accounts", order="group", max_failures=1, dead_letter="dead")
    await queue.publish_many([Message(b"bad", group="g"), Message(b"good", group="g")])
    [lease] = await queue.lease(1)
    await lease.release(failed=True)
    assert [one.body for one in await queue.lease(5)] == [b"good"]
    [letter] = await dead.lease(1, wait=60)
    assert (letter.body, letter.group) == (b"bad", b"g")


@embedded
async def test_a_transaction_frees_a_group_and_publishes_to_it(m: Millrace) -> None:
    queue = await m.queue("steps", order="group")
    await queue.publish(b"one", group="g")
    [lease] = await queue.lease(1)
    async with m.transaction() as t:
        t.settle(lease)
        t.publish(queue, b"two", group="g")
    assert await bodies(queue) == [b"two"]


@embedded
async def test_what_an_order_does_not_know_is_refused(m: Millrace) -> None:
    for order in ("strict", "group", "fair"):
        queue = await m.queue(order, order=order)
        with pytest.raises(errors.Invalid) as caught:
            await queue.publish(b"x", priority=9)
        assert caught.value.field == "priority"
        with pytest.raises(errors.Invalid) as caught:
            await queue.configure(order="none")
        assert caught.value.field == "order"
    with pytest.raises(errors.Invalid) as caught:
        await m.queue("log", order="group", retention="log")
    assert caught.value.field == "order"
    for settings in ({"group_in_flight": 1}, {"group_rate": 1.0}):
        with pytest.raises(errors.Invalid) as caught:
            await m.queue("none", **settings)
        assert caught.value.field == next(iter(settings))


@embedded
async def test_bad_groups_orders_and_rates(m: Millrace) -> None:
    queue = await m.queue("mail", order="group")
    await queue.publish(b"x", group=b"g" * limits.KEY_BYTES_MAX)
    with pytest.raises(errors.TooLarge) as caught:
        await queue.publish(b"x", group=b"g" * (limits.KEY_BYTES_MAX + 1))
    assert (caught.value.field, caught.value.limit) == ("group", limits.KEY_BYTES_MAX)
    for field, value in (
        ("order", "lifo"),
        ("rate", -1),
        ("rate", "fast"),
        ("rate", 1e-9),
        ("rate", 1e9),
        ("rate_burst", 0),
        ("group_in_flight", -1),
    ):
        with pytest.raises(errors.Refused) as refused:
            await m.queue("other", **{field: value})  # type: ignore[arg-type]
        assert refused.value.field == field
    with pytest.raises(errors.Invalid):
        await queue.publish(b"x", group=7)  # type: ignore[arg-type]


@timed
async def test_another_rate_counts_from_now_on(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("calls", rate=0.01, rate_burst=5)
    await queue.publish_many([b"x"] * 20)
    assert len(await bodies(queue)) == 5
    await queue.configure(rate=10, rate_burst=1)
    assert await bodies(queue) == [], "what was handed out is not forgotten"
    clock.forward(seconds=0.1)
    assert len(await bodies(queue)) == 1


@embedded
async def test_who_waits_for_the_rate_is_woken_by_another_one(m: Millrace) -> None:
    queue = await m.queue("calls", rate=0.01, rate_burst=1)
    await queue.publish_many([b"a", b"b"])
    assert await bodies(queue) == [b"a"]
    waiting = asyncio.ensure_future(queue.lease(1, wait=60))
    await asyncio.sleep(0)
    await queue.configure(rate=1000)
    [lease] = await waiting
    assert lease.body == b"b"


@timed
async def test_a_group_hears_of_another_rate(m: Millrace, clock: Clock) -> None:
    clock.stop()
    for group_rate in (0, 10):
        queue = await m.queue(f"calls{group_rate}", order="fair", group_rate=0.0001, group_burst=2)
        await queue.publish_many([Message(b"%d" % at, group="g") for at in range(5)])
        leases = await queue.lease(5)
        await leases[0].release()
        await leases[1].settle()
        assert await bodies(queue) == []
        await queue.configure(group_rate=group_rate)
        taken = await bodies(queue)
        clock.forward(seconds=0.1)
        assert taken + await bodies(queue) == [b"0"]
        explained = await queue.explain(3)
        assert explained.state == "limited", "those that never were in flight follow in a while"
        assert explained.until_ms is not None
        assert explained.until_ms <= clock() + token_bucket.WAIT_MS_MAX
        clock.forward(seconds=(explained.until_ms - clock()) / 1000)
        assert await bodies(queue, 1) == [b"2"]


def test_a_queue_becomes_fair_with_what_is_in_it(tmp_path: Path) -> None:
    async def change() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("mail")
            await queue.publish_many([b"1", b"2", b"3"])
            await queue.lease(seconds=3600)
            await queue.publish(b"late", delay=1000)
            with pytest.raises(errors.Full) as refused:
                await queue.configure(order="fair")
            assert (refused.value.field, refused.value.limit) == (
                "order",
                limits.REORDERED_MESSAGES_MAX,
            )
            await queue.purge()
            await queue.publish_many([b"1", b"2", b"3", b"4"])
            [first, _] = await queue.lease(2, seconds=3600)
            assert (await queue.configure(order="fair")).order == "fair"
            await queue.publish_many([Message(b"a%d" % at, group="a") for at in range(3)])
            await first.release()

    async def go_on() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("mail", order="fair")
            assert await bodies(queue, 2) == [b"1", b"a0"]
            assert await bodies(queue) == [b"3", b"4", b"a1", b"a2"]
            assert (await queue.explain(6)).state == "leased"
            with pytest.raises(errors.Invalid, match="fixed"):
                await queue.configure(order="none")
            shards = await m.queue("shards", shards=2)
            with pytest.raises(errors.Invalid, match="one shard"):
                await shards.configure(order="fair")

    run(change())
    run(go_on())
