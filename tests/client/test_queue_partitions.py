"""Partition locks, and messages by their ids, through the API."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from millrace import errors
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from millrace.core.format.message_id import IDS
from millrace.core.state.partition_state import slice_of
from tests.client.harness import Clock, embedded, opened, run, timed


def parts(leases: list[Lease], count: int) -> set[int]:
    """Return the partitions that messages come from."""
    return {slice_of(lease.id or 0, count) for lease in leases}


@timed
async def test_d2_every_partition_is_served_before_any_twice(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("jobs", delivery="partitions", partitions_min=5, partitions_max=5)
    ids = await queue.publish_many([b"%d" % at for at in range(200)])
    assert len({slice_of(one, 5) for one in ids}) == 5
    for _ in range(3):
        served: list[int] = []
        for _ in range(5):
            leases = await queue.lease(3, seconds=30)
            [part] = parts(leases, 5)
            served.append(part)
            assert len(leases) == 3
        assert sorted(served) == [0, 1, 2, 3, 4]
        assert await queue.lease(3) == []
        clock.forward(seconds=30)


@embedded
async def test_d2_ids_are_63_bits_and_told_by_publish_and_lease(m: Millrace) -> None:
    queue = await m.queue("jobs", delivery="partitions")
    first = await queue.publish(b"a", producer="p", number=1)
    assert first is not None
    assert 0 <= first < IDS
    # A repeat is told the same.
    assert await queue.publish(b"a", producer="p", number=1) == first
    others = await queue.publish_many([b"x"] * 100)
    assert len({first, *others}) == 101
    leases = await queue.lease(1000)
    assert {lease.id for lease in leases} == {first, *others}
    plain = await m.queue("plain")
    await plain.publish(b"x")
    assert (await plain.lease())[0].id is None


@embedded
async def test_d2_their_number_follows_the_load(m: Millrace) -> None:
    queue = await m.queue("jobs", delivery="partitions", partitions_max=3)
    await queue.publish_many([b"x"] * 300)
    assert await queue.partitions() == 1
    for count in (1, 2, 3):
        held = [await queue.lease(1) for _ in range(count)]
        assert all(held)
        assert await queue.partitions() == count
        for leases in held:
            await queue.settle(leases)
    held = [await queue.lease(1) for _ in range(3)]
    assert await queue.lease(1) == []
    for leases in held:
        await queue.settle(leases)
    await queue.configure(partitions_max=2)
    assert await queue.partitions() == 2
    await queue.configure(partitions_min=2_000, partitions_max=4_096)
    assert await queue.partitions() == 2_000
    await queue.configure(partitions_min=1, partitions_max=1)
    assert await queue.partitions() == 1
    assert len(await queue.lease(1000)) == 300 - 1 - 2 - 3 - 3


@timed
async def test_d2_partitions_that_are_not_needed_go_by_age(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("jobs", delivery="partitions", partitions_max=8, partition_age=3600)
    await queue.configure(partitions_min=8)
    await queue.configure(partitions_min=1)
    await queue.publish_many([b"x"] * 100)
    assert await queue.partitions() == 8
    await queue.lease(1, seconds=60)
    await queue.lease(1, seconds=60)
    clock.forward(seconds=3600)
    await queue.lease(1)
    assert await queue.partitions() == 2


@timed
async def test_d3_a_batch_locks_its_partition_for_its_time(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("jobs", delivery="partitions", partitions_max=1)
    await queue.publish_many([b"a", b"b", b"c"])
    first = await queue.lease(2, seconds=30)
    await queue.publish(b"fresh")
    assert await queue.lease(10) == []
    explained = await queue.explain(4)
    assert (explained.state, explained.lease) == ("blocked", first[0].version)
    clock.forward(seconds=29.999)
    assert await queue.lease(10) == []
    clock.forward(seconds=0.001)
    # What was not deleted comes back.
    assert len(await queue.lease(10)) == 4


@embedded
async def test_d3_empty_read_does_not_lock(m: Millrace) -> None:
    queue = await m.queue("jobs", delivery="partitions", partitions_max=1)
    assert await queue.lease(10) == []
    await queue.publish(b"a")
    assert len(await queue.lease(10)) == 1


@embedded
async def test_d3_a_partition_is_free_when_all_of_its_call_has_ended(m: Millrace) -> None:
    queue = await m.queue("jobs", delivery="partitions", partitions_max=1)
    await queue.publish_many([b"a", b"b", b"c"])
    one, two = await queue.lease(2)
    waiting = asyncio.create_task(queue.lease(10, wait=60))
    await one.settle()
    assert await queue.lease(10) == []
    assert not waiting.done()
    await two.release()
    assert len(await waiting) == 2


@timed
async def test_d3_a_waiting_call_is_woken_when_the_lock_is_over(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("jobs", delivery="partitions", partitions_max=1)
    await queue.publish_many([b"a", b"b"])
    [first] = await queue.lease(1, seconds=0.05)
    assert len(await queue.lease(2, wait=60)) == 2
    assert clock() >= first.deadline_ms


KILLED = """
import asyncio, sys, millrace
async def main():
    async with millrace.open(sys.argv[1]) as m:
        queue = await m.queue("jobs", delivery="partitions", partitions_min=3, partitions_max=3)
        await queue.publish_many([b"x"] * 90)
        leases = await queue.lease(5, seconds=3600)
        print(*[lease.id for lease in leases], flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


@pytest.mark.process
def test_d3_locks_survive_a_kill(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        held = list(map(int, program.stdout.readline().split()))
        program.kill()
    assert len(held) == 5
    [locked] = {slice_of(one, 3) for one in held}

    async def main() -> None:
        clock = Clock()
        async with opened(tmp_path / "data", clock=clock) as m:
            queue = await m.find("jobs")
            # Nor is its turn forgotten: the two others go first, and then nothing is free.
            served = parts(await queue.lease(100), 3) | parts(await queue.lease(100), 3)
            assert served == {0, 1, 2} - {locked}
            assert await queue.lease(100) == []
            clock.forward(seconds=3600)
            again = await queue.lease(100)
            assert parts(again, 3) == {locked}
            assert {lease.id for lease in again} >= set(held)

    run(main())


@embedded
async def test_d4_get_and_delete_by_id(m: Millrace) -> None:
    queue = await m.queue("jobs", delivery="partitions", partitions_max=1)
    ids = list(await queue.publish_many([b"%d" % at for at in range(10)]))
    row = await queue.get(id=ids[3])
    assert row is not None
    assert (row.seq, row.body) == (4, b"3")
    assert await queue.delete([ids[0]]) == 1
    assert await queue.delete(ids=[ids[0], ids[1], ids[2], 17]) == 2
    assert await queue.get(id=ids[0]) is None
    assert await queue.get(id=17) is None
    # A batch is leased and deleted, as Dynamiq's workers do.
    leases = await queue.lease(5)
    assert await queue.delete([lease.id or 0 for lease in leases]) == 5
    await queue.settle(leases)
    rest = await queue.lease(5)
    assert len(rest) == 2
    assert await queue.delete([]) == 0
    assert (await queue.stats())["settled"] == 8


@embedded
async def test_d4_deleted_messages_stay_for_retaining_cursors(m: Millrace) -> None:
    queue = await m.queue("jobs", delivery="partitions")
    cursor = await queue.cursor("lake", retain=True)
    ids = await queue.publish_many([b"a", b"b"])
    assert await queue.delete(ids) == 2
    assert await queue.get(id=ids[0]) is None
    snapshot = await cursor.next()
    assert snapshot is not None
    async with snapshot:
        assert [row.body async for row in snapshot.rows()] == [b"a", b"b"]


@embedded
async def test_d4_what_is_no_id(m: Millrace) -> None:
    queue = await m.queue("jobs", delivery="partitions")
    plain = await m.queue("plain")
    for wrong in (-1, IDS, "1", 1.5, None):
        with pytest.raises(errors.Invalid):
            await queue.delete([wrong])  # type: ignore[list-item]
    with pytest.raises(errors.Invalid, match="a list of ids"):
        await queue.delete({1})  # type: ignore[arg-type]
    with pytest.raises(errors.Invalid, match="partitions"):
        await plain.get(id=1)
    with pytest.raises(errors.Invalid, match="partitions"):
        await plain.delete([1])
    with pytest.raises(errors.Invalid, match="seq or by its id"):
        await queue.get()
    with pytest.raises(errors.TooLarge):
        await queue.delete(range(10_001))


@embedded
async def test_topics_and_dead_letters_reach_partitions(m: Millrace) -> None:
    jobs = await m.queue("jobs", delivery="partitions")
    topic = await m.topic("news")
    await topic.subscribe(jobs)
    await topic.publish(b"news", priority=9, delay=60, until_arrived=True)
    await m.queue("work", max_failures=1, dead_letter="jobs")
    work = await m.find("work")
    await work.publish(b"bad")
    [lease] = await work.lease()
    await lease.release(failed=True)
    found: set[bytes] = set()
    while len(found) < 2:
        [lease] = await jobs.lease(wait=30)
        found.add(lease.body)
        await lease.settle()
    assert found == {b"news", b"bad"}


@embedded
async def test_staged_and_replaced_messages_are_in_partitions(m: Millrace) -> None:
    queue = await m.queue("jobs", delivery="partitions")
    await queue.stage("s", [b"a", b"b"])
    ids = await queue.publish_staged(["s"])
    one, two = await queue.lease(5)
    assert {one.id, two.id} == set(ids)
    await two.settle()
    new = await one.replace(b"c")
    assert new.id not in ids
    await new.release()
    [again] = await queue.lease(5)
    assert (again.body, again.id) == (b"c", new.id)


@timed
async def test_messages_of_partitions_expire(m: Millrace, clock: Clock) -> None:
    clock.stop()
    queue = await m.queue("jobs", delivery="partitions", partitions_max=1, ttl=60)
    ids = await queue.publish_many([b"a", b"b", b"c"])
    [held] = await queue.lease(1, seconds=30)
    clock.forward(seconds=61)
    await queue.publish(b"d")
    assert [lease.body for lease in await queue.lease(5)] == [b"d"]
    assert await queue.delete(ids) == 0
    with pytest.raises(errors.Stale):
        await held.settle()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"keyed": True}, "keyed"),
        ({"retention": "log"}, "retention"),
        ({"order": "fair"}, "order"),
        ({"delay": 5}, "delay"),
        ({"shards": 2}, "shards"),
        ({"partitions_min": 11}, "partitions_min"),
        ({"partitions_max": 4_097}, "partitions_max"),
        ({"partitions_min": 0}, "partitions_min"),
    ],
)
def test_what_has_no_meaning_is_refused(
    tmp_path: Path, settings: dict[str, object], field: str
) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            with pytest.raises(errors.Refused) as caught:
                await m.queue("jobs", delivery="partitions", **settings)  # type: ignore[arg-type]
            assert caught.value.field == field
            with pytest.raises(errors.Invalid, match="delivery is 'slices'"):
                await m.queue("jobs", delivery="slices")
            queue = await m.queue("jobs", delivery="partitions")
            with pytest.raises(errors.Invalid, match="fixed"):
                await queue.configure(delivery="messages")
            with pytest.raises(errors.Invalid, match="session"):
                await queue.session().open()

    run(main())
