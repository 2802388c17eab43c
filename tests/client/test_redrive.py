"""Redrive: dead letters return exactly once; the others stay as if nothing had read them."""

from __future__ import annotations

from pathlib import Path

import pytest

import millrace.sync
from millrace import errors, limits
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.redrive import RedriveStats
from millrace.core.model import Row
from tests.client.harness import embedded, eventually


async def make(m: Millrace, *bodies: bytes, source: str = "orders") -> tuple[Queue, Queue]:
    """Make a queue, and its dead letters with these bodies."""
    dead = await m.queue("dead")
    queue = await m.queue(source, dead_letter="dead")
    await queue.publish_many([Message(body, key=body, headers={"h": body}) for body in bodies])
    before = (await dead.stats())["published"]
    await queue.discard(await queue.lease(1_000))

    async def have_arrived() -> bool:
        return (await dead.stats())["published"] == before + len(bodies)

    await eventually(have_arrived)
    return queue, dead


async def bodies(queue: Queue) -> list[bytes | None]:
    return [row.body for row in await queue.peek(10_000)]


@embedded
async def test_they_go_back_to_where_they_came_from(m: Millrace) -> None:
    orders, dead = await make(m, b"a", b"b")
    mail, _ = await make(m, b"c", source="mail")
    assert await dead.redrive().run() == RedriveStats(total=3, moved=3)
    assert (await bodies(orders), await bodies(mail), await bodies(dead)) == (
        [b"a", b"b"],
        [b"c"],
        [],
    )
    first, _ = await orders.lease(2)
    assert (first.key, first.headers) == (b"a", (("h", b"a"),))
    assert (first.deliveries, first.failures) == (1, 0)
    assert (await dead.stats())["settled"] == 3
    assert await dead.redrive().run() == RedriveStats()


@embedded
async def test_those_that_are_not_meant_stay_as_they_were(m: Millrace) -> None:
    orders, dead = await make(m, b"a", b"b", b"c", b"d")
    await dead.configure(max_deliveries=1)
    seen: list[int] = []

    def where(row: Row) -> bool:
        seen.append(row.seq)
        return row.body in (b"b", b"d")

    assert await dead.redrive(where=where).run() == RedriveStats(total=2, moved=2, kept=2)
    assert seen == [1, 2, 3, 4]
    assert await bodies(orders) == [b"b", b"d"]
    left = await dead.lease(9)
    assert [(lease.body, lease.deliveries) for lease in left] == [(b"a", 1), (b"c", 1)]


@embedded
async def test_they_go_elsewhere_and_are_edited(m: Millrace) -> None:
    orders, dead = await make(m, b"a")
    await dead.publish(b"no dead letter")
    other = await m.queue("other", space="shop")
    driving = dead.redrive(
        to="shop/other",
        edit=lambda message: Message(bytes(message.body or b"") * 2, "k", {"by": "hand"}),
    )
    assert await driving.run() == RedriveStats(total=2, moved=2)
    rows = await other.peek()
    assert [row.body for row in rows] == [b"aa", b"no dead letterno dead letter"]
    assert (rows[0].key, rows[0].headers) == (b"k", (("by", b"hand"),))
    assert await bodies(orders) == []


@embedded
async def test_a_dry_run_counts_and_moves_nothing(m: Millrace) -> None:
    orders, dead = await make(m, b"a", b"b", b"c")
    driving = dead.redrive(where=lambda row: row.body != b"b", dry_run=True)
    assert await driving.run() == RedriveStats(total=2, kept=1)
    assert (await bodies(orders), await bodies(dead)) == ([], [b"a", b"b", b"c"])
    assert [lease.deliveries for lease in await dead.lease(9)] == [1, 1, 1]


@embedded
async def test_what_is_no_dead_letter_has_no_way_back(m: Millrace) -> None:
    _, dead = await make(m, b"a")
    await dead.publish(b"by hand")
    assert await dead.redrive().run() == RedriveStats(total=1, moved=1, kept=1, aimless=1)
    assert await bodies(dead) == [b"by hand"]


def by_pipeline(
    body: bytes, key: bytes | None, queue: str = "default/orders", **more: str
) -> Message:
    """Publish a dead letter as a pipeline does."""
    headers = [
        ("trace", b"1"),
        ("millrace-pipeline", b"orders"),
        ("millrace-step", b"parsed"),
        ("millrace-broken", b"short"),
        ("millrace-queue", queue.encode()),
        ("millrace-shard", b"0"),
        ("millrace-seq", b"7"),
    ]
    headers += [(f"millrace-{name}", text.encode()) for name, text in more.items()]
    return Message(body, key, headers)


