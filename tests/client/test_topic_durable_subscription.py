"""Subscriptions that outlive their queues: only the server makes them, not a connection."""

from __future__ import annotations

from millrace import Message
from millrace.client.millrace import Millrace
from millrace.client.topic import subscribe_durably
from millrace.core.topic_commands import Subscribe
from millrace.core.topics import filters
from tests.client.harness import embedded, eventually
from tests.client.test_topic import bodies, forwarded


@embedded
async def test_a_durable_subscription_waits_for_its_queue(m: Millrace) -> None:
    topic, dead = await m.topic("orders"), await m.queue("dead")
    for name, letters in (("kept", "default/dead"), ("dropped", "")):
        command = Subscribe(
            name,
            "default",
            "q",
            filters.text({"n": 1}),
            durable=True,
            dead_letter=letters,
            queue_notes=((f"note of {name}", "1"),),
        )
        assert await subscribe_durably(topic, command)
        assert not await subscribe_durably(topic, command)
    rows = [Message(b"%d" % n, headers={"n": str(n)}) for n in (1, 2)]
    sent = await topic.publish_many(rows, until_arrived=True)
    assert sent.queues == {"kept": ["gone", "filtered"], "dropped": ["gone", "filtered"]}
    assert await bodies(dead) == [b"1"]
    states = {one.name: one for one in await topic.subscriptions()}
    counts = [(one.dead_lettered, one.dropped, one.filtered) for one in states.values()]
    assert counts == [(1, 0, 1), (0, 1, 1)]
    assert [one.trouble for one in states.values()] == [
        "there is no queue default/q: messages are dead letters in default/dead",
        "there is no queue default/q: messages are dropped",
    ]
    queue = await m.queue("q", notes={"own": "x"})
    notes = {"own": "x", "note of kept": "1", "note of dropped": "1"}
    assert dict((await queue.spec()).notes) == notes
    [again] = (await topic.publish_many(rows[:1], until_arrived=True)).queues["dropped"]
    assert isinstance(again, int)
    assert await bodies(queue) == [b"1", b"1"]
    assert [one.trouble for one in await topic.subscriptions()] == ["", ""]


@embedded
async def test_a_publisher_hears_what_was_too_large_for_a_queue(m: Millrace) -> None:
    topic, dead = await m.topic("orders"), await m.queue("dead")
    queues = {
        "one": await m.queue("one", message_bytes_max=4),
        "three": await m.queue("three", shards=3, message_bytes_max=4),
    }
    for name in queues:
        command = Subscribe(
            name,
            "default",
            name,
            filters.text({"n": {"exists": True}}),
            durable=True,
            dead_letter="default/dead" if name == "one" else "",
        )
        assert await subscribe_durably(topic, command)
    texts = [b"a", b"large", b"b", b"larger", b"c"]
    rows = [Message(text, key=text, headers={"n": "1"}) for text in texts]
    rows.insert(1, Message(b"out"))
    sent = (await topic.publish_many(rows, until_arrived=True)).queues
    for name, queue in queues.items():
        fates = sent[name]
        assert [fate for fate in fates if isinstance(fate, str)] == ["filtered", "gone", "gone"]
        assert [at for at, fate in enumerate(fates) if fate == "gone"] == [2, 4]
        found = {row.seq: row.body for row in await queue.peek(10)}
        told = {fate: rows[at].body for at, fate in enumerate(fates) if isinstance(fate, int)}
        assert told == found
    assert await bodies(dead) == [b"large", b"larger"]
    states = [
        (one.forwarded, one.filtered, one.dead_lettered, one.dropped, one.trouble)
        for one in await topic.subscriptions()
    ]
    assert states == [(3, 1, 2, 0, ""), (3, 1, 0, 2, "")]


@embedded
async def test_dead_letters_wait_for_a_queue_that_is_full(m: Millrace) -> None:
    topic, dead = await m.topic("orders"), await m.queue("dead", max_messages=1)
    await subscribe_durably(
        topic, Subscribe("s", "default", "q", "", durable=True, dead_letter="default/dead")
    )
    await topic.publish(b"one", until_arrived=True)
    await topic.publish(b"two")

    async def is_held_up() -> bool:
        [one] = await topic.subscriptions()
        return (one.dead_lettered, one.dropped, one.lag) == (
            1,
            0,
            1,
        ) and "holds its 1 messages" in one.trouble

    await eventually(is_held_up)
    [lease] = await dead.lease()
    await lease.settle()
    await forwarded(topic)
    assert await bodies(dead) == [b"two"]
