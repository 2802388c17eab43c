"""De-duplication ids: a repeat returns the first result, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import errors
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.core import bounds
from tests.client.harness import Clock, embedded, eventually, opened, run, timed


@embedded
async def test_a_repeat_has_the_seq_of_the_first(m: Millrace) -> None:
    queue = await m.queue("mail")
    assert await queue.publish(b"a", dedup="x") == 1
    assert await queue.publish(b"b", dedup="x") == 1
    assert await queue.publish(b"c", dedup="y") == 2
    [lease] = await queue.lease()
    await lease.settle()
    assert await queue.publish(b"d", dedup="x") == 1, "settled, and still remembered"
    rows: list[bytes | Message] = [
        Message(b"e", dedup="y"),
        b"f",
        Message(b"g", dedup="z"),
        Message(b"h", dedup="z"),
    ]
    assert list(await queue.publish_many(rows)) == [2, 3, 4, 4]
    assert await queue.publish_many([Message(b"i", dedup="z"), Message(b"j", dedup="y")]) == (4, 2)
    assert [row.body for row in await queue.peek()] == [b"c", b"f", b"g"]
    assert (await queue.stats())["published"] == 4


@timed
async def test_an_id_is_forgotten_after_the_queues_time(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("mail", dedup=60)
    assert await queue.publish(b"a", dedup="x") == 1
    clock.forward(seconds=59.999)
    assert await queue.publish(b"b", dedup="x") == 1
    clock.forward(seconds=0.001)
    assert await queue.publish(b"c", dedup="x") == 2
    await queue.configure(dedup=0)
    with pytest.raises(errors.Invalid) as refused:
        await queue.publish(b"d", dedup="x")
    assert refused.value.field == "dedup"


@embedded
async def test_a_queue_may_tell_messages_by_their_bodies(m: Millrace) -> None:
    queue = await m.queue("mail", dedup_by_body=True)
    assert await queue.publish(b"a") == 1
    assert await queue.publish(b"a") == 1
    assert list(await queue.publish_many([b"a", b"b", b"b"])) == [1, 2, 2]
    assert await queue.publish(b"a", dedup="other") == 3
    with pytest.raises(errors.Invalid) as refused:
        await m.queue("prices", keyed=True, dedup_by_body=True)
    assert refused.value.field == "dedup_by_body"


@embedded
async def test_what_is_moved_is_never_taken_for_a_repeat(m: Millrace) -> None:
    await m.queue("dead", dedup_by_body=True)
    queue = await m.queue("mail", dedup_by_body=True, dead_letter="dead")
    dead = await m.find("dead")
    await dead.publish(b"a")
    await queue.publish(b"a")
    [lease] = await queue.lease()
    await lease.discard()

    async def have_arrived() -> bool:
        return (await dead.stats())["live"] == 2

    await eventually(have_arrived)
    assert [row.body for row in await dead.peek()] == [b"a", b"a"]
    done = await dead.redrive(where=lambda row: bool(row.headers)).run()
    assert done.moved == 1
    assert [row.body for row in await queue.peek()] == [b"a"]


@embedded
async def test_a_transaction_knows_ids_too(m: Millrace) -> None:
    queue = await m.queue("mail")
    async with m.transaction() as t:
        first = t.publish(queue, b"a", dedup="x")
        again = t.publish(queue, b"b", dedup="x")
        many = t.publish_many(queue, [Message(b"c", dedup="x"), Message(b"d", dedup="y")])
    assert (first.value, again.value, many.value) == (1, 1, (1, 2))


@embedded
async def test_bad_ids_are_refused(m: Millrace) -> None:
    queue = await m.queue("mail")
    for bad in ("", 7, b"x", "é" * 201):
        with pytest.raises((errors.Invalid, errors.TooLarge)) as refused:
            await queue.publish(b"a", dedup=bad)  # type: ignore[arg-type]
        assert refused.value.field == "dedup"
    assert await queue.publish(b"a", dedup="é" * 200) == 1
    with pytest.raises(errors.Invalid):
        await queue.stage("s", [Message(b"a", dedup="x")])
    assert bounds.ID_BYTES_MAX == 400


def test_ids_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("mail")
            rows = [Message(b"%d" % at, dedup=f"id {at}") for at in range(5_000)]
            assert list(await queue.publish_many(rows)) == list(range(1, 5_001))
            await queue.purge()

    async def second() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("mail")
            rows = [Message(b"again", dedup=f"id {at}") for at in range(4_999, 5_002)]
            assert list(await queue.publish_many(rows)) == [5_000, 5_001, 5_002]

    run(first())
    run(second())