@embedded
async def test_letters_of_a_pipeline_go_back_under_their_keys(m: Millrace) -> None:
    orders = await m.queue("orders", keyed=True, retention="log")
    await orders.publish_many([Message(b"old", b"gone"), Message(b"old", b"a")])
    bad = await m.queue("bad")
    await bad.publish_many(
        [by_pipeline(b"1", b"a"), by_pipeline(b"2", b"b"), by_pipeline(b"", b"gone", op="delete")]
    )
    assert await bad.redrive().run() == RedriveStats(total=3, moved=3)
    rows = {row.key: (row.body, row.headers) for row in await orders.peek()}
    trace = (("trace", b"1"),)
    assert rows == {b"a": (b"1", trace), b"b": (b"2", trace), b"gone": (None, trace)}


@embedded
async def test_a_letter_of_a_pipeline_that_died_again_goes_back_step_by_step(m: Millrace) -> None:
    orders = await m.queue("orders")
    worse = await m.queue("worse")
    bad = await m.queue("bad", dead_letter="worse")
    letter = by_pipeline(b"1", b"a")
    await bad.publish_many([letter])
    await bad.discard(await bad.lease(1))

    async def has_arrived() -> bool:
        return (await worse.stats())["published"] == 1

    await eventually(has_arrived)
    assert (await worse.redrive().run()).moved == 1
    [row] = await bad.peek()
    assert row.headers == tuple(letter.headers)
    assert (await bad.redrive().run()).moved == 1
    [row] = await orders.peek()
    assert (row.key, row.body, row.headers) == (b"a", b"1", (("trace", b"1"),))


@embedded
async def test_a_letter_of_a_pipeline_does_not_choose_another_space(m: Millrace) -> None:
    other = await m.queue("orders", space="other")
    await m.queue("orders")
    bad = await m.queue("bad")
    await bad.publish_many([by_pipeline(b"1", b"a", "other/orders")])
    stats = await bad.redrive().run()
    assert stats == RedriveStats(kept=1, aimless=1)
    assert "reads other/orders, a queue of another space" in stats.reason
    assert (await bad.redrive(to="other/orders").run()).moved == 1
    [row] = await other.peek()
    assert (row.key, row.body, row.headers) == (b"a", b"1", (("trace", b"1"),))


@embedded
async def test_a_redrive_that_moves_nothing_says_why(m: Millrace) -> None:
    _, dead = await make(m, b"a")
    held = await dead.lease(1)
    stats = await dead.redrive().run()
    assert (stats.moved, stats.reason) == (0, "others have leased the messages, or moved them")
    await dead.release(held)
    stats = await dead.redrive(where=lambda row: False).run()
    assert stats.reason == "no message is among those that are to be moved"
    stats = await dead.redrive(dry_run=True).run()
    assert (stats.total, stats.reason) == (1, "")
    stats = await dead.redrive().run()
    assert (stats.moved, stats.reason) == (1, "")
    assert (await dead.redrive().run()).reason == "the queue has no messages"
    await dead.publish(b"by hand")
    for dry_run in (True, False):
        stats = await dead.redrive(dry_run=dry_run).run()
        assert stats.reason.startswith("no message names the queue that it came from")
    assert "reason='no message names" in repr(stats)


@embedded
async def test_what_comes_meanwhile_is_left_for_another_time(m: Millrace) -> None:
    orders, dead = await make(m, *(b"%d" % number for number in range(3)))
    steps: list[RedriveStats] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "REDRIVE_MESSAGES_MAX", 1)
        async for stats in dead.redrive():
            steps.append(stats)
            if stats.moved:
                # It failed again, and is back while the others are still moved.
                await (await orders.lease(1))[0].discard()
    assert steps == [RedriveStats(total=3, moved=moved) for moved in range(4)]
    assert (await orders.stats())["published"] == 6


@embedded
async def test_it_may_be_left_at_any_time(m: Millrace) -> None:
    count = 1_200
    orders, dead = await make(m, *(b"%d" % number for number in range(1_000)))
    await make(m, *(b"%d" % number for number in range(1_000, count)))
    await dead.configure(max_deliveries=1)
    driving = dead.redrive(where=lambda row: row.seq % 2 == 0)
    async for stats in driving:
        if stats.moved:
            break
    await driving.close()
    assert 0 < stats.moved < stats.total
    assert (await orders.stats())["live"] == stats.moved
    assert len(await bodies(dead)) == count - stats.moved
    await dead.redrive().run()
    assert await bodies(dead) == []
    found = await bodies(orders)
    assert sorted(found, key=lambda body: int(body or b"0")) == [b"%d" % n for n in range(count)]
    with pytest.raises(StopAsyncIteration):
        await anext(driving)


