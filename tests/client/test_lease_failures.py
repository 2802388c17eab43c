"""Failures: retries with delays, limits, discards, and dead letters."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from millrace import Message, errors
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from tests.client.harness import Clock, embedded, eventually, opened, run, timed


async def one(queue: Queue) -> Lease:
    [lease] = await queue.lease(1)
    return lease


async def arrived(queue: Queue, count: int) -> bool:
    return (await queue.stats())["published"] == count


@timed
async def test_a_release_with_a_delay_leaves_the_message_alone(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders")
    await queue.publish(b"a")
    await (await one(queue)).release(delay=60)
    assert await queue.lease(1) == []
    assert (await queue.explain(1)).state == "delayed"
    clock.forward(seconds=60)
    assert (await one(queue)).body == b"a"


@timed
async def test_failures_make_the_next_attempt_wait(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("orders", retry_min=10, retry_max=15)
    await queue.publish(b"a")
    for delay in (10, 15, 15):
        await (await one(queue)).release(failed=True)
        clock.forward(seconds=delay - 1)
        assert await queue.lease(1) == []
        clock.forward(seconds=1)
    assert (await one(queue)).failures == 3


@embedded
async def test_a_lease_call_waits_for_the_end_of_a_delay(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"a")
    await (await one(queue)).release(delay=0.2)
    [lease] = await queue.lease(1, wait=30)
    assert lease.body == b"a"


@embedded
async def test_what_failed_too_often_arrives_in_the_dead_letter_queue(m: Millrace) -> None:
    dead = await m.queue("dead")
    queue = await m.queue("orders", max_failures=2, dead_letter="dead")
    await queue.publish(b"poison", key="k", headers={"a": "b"})
    for _ in range(2):
        await (await one(queue)).release(failed=True)
    await eventually(lambda: arrived(dead, 1))
    letter = await one(dead)
    assert (letter.body, letter.key) == (b"poison", b"k")
    told = dict(letter.headers)
    assert int(told.pop("millrace-dead-time")) <= letter.time_ms
    assert told == {
        "a": b"b",
        "millrace-dead-queue": b"default/orders",
        "millrace-dead-seq": b"1",
        "millrace-dead-reason": b"failures",
        "millrace-dead-deliveries": b"2",
        "millrace-dead-failures": b"2",
    }
    stats = await queue.stats()
    assert (stats["live"], stats["dead_lettered"]) == (0, 1)


@timed
async def test_a_dead_letter_tells_when_it_was_published_first(m: Millrace, clock: Clock) -> None:
    clock.stop()
    last = await m.queue("last")
    dead = await m.queue("dead", dead_letter="last")
    queue = await m.queue("orders", dead_letter="dead")
    forged = {"millrace-dead-time": "9" * 99}
    await queue.publish_many([b"a", Message(b"b", headers=forged)])
    published_ms = clock()
    for source, target in ((queue, dead), (dead, last)):
        clock.forward(seconds=60)
        await source.discard(await source.lease(2))
        await eventually(partial(arrived, target, 2))
    letters = await last.peek(2)
    assert [letter.time_ms for letter in letters] == [published_ms + 120_000] * 2
    told = [dict(letter.headers)["millrace-dead-time"] for letter in letters]
    assert told == [b"%d" % published_ms] * 2
    await last.redrive(to="orders").run()
    again = await one(queue)
    assert (again.headers, again.time_ms) == ((), published_ms + 120_000)


@embedded
async def test_a_discard_without_a_dead_letter_queue_drops_the_message(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"a")
    lease = await one(queue)
    await lease.discard()
    await lease.discard()
    with pytest.raises(errors.Stale):
        await lease.settle()
    stats = await queue.stats()
    assert (stats["live"], stats["dropped"]) == (0, 1)


@embedded
async def test_discards_in_a_transaction_and_of_many(m: Millrace) -> None:
    dead = await m.queue("dead")
    queue = await m.queue("orders", dead_letter="dead")
    await queue.publish_many([b"%d" % n for n in range(5_000)])
    leases = await queue.lease(5_000)
    async with m.transaction() as t:
        t.discard(leases[:10])
        t.publish("dead", b"beside")
    assert await queue.discard(leases[10:]) == {}
    await eventually(lambda: arrived(dead, 5_001))
    bodies = {row.body for row in await dead.peek(10_000)}
    assert bodies == {b"beside", *(b"%d" % n for n in range(5_000))}
    assert (await queue.stats())["live"] == 0


@embedded
async def test_without_its_queue_a_dead_letter_waits(m: Millrace) -> None:
    await m.queue("dead")
    queue = await m.queue("orders", dead_letter="dead")
    await queue.publish(b"a")
    await m.delete_queue("dead")
    await (await one(queue)).discard()
    assert (await queue.explain(1)).state == "doomed"
    dead = await m.queue("dead")
    await eventually(lambda: arrived(dead, 1))


def test_a_dead_letter_survives_a_restart_on_its_way(tmp_path: Path) -> None:
    async def discard() -> None:
        async with opened(tmp_path) as m:
            await m.queue("dead")
            queue = await m.queue("orders", dead_letter="dead")
            await queue.publish(b"a")
            await m.delete_queue("dead")
            await (await one(queue)).discard()

    async def find() -> None:
        async with opened(tmp_path) as m:
            dead = await m.queue("dead")
            await eventually(lambda: arrived(dead, 1))
            assert (await one(dead)).body == b"a"

    run(discard())
    run(find())


@embedded
async def test_settings_of_failures_are_kept_and_changed(m: Millrace) -> None:
    await m.queue("dead")
    queue = await m.queue("orders", max_deliveries=3, dead_letter="dead", retry_min=0.5)
    spec = await queue.spec()
    assert (spec.max_deliveries, spec.dead_letter, spec.retry_min_ms) == (3, "default/dead", 500)
    changed = await queue.configure(max_deliveries=0, dead_letter="")
    assert (changed.max_deliveries, changed.dead_letter, changed.retry_min_ms) == (0, "", 500)
    with pytest.raises(errors.Exists, match="max_deliveries is 0"):
        await m.queue("orders", max_deliveries=3)


@embedded
async def test_settings_that_no_queue_takes(m: Millrace) -> None:
    with pytest.raises(errors.NotFound) as missing:
        await m.queue("orders", dead_letter="nowhere")
    assert missing.value.field == "dead_letter"
    queue = await m.queue("orders")
    with pytest.raises(errors.Invalid) as own:
        await queue.configure(dead_letter="orders")
    assert own.value.field == "dead_letter"
    for name, value in (("max_failures", -1), ("max_deliveries", 1.5), ("retry_min", -1)):
        with pytest.raises(errors.Refused) as refused:
            await queue.configure(**{name: value})  # type: ignore[arg-type]
        assert refused.value.field == name
    with pytest.raises(errors.Invalid) as unknown:
        await queue.configure(max_failure=3)  # type: ignore[call-arg]
    assert unknown.value.field == "max_failure"
    assert "max_failures" in str(unknown.value)


@embedded
async def test_who_never_saw_a_message_was_not_handed_it(m: Millrace) -> None:
    """A cancelled lease call counts no delivery."""
    queue = await m.queue("orders", max_deliveries=1)
    await queue.publish_many([b"a", b"b"])
    async for lease in queue.work(batch=2):
        await lease.settle()
        break
    await eventually(lambda: _is_back(queue, 2))
    assert (await one(queue)).deliveries == 1


async def _is_back(queue: Queue, seq: int) -> bool:
    return (await queue.explain(seq)).state == "returned"
