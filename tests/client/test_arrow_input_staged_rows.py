"""Staged messages support groups, priorities, delays and TTLs like published ones."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace import errors
from millrace.client.arrow_input import block_of, lives_of, turns_of
from millrace.client.message import Message, stage_rows
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.core.commands import RowSchedule, RowTtl
from tests.client.harness import embedded

PLAIN = (4, None)


@embedded
async def test_priorities_come_first_and_delays_last(m: Millrace) -> None:
    queue = await m.queue("q")
    await queue.stage("s", [Message(b"last", delay=3600), b"usual"], number=1)
    await queue.stage("s", [b"high"], priority=9, number=2)
    await queue.publish_staged(["s"])
    assert [lease.body for lease in await queue.lease(10)] == [b"high", b"usual"]
    assert (await queue.explain(1)).state == "delayed"


@embedded
async def test_rows_of_groups_are_staged_and_take_turns(m: Millrace) -> None:
    queue = await m.queue("q", order="group")
    rows = pa.record_batch(
        {"value": [b"a1", b"a2", b"b1", b"c1"], "group": ["a", "a", "b", None], "key": "..cc"}
        | {"key": pa.array([None, None, None, b"c"])}
    )
    await queue.stage("s", rows)
    await queue.publish_staged(["s"])
    [lease] = await queue.lease(1)
    assert lease.body == b"a1"
    assert {one.body for one in await queue.lease(10)} == {b"b1", b"c1"}


@embedded
async def test_several_shards_know_the_turns_of_theirs(m: Millrace) -> None:
    queue = await m.queue("q", shards=3)
    rows = [Message(b"%d" % n, b"%d" % n, priority=9 if n % 2 else 4) for n in range(20)]
    await queue.stage("s", rows, number=1)
    assert await queue.stage("s", rows, number=1) == 20
    await queue.publish_staged(["s"], producer="p", spans=[(0, 5), (0, 7)])
    assert len(await queue.publish_staged([], producer="p", spans=[(0, 5), (0, 7)])) == 20
    for _ in range(3):
        # Each shard has its own first.
        [first] = await queue.lease(1)
        assert int(first.body) % 2 == 1
    with pytest.raises(errors.OutOfOrder, match=r"\(3, 6\], \(7, 8\] overlaps"):
        await queue.publish_staged([], producer="p", spans=[(3, 6), (7, 8)])


@embedded
async def test_a_queue_that_became_a_log_refuses_what_it_does_not_know(m: Millrace) -> None:
    queue = await m.queue("q")
    await queue.stage("s", [b"a"], delay=5)
    await queue.stage("t", [b"a"], ttl=5)
    await queue.configure(retention="log")
    for stage, field in (("s", "delay"), ("t", "ttl")):
        with pytest.raises(errors.Invalid) as refused:
            await queue.publish_staged([stage])
        assert refused.value.field == field
    assert await queue.peek() == []


@embedded
async def test_what_spans_are(m: Millrace) -> None:
    queue = await _queue(m)
    for spans in ([], [(1,)], [(2, 1)], [(-1, 1)], [(1, 1)], "ab", [(0, 2**63)], [(0, True)]):
        with pytest.raises(errors.Invalid) as refused:
            await queue.publish_staged(["s"], producer="p", spans=spans)  # type: ignore[arg-type]
        assert refused.value.field == "spans"
    with pytest.raises(errors.TooLarge):
        await queue.publish_staged(["s"], producer="p", spans=[(0, 1)] * 129)
    with pytest.raises(errors.Invalid, match="stand in for number"):
        await queue.publish_staged(["s"], producer="p", number=1, spans=[(0, 1)])
    with pytest.raises(errors.Invalid, match="go with producer"):
        await queue.publish_staged(["s"], spans=[(0, 1)])
    with pytest.raises(errors.Invalid, match="name at least one"):
        await queue.publish_staged([])


async def _queue(m: Millrace) -> Queue:
    queue = await m.queue("q")
    await queue.stage("s", [b"a"])
    return queue


def test_runs_are_rows_that_follow_each_other_and_say_the_same() -> None:
    batch = pa.record_batch(
        {
            "value": [b""] * 6,
            "priority": pa.array([None, 9, 9, 4, 0, None], pa.int8()),
            "delay": [None, None, None, None, 1.5, 0],
            "ttl": [3, 3, None, None, 0.0001, None],
        }
    )
    assert turns_of(batch, PLAIN) == (
        RowSchedule(1, 2, 9, None),
        RowSchedule(4, 1, 0, 1500),
        RowSchedule(5, 1, 4, 0),
    )
    assert turns_of(batch.slice(3), (7, 20)) == (
        RowSchedule(0, 1, 4, 20),
        RowSchedule(1, 1, 0, 1500),
        RowSchedule(2, 1, 7, 0),
    )
    assert lives_of(batch, None) == (RowTtl(0, 2, 3000), RowTtl(4, 1, 1))
    assert lives_of(batch, 50) == (
        RowTtl(0, 2, 3000),
        RowTtl(2, 2, 50),
        RowTtl(4, 1, 1),
        RowTtl(5, 1, 50),
    )
    assert lives_of(batch.slice(0, 0), None) == ()


def test_a_group_is_the_first_header() -> None:
    pairs = pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))
    headers = pa.array([[{"name": "millrace-group", "value": b"old"}], None, []], pairs)
    batch = pa.record_batch({"value": [b""] * 3, "headers": headers, "group": ["a", "b", None]})
    block = block_of(batch)
    assert block.headers_of(0) == (("millrace-group", b"a"), ("millrace-group", b"old"))
    assert block.headers_of(1) == (("millrace-group", b"b"),)
    assert block.headers_of(2) == ()


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"group": [1]}, "group"),
        ({"group": [b"g" * 401]}, "group"),
        ({"priority": [10]}, "priority"),
        ({"priority": [-2]}, "priority"),
        ({"priority": [1.0]}, "priority"),
        ({"delay": [-1.0]}, "delay"),
        ({"delay": [float("nan")]}, "delay"),
        ({"delay": ["x"]}, "delay"),
        ({"delay": [1e12]}, "delay"),
        ({"ttl": [-1.0]}, "ttl"),
        ({"other": [1]}, "batch"),
    ],
)
def test_columns_that_are_refused(columns: dict[str, list[object]], field: str) -> None:
    batch = pa.record_batch({"value": [b"x"], **columns})
    with pytest.raises(errors.Refused) as refused:
        stage_rows("s", batch, None, None, None, None)
    assert refused.value.field == field