@embedded
async def test_one_that_somebody_works_on_is_left_to_them(m: Millrace) -> None:
    orders, dead = await make(m, b"a", b"b")
    [held] = await dead.lease(1)
    assert await dead.redrive().run() == RedriveStats(total=2, moved=1)
    assert await bodies(orders) == [b"b"]
    await held.settle()


@embedded
async def test_without_their_queue_they_stay(m: Millrace) -> None:
    _, dead = await make(m, b"a", b"b")
    await m.delete_queue("orders")
    with pytest.raises(errors.NotFound) as missing:
        await dead.redrive().run()
    assert missing.value.field == "to"
    assert await bodies(dead) == [b"a", b"b"]

    async def are_back() -> bool:
        return (await dead.explain(2)).state == "returned"

    await eventually(are_back)
    assert [lease.deliveries for lease in await dead.lease(9)] == [1, 1]


@embedded
async def test_a_full_queue_takes_what_fits_and_the_others_stay(m: Millrace) -> None:
    orders, dead = await make(m, *(b"%d" % number for number in range(7)))
    await orders.configure(max_messages=3)
    await orders.publish(b"there")
    driving = dead.redrive()
    with pytest.raises(errors.Full) as full:
        await driving.run()
    assert (full.value.field, full.value.limit) == ("max_messages", 3)
    assert driving.stats == RedriveStats(total=7, moved=2)
    assert await bodies(orders) == [b"there", b"0", b"1"]
    assert await bodies(dead) == [b"2", b"3", b"4", b"5", b"6"]
    await orders.configure(max_messages=0)
    # What was not moved was not handed out, and goes when there is room.
    assert await dead.redrive().run() == RedriveStats(total=5, moved=5)
    assert (await dead.stats())["settled"] == 7


@embedded
async def test_who_is_dropped_to_make_room_comes_back_and_is_left_for_another_time(
    m: Millrace,
) -> None:
    orders, dead = await make(m, *(b"%d" % number for number in range(7)))
    await orders.configure(max_messages=3, overflow="drop")
    assert await dead.redrive().run() == RedriveStats(total=7, moved=7)

    async def are_back() -> bool:
        return len(await bodies(dead)) == 4

    await eventually(are_back)
    found = [*await bodies(orders), *await bodies(dead)]
    assert sorted(body or b"" for body in found) == [b"%d" % number for number in range(7)]


@embedded
async def test_functions_that_fail_move_nothing_more(m: Millrace) -> None:
    orders, dead = await make(m, b"a", b"b")

    def fail(_: object) -> bool:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await dead.redrive(where=fail).run()
    with pytest.raises(ValueError, match="no"):
        await dead.redrive(edit=fail).run()  # type: ignore[arg-type]
    with pytest.raises(errors.Invalid) as wrong:
        await dead.redrive(edit=lambda message: None).run()  # type: ignore[arg-type,return-value]
    assert wrong.value.field == "edit"
    assert (await bodies(orders), await bodies(dead)) == ([], [b"a", b"b"])


@embedded
async def test_what_cannot_be_asked_for(m: Millrace) -> None:
    _, dead = await make(m, b"a")
    for field, value in (
        ("rate", 0),
        ("rate", -1),
        ("rate", float("nan")),
        ("rate", "fast"),
        ("rate", 1e12),
        ("to", ""),
        ("to", "a/b/c"),
        ("to", 7),
        ("where", "all"),
        ("edit", 1),
        ("dry_run", "yes"),
    ):
        with pytest.raises(errors.Refused) as refused:
            dead.redrive(**{field: value})  # type: ignore[arg-type]
        assert refused.value.field == field, value
    with pytest.raises(errors.NotFound):
        await dead.redrive(to="nowhere").run()
    with pytest.raises(errors.Invalid):
        await dead.redrive(to="dead").run()
    assert await bodies(dead) == [b"a"]


def test_a_blocking_program_redrives(tmp_path: Path) -> None:
    with millrace.sync.open(tmp_path / "data") as m:
        dead = m.queue("dead")
        orders = m.queue("orders", dead_letter="dead")
        orders.publish_many([b"a", b"b"])
        orders.discard(orders.lease(2))
        letters = dead.lease(2, wait=30)
        while len(letters) < 2:
            letters += dead.lease(2, wait=30)
        dead.release(letters)
        steps = [stats.moved for stats in dead.redrive()]
        assert steps[0] == 0
        assert steps[-1] == 2
        assert dead.redrive(dry_run=True).run().total == 0
        assert [row.body for row in orders.peek()] == [b"a", b"b"]
