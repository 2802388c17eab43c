"""A queue: publishing, reading, settings."""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa
import pytest

from millrace import errors, limits
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from tests.client.harness import Clock, embedded, eventually, timed

# --- Publish -------------------------------------------------------------------------------------


@embedded
async def test_seqs_follow_each_other(m: Millrace) -> None:
    queue = await m.queue("orders")
    assert await queue.publish(b"one") == 1
    assert await queue.publish_many([b"two", b"three"]) == range(2, 4)
    assert await queue.publish(b"") == 4
    rows = await queue.peek()
    assert [(row.seq, row.body) for row in rows] == [
        (1, b"one"),
        (2, b"two"),
        (3, b"three"),
        (4, b""),
    ]
    assert all(row.time_ms > 0 and row.key is None and row.headers == () for row in rows)


@embedded
async def test_keys_and_headers_come_back(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x", key="schlüssel", headers={"a": b"1", "b": b"\xff"})
    await queue.publish(b"y", key=b"\x00", headers=[("a", "1"), ("a", "2")])
    first, second = await queue.peek()
    assert first.key == "schlüssel".encode()
    assert first.headers == (("a", b"1"), ("b", b"\xff"))
    assert (second.key, second.headers) == (b"\x00", (("a", b"1"), ("a", b"2")))


@embedded
async def test_other_kinds_of_bytes_are_taken(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(bytearray(b"one"))
    await queue.publish_many([Message(memoryview(b"two")), Message(b"three")])
    assert [row.body for row in await queue.peek()] == [b"one", b"two", b"three"]


@embedded
async def test_a_keyed_queue_keeps_the_newest_revision(m: Millrace) -> None:
    queue = await m.queue("prices", keyed=True)
    await queue.publish(b"1", key="a")
    await queue.publish_many([Message(b"1", "b"), Message(b"2", "a"), Message(b"3", "a")])
    assert [(row.key, row.body) for row in await queue.peek()] == [(b"b", b"1"), (b"a", b"3")]
    await queue.publish(None, key="a")
    assert [(row.key, row.body) for row in await queue.peek()] == [(b"b", b"1"), (b"a", None)]
    assert [lease.key for lease in await queue.lease(10)] == [b"b"]
    stats = await queue.stats()
    assert (stats["published"], stats["live"], stats["superseded"]) == (5, 2, 3)


@embedded
async def test_rows_come_in_many_shapes(m: Millrace) -> None:
    queue = await m.queue("orders")
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"3", b"4"]),
            "key": pa.array(["k", None]),
            "headers": pa.array([[{"name": "h", "value": b"v"}], None]),
        }
    )
    await queue.publish_many([Message(b"1", "k", {"h": "v"}), Message(b"2")])
    await queue.publish_many(batch)
    await queue.publish_many(pa.table({"value": pa.chunked_array([[b"5"], [b"6"]])}))
    await queue.publish_many(batch.slice(1).select(["value"]))
    rows = await queue.peek()
    assert [row.body for row in rows] == [b"1", b"2", b"3", b"4", b"5", b"6", b"4"]
    assert [row.key for row in rows[:4]] == [b"k", None, b"k", None]
    assert [row.headers for row in rows[:4]] == [(("h", b"v"),), (), (("h", b"v"),), ()]


@embedded
async def test_a_repeat_changes_nothing(m: Millrace) -> None:
    queue = await m.queue("orders", keyed=True)
    assert await queue.producer("p") == 0
    first = await queue.publish(b"old", key="k", producer="p", number=1)
    many = await queue.publish_many([b"a", b"b"], producer="p", number=2)
    await queue.publish(b"new", key="k", producer="p", number=3)
    assert await queue.publish(b"old", key="k", producer="p", number=1) == first
    assert await queue.publish_many([b"a", b"b"], producer="p", number=2) == many
    assert await queue.producer("p") == 3
    assert (await queue.stats())["published"] == 4
    newest = [row.body for row in await queue.peek() if row.key == b"k"]
    assert newest == [b"new"]


