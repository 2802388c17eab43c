"""Topics: every message reaches each subscribed queue once, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import millrace
from millrace import Message, Settings, Topic, errors, limits
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from tests.client.harness import Clock, embedded, eventually, opened, run, timed

TINY = Settings(segment_bytes=limits.SEGMENT_BYTES_MIN)


async def bodies(queue: Queue) -> list[bytes | None]:
    return [row.body for row in await queue.peek(10_000)]


async def forwarded(topic: Topic) -> None:
    async def is_done() -> bool:
        return (await topic.describe()).lag == 0

    await eventually(is_done)


@embedded
async def test_d1_topic_reaches_every_queue(m: Millrace) -> None:
    topic = await m.topic("orders")
    queues = [await m.queue(f"q{number}") for number in range(3)]
    for queue in queues:
        assert await topic.subscribe(queue)
    sent = await topic.publish(b"a", key="k", headers={"h": "v"}, until_arrived=True)
    assert sent == millrace.Sent(1, {"q0": 1, "q1": 1, "q2": 1})
    many = await topic.publish_many([b"b", b"c"], until_arrived=True)
    assert many == millrace.SentMany(range(2, 4), {f"q{number}": [2, 3] for number in range(3)})
    for queue in queues:
        rows = await queue.peek()
        assert [row.body for row in rows] == [b"a", b"b", b"c"]
        assert (rows[0].key, rows[0].headers) == (b"k", (("h", b"v"),))


@embedded
async def test_d1_direct_enqueue_works_beside_it(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("orders")
    await topic.subscribe(queue)
    await queue.publish(b"direct")
    assert (await topic.publish(b"by topic", until_arrived=True)).queues == {"orders": 2}
    assert await bodies(queue) == [b"direct", b"by topic"]


@embedded
async def test_who_does_not_wait_is_answered_at_once(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("q")
    await topic.subscribe(queue)
    assert await topic.publish(b"a") == millrace.Sent(1, {})
    assert await topic.publish_many([b"b", b"c"]) == millrace.SentMany(range(2, 4), {})
    await forwarded(topic)
    assert await bodies(queue) == [b"a", b"b", b"c"]


@embedded
async def test_a_topic_without_subscriptions_accepts_and_drops(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("q")
    assert await topic.publish(b"lost", until_arrived=True) == millrace.Sent(1, {})
    await topic.subscribe(queue)
    await topic.publish(b"kept", until_arrived=True)
    assert await bodies(queue) == [b"kept"]
    assert (await topic.describe()).published == 2


@embedded
async def test_a_later_subscription_sees_later_messages_alone(m: Millrace) -> None:
    topic, early, late = await m.topic("orders"), await m.queue("early"), await m.queue("late")
    await topic.subscribe(early)
    await topic.publish(b"a")
    await topic.subscribe(late)
    assert (await topic.publish(b"b", until_arrived=True)).queues == {"early": 2, "late": 1}
    assert await bodies(late) == [b"b"]


@embedded
async def test_filters(m: Millrace) -> None:
    topic = await m.topic("orders")
    await m.queue("eu")
    await m.queue("large")
    await topic.subscribe("eu", filter={"to": {"prefix": "eu-"}})
    await topic.subscribe("large", filter={"total": {"numeric": [">=", 100]}})
    sent = await topic.publish_many(
        [
            Message(b"a", headers={"to": "eu-west", "total": "5"}),
            Message(b"b", headers={"to": "us-east", "total": "100"}),
            b"c",
            Message(b"d", headers={"to": "eu-north", "total": "250.5"}),
        ],
        until_arrived=True,
    )
    assert sent.queues == {
        "eu": [1, "filtered", "filtered", 2],
        "large": ["filtered", 1, "filtered", 2],
    }
    assert await bodies(await m.find("eu")) == [b"a", b"d"]
    found = {one.name: one for one in await topic.subscriptions()}
    assert (found["eu"].forwarded, found["eu"].filtered) == (2, 2)
    assert found["large"].filter == {"total": [{"numeric": [">=", 100]}]}


@embedded
async def test_a_bad_filter_is_refused_and_subscribes_nobody(m: Millrace) -> None:
    topic = await m.topic("orders")
    await m.queue("q")
    with pytest.raises(errors.Invalid) as refused:
        await topic.subscribe("q", filter={"to": {"begins": "eu-"}})
    assert refused.value.field == "filter"
    assert await topic.subscriptions() == []


@embedded
async def test_subscribing_again_changes_nothing(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("q")
    assert await topic.subscribe("q", filter={"a": "b"})
    assert not await topic.subscribe(queue, filter={"a": ["b"]})
    with pytest.raises(errors.Exists):
        await topic.subscribe("q")
    assert await topic.subscribe("q", name="all")
    assert (await topic.publish(b"x", until_arrived=True)).queues == {"q": "filtered", "all": 1}
    # Both of them, to the same queue.
    await topic.publish(b"y", headers={"a": "b"}, until_arrived=True)
    assert await bodies(queue) == [b"x", b"y", b"y"]


@embedded
async def test_queues_of_other_spaces(m: Millrace) -> None:
    topic, queue = await m.topic("orders", space="shop"), await m.queue("q", space="books")
    await topic.subscribe(queue)
    assert (await topic.publish(b"x", until_arrived=True)).queues == {"books.q": 1}
    with pytest.raises(errors.NotFound) as refused:
        await topic.subscribe("q")
    assert refused.value.field == "queue"
    assert await m.topics() == []
    assert await m.topics(space="shop") == ["orders"]


@embedded
async def test_deleting_a_queue_ends_its_subscriptions(m: Millrace) -> None:
    topic, other = await m.topic("orders"), await m.queue("other")
    await topic.subscribe(await m.queue("q"))
    await topic.subscribe(other)
    await topic.publish(b"a", until_arrived=True)
    await m.delete_queue("q")
    queue = await m.queue("q")
    assert (await topic.publish(b"b", until_arrived=True)).queues == {"other": 2}
    assert await bodies(queue) == []
    assert [one.name for one in await topic.subscriptions()] == ["other"]


@embedded
async def test_unsubscribing(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("q")
    await topic.subscribe(queue)
    await topic.publish(b"a", until_arrived=True)
    assert await topic.unsubscribe("q")
    assert not await topic.unsubscribe("q")
    await topic.publish(b"b", until_arrived=True)
    assert await bodies(queue) == [b"a"]


@embedded
async def test_deleting_a_topic(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("q")
    await topic.subscribe(queue)
    await topic.publish(b"a", until_arrived=True)
    assert await m.delete_topic("orders")
    again = await m.topic("orders")
    for call in (topic.publish(b"b"), topic.describe(), topic.publish_many([b"b"])):
        with pytest.raises(errors.NotFound) as refused:
            await call
        assert refused.value.field == "topic"
    assert not await topic.delete()
    assert await again.subscriptions() == []
    await again.subscribe(queue)
    await again.publish(b"c", until_arrived=True)
    assert await bodies(queue) == [b"a", b"c"]
    assert await again.delete()
    assert await m.topics() == []


@embedded
async def test_the_longest_names(m: Millrace) -> None:
    space = "s" * limits.NAME_CHARS_MAX
    topic = await m.topic("t" * limits.TOPIC_NAME_CHARS_MAX, space=space)
    queue = await m.queue("q" * limits.NAME_CHARS_MAX, space=space)
    await topic.subscribe(queue)
    await topic.publish(b"a", until_arrived=True)
    assert await bodies(queue) == [b"a"]
    assert await m.topics(space=space) == [topic.name]
    with pytest.raises(errors.TooLarge) as refused:
        await m.topic(topic.name + "t", space=space)
    assert (refused.value.field, refused.value.limit) == ("topic", limits.TOPIC_NAME_CHARS_MAX)


@embedded
async def test_a_name_that_is_near_is_suggested(m: Millrace) -> None:
    await m.topic("orders")
    assert (await m.find_topic("orders")).name == "orders"
    with pytest.raises(errors.NotFound, match="did you mean 'orders'"):
        await m.find_topic("order")


@embedded
async def test_settings(m: Millrace) -> None:
    topic = await m.topic("orders", max_lag=7)
    assert (await topic.describe()).max_lag == 7
    with pytest.raises(errors.Exists):
        await m.topic("orders", max_lag=8)
    await topic.configure(max_lag=8)
    await m.topic("orders", max_lag=8)
    for bad in (0, "x", limits.TOPIC_LAG_MAX + 1):
        with pytest.raises(errors.Refused) as refused:
            await topic.configure(max_lag=bad)  # type: ignore[arg-type]
        assert refused.value.field == "max_lag"


@embedded
async def test_notes_of_topics_and_subscriptions(m: Millrace) -> None:
    queue = await m.queue("a")
    topic = await m.topic("orders", notes={"kind": "fifo"})
    with pytest.raises(errors.Exists, match="notes"):
        await m.topic("orders", notes={"kind": "plain"})
    await m.topic("orders", notes={"kind": "fifo"})
    await topic.configure(notes={"kind": "", "owner": "ada"})
    assert await topic.subscribe(queue, notes={"raw": "yes"})
    assert not await topic.subscribe(queue)
    with pytest.raises(errors.Exists, match="notes"):
        await topic.subscribe(queue, notes={"raw": "no"})
    await topic.configure_subscription("a", notes={"raw": "no"})
    state = await topic.describe()
    assert (state.notes, state.max_lag) == ({"owner": "ada"}, limits.TOPIC_LAG)
    assert [one.notes for one in state.subscriptions] == [{"raw": "no"}]
    with pytest.raises(errors.NotFound):
        await topic.configure_subscription("b", notes={"raw": "no"})
    large = {"x": "y" * limits.SUBSCRIPTION_NOTES_BYTES_MAX}
    with pytest.raises(errors.TooLarge) as refused:
        await topic.configure_subscription("a", notes=large)
    assert (refused.value.field, refused.value.limit) == ("notes", len(large["x"]))


@embedded
async def test_a_filter_is_changed_in_its_place(m: Millrace) -> None:
    queue = await m.queue("a", max_messages=1)
    topic = await m.topic("orders")
    await topic.subscribe(queue, filter={"kind": "x"})
    rows = [(b"1", "x"), (b"2", "x"), (b"3", "y"), (b"4", "z")]
    for body, kind in rows[:2]:
        await topic.publish(body, headers={"kind": kind})

    async def is_full() -> bool:
        return bool((await topic.subscriptions())[0].trouble)

    await eventually(is_full)
    await topic.configure_subscription("a", filter={"kind": ["x", "y"]})
    await queue.configure(max_messages=0)
    for body, kind in rows[2:]:
        await topic.publish(body, headers={"kind": kind}, until_arrived=True)
    assert await bodies(queue) == [b"1", b"2", b"3"]
    await topic.configure_subscription("a", filter={})
    await topic.publish(b"5", until_arrived=True)
    assert await bodies(queue) == [b"1", b"2", b"3", b"5"]
    [found] = await topic.subscriptions()
    assert (found.filter, found.forwarded, found.filtered) == ({}, 4, 1)


@timed
async def test_priority_and_delay_hold_in_the_queue(m: Millrace, clock: Clock) -> None:
    clock.stop()
    topic, queue = await m.topic("orders"), await m.queue("q")
    await topic.subscribe(queue)
    await topic.publish(b"later", delay=60, until_arrived=True)
    await topic.publish(b"short-lived", ttl=30, until_arrived=True)
    await topic.publish_many([b"low", Message(b"high", priority=9)], priority=1, until_arrived=True)
    table = pa.table({"value": [b"table"]})
    await topic.publish_many(table, priority=5, until_arrived=True)
    leases = await queue.lease(10, seconds=600)
    assert [one.body for one in leases] == [b"high", b"table", b"short-lived", b"low"]
    for lease in leases:
        await lease.release()
    clock.forward(seconds=30)
    assert [one.body for one in await queue.lease(10, seconds=600)] == [b"low", b"high", b"table"]
    clock.forward(seconds=60)
    assert [one.body for one in await queue.lease(10)] == [b"later"]


@embedded
async def test_numbers_make_a_publish_to_a_topic_idempotent(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("q")
    await topic.subscribe(queue)
    first = await topic.publish(b"a", producer="p", number=1, until_arrived=True)
    again = await topic.publish(b"a", producer="p", number=1, until_arrived=True)
    assert first == again == millrace.Sent(1, {"q": 1})
    assert await bodies(queue) == [b"a"]


@embedded
async def test_a_message_that_is_known_by_its_id_is_not_forwarded_again(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("q")
    await topic.subscribe(queue)
    first = await topic.publish(b"a", dedup="one", until_arrived=True)
    assert await topic.publish(b"a", dedup="one", until_arrived=True) == first
    many = [Message(b"b", dedup="two"), Message(b"a", dedup="one"), Message(b"c")]
    sent = await topic.publish_many(many, until_arrived=True)
    assert list(sent.seqs) == [2, 1, 3]
    assert sent.queues == {"q": [2, 1, 3]}
    assert await bodies(queue) == [b"a", b"b", b"c"]


@timed
async def test_a_transaction_settles_and_publishes_to_a_topic(m: Millrace, clock: Clock) -> None:
    clock.stop()
    topic, queue, source = await m.topic("orders"), await m.queue("q"), await m.queue("source")
    await topic.subscribe(queue)
    await source.publish(b"in")
    [lease] = await source.lease(1)
    async with m.transaction() as t:
        t.settle(lease)
        seq = t.publish(topic, b"late", delay=60)
        t.publish_many(topic, [b"out", Message(b"first", priority=9)])
    assert seq.value == 1
    await forwarded(topic)
    leases = await queue.lease(10, seconds=600)
    assert [one.body for one in leases] == [b"first", b"out"]
    assert await bodies(source) == []
    t = m.transaction()
    t.publish(topic, b"never")
    t.publish("missing", b"never")
    with pytest.raises(errors.NotFound):
        async with t:
            pass
    clock.forward(seconds=60)
    assert [one.body for one in await queue.lease(10)] == [b"late"]


@embedded
async def test_queues_with_several_shards(m: Millrace) -> None:
    topic = await m.topic("orders")
    keyed = await m.queue("keyed", shards=3)
    spread = await m.queue("spread", shards=2, route="spread")
    await topic.subscribe(keyed)
    await topic.subscribe(spread, filter={"even": "yes"})
    rows = [
        Message(b"%d" % n, key=f"k{n % 7}", headers={"even": "yes"} if n % 2 == 0 else {})
        for n in range(60)
    ]
    sent = await topic.publish_many(rows, until_arrived=True)
    for at, place in enumerate(sent.queues["keyed"]):
        assert isinstance(place, int)
        found = await keyed.get(place)
        assert found is not None
        assert found.body == b"%d" % at
    for at, place in enumerate(sent.queues["spread"]):
        if at % 2:
            assert place == "filtered"
        else:
            assert isinstance(place, int)
            assert (row := await spread.get(place)) is not None
            assert row.body == b"%d" % at
    for n in range(60, 100):
        await topic.publish(b"%d" % n, key=f"k{n % 7}", priority=n % 10)
    await forwarded(topic)
    assert (await keyed.stats())["published"] == 100
    assert (await spread.stats())["published"] == 30
    # The order of each key is that of the topic.
    orders: dict[bytes, list[int]] = {}
    for row in await keyed.peek(1_000):
        orders.setdefault(row.key or b"", []).append(int(row.body or b""))
    assert sorted(map(len, orders.values())) == [14, 14, 14, 14, 14, 15, 15]
    assert all(order == sorted(order) for order in orders.values())
    assert await topic.unsubscribe("spread")
    await m.delete_queue("keyed")
    assert await topic.subscriptions() == []
    assert (await topic.publish(b"x", until_arrived=True)).queues == {}


@embedded
async def test_deletes_are_refused(m: Millrace) -> None:
    topic = await m.topic("orders")
    with pytest.raises(errors.Invalid) as refused:
        await topic.publish(None, key="k")  # type: ignore[arg-type]
    assert refused.value.field == "body"


@embedded
async def test_keyed_queues_and_logs(m: Millrace) -> None:
    topic = await m.topic("orders")
    keyed, log = await m.queue("keyed", keyed=True), await m.queue("log", retention="log")
    await topic.subscribe(keyed)
    await topic.subscribe(log)
    for body in (b"1", b"2"):
        await topic.publish(body, key="k", priority=3, until_arrived=True)
    assert await bodies(keyed) == [b"2"]
    assert await bodies(log) == [b"1", b"2"]


@embedded
async def test_a_waiting_worker_gets_it_at_once(m: Millrace) -> None:
    topic, queue = await m.topic("orders"), await m.queue("q")
    await topic.subscribe(queue)
    waiting = asyncio.create_task(queue.lease(1, wait=30))
    await asyncio.sleep(0)
    await topic.publish(b"a")
    [lease] = await waiting
    assert lease.body == b"a"


@embedded
async def test_many_publishers_keep_the_order_of_the_topic(m: Millrace) -> None:
    topic = await m.topic("orders")
    queues = [await m.queue(f"q{number}") for number in range(4)]
    for queue in queues:
        await topic.subscribe(queue)

    async def publish(who: int) -> list[tuple[int, bytes]]:
        sent: list[tuple[int, bytes]] = []
        for at in range(50):
            body = f"{who}.{at}".encode()
            seq = (await topic.publish(body, until_arrived=at % 7 == 0)).seq
            assert seq is not None
            sent.append((seq, body))
        return sent

    sent = [one for part in await asyncio.gather(*map(publish, range(8))) for one in part]
    await forwarded(topic)
    for queue in queues:
        assert await bodies(queue) == [body for _, body in sorted(sent)]


async def fill(topic: Topic, sizes: Sequence[int]) -> list[bytes]:
    out: list[bytes] = []
    for at, size in enumerate(sizes):
        body = b"%d|" % at + bytes(size)
        await topic.publish(body)
        out.append(body)
    return out


def test_what_was_not_forwarded_is_forwarded_after_a_restart(tmp_path: Path) -> None:
    async def publish() -> None:
        async with opened(tmp_path) as m:
            topic = await m.topic("orders")
            for name in ("a", "b"):
                await m.queue(name)
                await topic.subscribe(name)
            await topic.publish_many([b"%d" % number for number in range(100)])

    async def find() -> None:
        async with opened(tmp_path) as m:
            topic = await m.find_topic("orders")
            await forwarded(topic)
            for name in ("a", "b"):
                assert await bodies(await m.find(name)) == [b"%d" % n for n in range(100)]
            assert (await topic.publish(b"x", until_arrived=True)).queues == {"a": 101, "b": 101}

    run(publish())
    run(find())


def test_a_topic_with_more_than_memory_and_records_hold(tmp_path: Path) -> None:
    """Blocks of all sizes, in a log with small records: they are forwarded in parts."""

    async def main() -> None:
        async with opened(tmp_path, settings=TINY) as m:
            topic = await m.topic("orders")
            queues = [await m.queue(f"q{number}") for number in range(3)]
            for queue in queues:
                await topic.subscribe(queue)
            sent = await fill(topic, [10, 30_000, 5, 20_000, 40_000, 0] * 8)
            await forwarded(topic)
            for queue in queues:
                assert await bodies(queue) == sent

    run(main())


def test_the_blocking_twin(tmp_path: Path) -> None:
    with millrace.sync.open(tmp_path) as m:
        topic, queue = m.topic("orders"), m.queue("q")
        assert topic.subscribe(queue)
        assert topic.publish(b"a", until_arrived=True) == millrace.Sent(1, {"q": 1})
        with m.transaction() as t:
            t.publish(topic, b"b")
        assert topic.publish(b"c", until_arrived=True) == millrace.Sent(3, {"q": 3})
        assert [row.body for row in queue.peek()] == [b"a", b"b", b"c"]
        assert m.topics() == ["orders"]