@embedded
async def test_a_gap_names_the_expected_number(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x", producer="p", number=1)
    with pytest.raises(errors.OutOfOrder) as caught:
        await queue.publish(b"x", producer="p", number=3)
    assert caught.value.expected == 2
    await queue.publish(b"x", producer="p", number=caught.value.expected)
    await queue.publish(b"x", producer="rising", number=70, mode="rising")
    await queue.publish(b"x", producer="rising", number=90, mode="rising")
    assert await queue.producer("rising") == 90
    assert await queue.producer("p") == 2


@embedded
async def test_forgotten_numbers_are_still_repeats(m: Millrace) -> None:
    queue = await m.queue("orders")
    for number in range(1, 41):
        await queue.publish(b"x", producer="p", number=number)
    assert await queue.publish(b"x", producer="p", number=1) is None
    assert await queue.publish_many([b"x"], producer="p", number=2) == range(0)
    assert await queue.publish(b"x", producer="p", number=40) == 40
    assert (await queue.stats())["published"] == 40


@embedded
async def test_many_publishers_at_once(m: Millrace) -> None:
    queue = await m.queue("orders")
    seqs = await asyncio.gather(*(queue.publish(b"%d" % n) for n in range(500)))
    assert seqs == list(range(1, 501))
    assert [row.body for row in await queue.peek(500)] == [b"%d" % n for n in range(500)]


# --- Stages --------------------------------------------------------------------------------------


@embedded
async def test_stages_become_visible_at_once(m: Millrace) -> None:
    queue = await m.queue("orders", keyed=True)
    assert await queue.stage("one", [b"1", b"2"]) == 2
    assert await queue.stage("one", [Message(b"3", "k")]) == 3
    assert await queue.stage("two", pa.record_batch({"value": pa.array([b"4"])})) == 1
    assert await queue.peek() == []
    assert await queue.stages() == {"one": 3, "two": 1}
    assert await queue.publish_staged(["two", "one"]) == range(1, 5)
    assert [row.body for row in await queue.peek()] == [b"4", b"1", b"2", b"3"]
    assert await queue.stages() == {}
    with pytest.raises(errors.NotFound, match="one"):
        await queue.publish_staged(["one"])


@embedded
async def test_a_dropped_stage_is_gone(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.stage("one", [b"1"])
    assert await queue.drop_stage("one")
    assert not await queue.drop_stage("one")
    with pytest.raises(errors.NotFound):
        await queue.publish_staged(["one"])
    assert (await queue.stats())["published"] == 0


@embedded
async def test_a_range_is_published_once(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.stage("a", [b"1", b"2"])
    first = await queue.publish_staged(["a"], producer="p", mode="range", after=0, number=10)
    await queue.stage("b", [b"1", b"2"])
    again = await queue.publish_staged(["b"], producer="p", mode="range", after=0, number=10)
    assert (first, again) == (range(1, 3), range(1, 3))
    await queue.publish_many([b"3"], producer="p", mode="range", after=10, number=11)
    with pytest.raises(errors.Refused):
        await queue.publish_many([b"4"], producer="p", mode="range", after=5, number=20)
    assert [row.body for row in await queue.peek()] == [b"1", b"2", b"3"]


# --- Look ----------------------------------------------------------------------------------------


@embedded
async def test_peek_and_get_lease_nothing(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"%d" % n for n in range(1, 31)])
    assert [row.seq for row in await queue.peek()] == list(range(1, 11))
    assert [row.seq for row in await queue.peek(3, after=25)] == [26, 27, 28]
    assert [row.seq for row in await queue.peek(30, after=28)] == [29, 30]
    assert await queue.peek(after=30) == []
    row = await queue.get(7)
    assert row is not None
    assert row.body == b"7"
    assert await queue.get(31) is None
    lease = (await queue.lease())[0]
    assert await queue.get(1) is not None
    await lease.settle()
    assert await queue.get(1) is None
    assert [row.seq for row in await queue.peek(1)] == [2]


@embedded
async def test_explain_says_where_a_message_stands(m: Millrace) -> None:
    queue = await m.queue("orders", keyed=True)
    await queue.publish_many([Message(b"%d" % n, f"k{n}") for n in range(1, 6)])
    await queue.publish(None, key="k5")
    leases = await queue.lease(3)
    await leases[0].settle()
    await leases[1].release()
    await queue.publish(b"new", key="k3")
    found = {seq: (await queue.explain(seq)).state for seq in range(1, 9)}
    assert found == {
        1: "settled",
        2: "returned",
        3: "dead",
        4: "ready",
        5: "dead",
        6: "delete",
        7: "ready",
        8: "unknown",
    }
    lease = (await queue.lease(seconds=40))[0]
    held = await queue.explain(lease.seq)
    assert (held.state, held.deliveries, held.until_ms) == ("leased", 2, lease.deadline_ms)


@embedded
async def test_counters_add_up(m: Millrace) -> None:
    queue = await m.queue("orders", keyed=True)
    await queue.publish_many([Message(b"%d" % n, f"k{n % 7}") for n in range(20)])
    await queue.settle(await queue.lease(3))
    stats = await queue.stats()
    assert stats["published"] == 20
    assert (stats["superseded"], stats["settled"], stats["live"]) == (13, 3, 4)
    await queue.purge()
    stats = await queue.stats()
    assert (stats["purged"], stats["live"]) == (4, 0)
    ends = {name: count for name, count in stats.items() if name not in ("published", "live")}
    assert stats["published"] == stats["live"] + sum(ends.values())


# --- Settings ------------------------------------------------------------------------------------


@embedded
async def test_purge_ends_what_is_there(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 5)
    lease = (await queue.lease())[0]
    assert await queue.purge() == 5
    assert await queue.peek() == []
    assert await queue.lease() == []
    with pytest.raises(errors.Gone):
        await lease.settle()
    assert await queue.publish(b"new") == 6
    assert [row.seq for row in await queue.peek()] == [6]


@embedded
async def test_settings_are_changed_one_by_one(m: Millrace) -> None:
    queue = await m.queue("orders", keyed=True, keep_deletes=5)
    spec = await queue.configure(retention="log")
    assert spec == await queue.spec()
    assert (spec.keyed, spec.retention, spec.keep_deletes_ms) == (True, "log", 5000)
    await queue.publish(b"x", key="k")
    await (await queue.lease())[0].settle()
    assert len(await queue.peek()) == 1
    assert (await queue.configure(keep_deletes=0)).keep_deletes_ms == 0


@embedded
async def test_notes_are_kept_with_a_queue(m: Millrace) -> None:
    queue = await m.queue("orders", notes={"owner": "ada", "tag:stage": "t\u00e9st"})
    assert (await queue.spec()).notes == (("owner", "ada"), ("tag:stage", "t\u00e9st"))
    await m.queue("orders", notes={"owner": "ada"})
    with pytest.raises(errors.Exists, match="notes"):
        await m.queue("orders", notes={"owner": "bob"})
    spec = await queue.configure(notes={"owner": "", "a": "b"})
    assert spec.notes == (("a", "b"), ("tag:stage", "t\u00e9st"))
    assert (await queue.configure(ttl=5)).notes == spec.notes
    with pytest.raises(errors.TooLarge) as many:
        await queue.configure(notes={str(number): "x" for number in range(limits.NOTES_MAX - 1)})
    assert (many.value.field, many.value.limit) == ("notes", limits.NOTES_MAX)
    with pytest.raises(errors.TooLarge) as large:
        await queue.configure(notes={"c": "x" * (limits.NOTES_BYTES_MAX - 5)})
    assert (large.value.field, large.value.limit) == ("notes", limits.NOTES_BYTES_MAX)
    for bad in ([("a", "b")], {"": "x"}, {"a": 1}, {1: "a"}, {"x" * 1025: "y"}, {"a": "\ud800"}):
        with pytest.raises(errors.Refused) as refused:
            await queue.configure(notes=bad)  # type: ignore[arg-type]
        assert refused.value.field == "notes"
    assert await queue.spec() == msgspec.structs.replace(spec, ttl_ms=5000)


@timed
async def test_deletes_go_when_they_are_old(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("orders", keyed=True, keep_deletes=60)
    await queue.publish(b"x", key="k")
    await queue.publish(None, key="k")
    assert [row.body for row in await queue.peek()] == [None]
    clock.forward(seconds=120)

    async def gone() -> bool:
        return await queue.peek() == []

    await eventually(gone)
    assert (await queue.stats())["expired"] == 1
