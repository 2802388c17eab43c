"""How a stream follows a queue: offsets, limits, commits, and what is refused.

Spark itself is not needed to ask what it would ask.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

import millrace
from millrace import Position
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.snapshot_token import write_snapshot_token
from millrace.core.model import ShardId
from millrace.core.state.fold import Reader
from millrace.errors import CursorExpired, Exists, Fenced, NotFound, Refused, RolledBack, Stale
from millrace.spark.follower import Follower
from millrace.spark.home import QueueEndpoint
from millrace.spark.limit import BatchLimit
from millrace.spark.offset import Offset
from millrace.spark.options import Options
from millrace.spark.start import LATEST, Start, read_start
from tests.server.rest.harness import SMALL

ALL = BatchLimit()


def options(**chosen: object) -> Options:
    return Options(QueueEndpoint(path="here"), "tea", **chosen)  # type: ignore[arg-type]


def run(tmp_path: Path, main: Callable[[millrace.Millrace], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            await main(m)

    asyncio.run(opened())


async def rows(m: millrace.Millrace, follower: Follower, upto: Offset) -> list[tuple[int, int]]:
    """Shard and seq of what the tasks of a batch would read."""
    found: list[tuple[int, int]] = []
    engine, _ = engine_and_shards(await m.find("tea"))
    for part in await follower.plan(m, upto):
        reader = Reader(part.pin, part.retain)
        async for batch in engine.batches(ShardId(part.shard), part.after, part.upto, reader):
            found += [(part.number, seq.as_py()) for seq in batch.column("seq")]
    return found


async def lease_all(queue: Queue) -> None:
    while leases := await queue.lease(1000):
        await queue.settle(leases)


def test_a_cursor_moves_where_spark_has_committed_also_in_mid_snapshot(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 10)
        follower = Follower(options(cursor="lake"))
        start = await follower.begin(m)
        assert start == await follower.begin(m)
        assert await queue.cursors() == {"lake": 0}
        one = await follower.next(m, start, BatchLimit(rows=4))
        assert one is not None
        assert (one.after, one.seqs) == ((0,), (4,))
        assert await queue.cursors() == {"lake": 0}
        await queue.publish_many([b"y"] * 5)
        two = await follower.next(m, one, BatchLimit(rows=100))
        assert two is not None
        # The rest of the snapshot, and nothing that came since.
        assert (two.after, two.seqs, two.ticket == one.ticket) == ((4,), (10,), False)
        assert await queue.cursors() == {"lake": 4}
        assert await rows(m, follower, two) == [(0, seq) for seq in range(5, 11)]
        three = await follower.next(m, two, ALL)
        assert three is not None
        assert (three.after, three.seqs) == ((10,), (15,))
        assert await follower.next(m, three, ALL) is None
        assert await queue.cursors() == {"lake": 15}
        # Spark says so late, and once more.
        await follower.commit(m, three)
        assert (await queue.holders()).held[0].kind == "cursor"

    run(tmp_path, main)


def test_what_workers_settle_is_read_and_an_open_batch_always_has_the_same_rows(
    tmp_path: Path,
) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea", keyed=True)
        await queue.publish_many(
            [millrace.Message(b"1", key=b"a"), millrace.Message(b"1", key=b"b")]
        )
        follower = Follower(options(cursor="lake"))
        one = await follower.next(m, await follower.begin(m), ALL)
        assert one is not None
        await queue.publish(b"2", key=b"a")
        await lease_all(queue)
        for again in (follower, Follower(options(cursor="lake"))):
            # As after a crash: the batch is in the offset log, and not in the commit log.
            assert await rows(m, again, one) == [(0, 1), (0, 2)]
        two = await Follower(options(cursor="lake")).next(m, one, ALL)
        assert two is not None
        assert await rows(m, follower, two) == [(0, 3)]

    run(tmp_path, main)


def test_shards_share_a_limit_by_what_waits_in_them(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea", shards=3, route="key")
        await queue.publish_many(
            [millrace.Message(b"x", key=b"%d" % (at % 7)) for at in range(300)]
        )
        follower = Follower(options())
        offset = await follower.begin(m)
        assert offset.cursor.startswith("spark-")
        read: list[tuple[int, int]] = []
        counts: list[int] = []
        while (found := await follower.next(m, offset, BatchLimit(rows=90))) is not None:
            part = await rows(m, follower, found)
            counts.append(len(part))
            read += part
            offset = found
        assert counts == [90, 90, 90, 30]
        assert len(read) == len(set(read)) == 300
        assert sum((await queue.cursors()).values()) == 300

    run(tmp_path, main)


def test_no_batch_is_empty_where_older_revisions_are_gone(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea", keyed=True)
        for _ in range(50):
            await queue.publish_many([millrace.Message(b"x", key=b"%d" % at) for at in range(10)])
        follower = Follower(options())
        offset = await follower.begin(m)
        counts: list[int] = []
        while (found := await follower.next(m, offset, BatchLimit(rows=4))) is not None:
            counts.append(len(await rows(m, follower, found)))
            offset = found
        assert counts == [4, 4, 2]

    run(tmp_path, main)


def test_a_lost_checkpoint_repeats_the_same_ranges(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea", shards=2)
        await queue.publish_many([b"x"] * 100)
        follower = Follower(options(cursor="lake"))
        one = await follower.next(m, await follower.begin(m), BatchLimit(rows=60))
        assert one is not None
        two = await follower.next(m, one, BatchLimit(rows=60))
        assert two is not None
        await queue.publish_many([b"y"] * 10)
        # The second batch was not committed when it was lost.
        other = Follower(options(cursor="lake", starting=LATEST))
        start = await other.begin(m)
        assert (start.seqs, start.ids) == (one.seqs, one.ids)
        again = await other.next(m, start, BatchLimit(rows=60))
        assert again is not None
        assert (again.after, again.seqs) == (two.after, two.seqs)
        assert await rows(m, other, again) == await rows(m, follower, two)

    run(tmp_path, main)


def test_a_limit_of_bytes_cuts_a_repeat_where_it_did(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea", shards=2)
        await queue.publish_many([b"x" * 100] * 100)
        start = await Follower(options(cursor="lake")).begin(m)
        ends = []
        for _ in range(2):
            found = await Follower(options(cursor="lake")).next(m, start, BatchLimit(bytes=3000))
            assert found is not None
            ends.append(found.seqs)
            # What the average of the queue becomes is of no matter.
            await queue.publish_many([b"y" * 10_000] * 100)
        assert ends[0] == ends[1]
        assert sum(ends[0]) == 30

    run(tmp_path, main)


def test_available_now_ends_where_the_queue_was(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 10)
        follower = Follower(options(cursor="lake"))
        await follower.aim(m)
        await queue.publish_many([b"y"] * 5)
        offset = await follower.begin(m)
        ends = []
        while (found := await follower.next(m, offset, BatchLimit(rows=6))) is not None:
            ends.append(found.seqs)
            offset = found
            await queue.publish(b"more")
        # A snapshot is taken whole, unless it is larger than the limit.
        assert ends == [(6,), (12,)]

    run(tmp_path, main)


@pytest.mark.parametrize("start", ["seq", "time", "latest", "snapshot"])
def test_a_stream_starts_where_it_is_told(tmp_path: Path, start: str) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 3)
        taken = await queue.snapshot().__aenter__()
        after = (await queue.peek(3))[-1].time_ms + 1
        places = {
            "seq": Start(seqs=((0, 4),)),
            "time": Start(time_ms=after),
            "latest": LATEST,
            "snapshot": Start(ticket=write_snapshot_token(taken)),
        }
        follower = Follower(options(starting=places[start]))
        offset = await follower.begin(m)
        assert offset.seqs == (3,)
        await queue.publish(b"y")
        found = await follower.next(m, offset, ALL)
        assert found is not None
        assert await rows(m, follower, found) == [(0, 4)]

    run(tmp_path, main)


def test_rows_that_are_gone_are_an_error_or_all_is_read_again(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 10)
        follower = Follower(options(cursor="lake"))
        one = await follower.next(m, await follower.begin(m), BatchLimit(rows=4))
        assert one is not None
        await follower.commit(m, one)
        cursor = await queue.cursor("lake", retain=True)
        snapshot = await cursor.next()
        assert snapshot is not None
        await snapshot.unpin()
        await queue.purge()
        await queue.publish(b"y")
        with pytest.raises(CursorExpired, match="failOnDataLoss=false"):
            await Follower(options(cursor="lake")).next(m, one, ALL)
        again = Follower(options(cursor="lake", fail_on_data_loss=False))
        found = await again.next(m, one, ALL)
        assert found is not None
        assert (found.after, found.seqs) == ((0,), (11,))
        assert await rows(m, again, found) == [(0, 11)]

    run(tmp_path, main)


def test_a_queue_that_was_made_anew_is_noticed(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 10)
        follower = Follower(options(cursor="lake"))
        one = await follower.next(m, await follower.begin(m), ALL)
        assert one is not None
        await m.delete_queue("tea")
        queue = await m.queue("tea")
        await queue.publish(b"new")
        for reader in (follower, Follower(options(cursor="lake"))):
            with pytest.raises(NotFound, match="delete"):
                await reader.next(m, one, ALL)
        with pytest.raises(NotFound, match=r"made anew.*; delete the checkpoint"):
            await Follower(options(cursor="lake")).plan(m, one)
        again = Follower(options(cursor="lake", fail_on_data_loss=False))
        found = await again.next(m, one, ALL)
        assert found is not None
        assert (found.after, found.seqs) == ((0,), (1,))
        # Spark is late: it speaks of the old queue once more.
        await again.commit(m, one)
        assert await again.next(m, found, ALL) is None
        assert await queue.cursors() == {"lake": 1}

    run(tmp_path, main)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_queue_that_was_made_anew_is_read_whole_also_when_it_was_empty_at_first(
    tmp_path: Path, shards: int
) -> None:
    async def main(m: millrace.Millrace) -> None:
        await (await m.queue("tea")).publish_many([b"x"] * 10)
        follower = Follower(options(cursor="lake", fail_on_data_loss=False))
        await follower.aim(m)
        one = await follower.next(m, await follower.begin(m), ALL)
        assert one is not None
        await m.delete_queue("tea")
        queue = await m.queue("tea", shards=shards)
        await follower.aim(m)
        # Spark knows nothing but the old place, as long as there is no other.
        assert await follower.next(m, one, ALL) is None
        await queue.publish_many([b"new"] * 12)
        await follower.aim(m)
        found = await follower.next(m, one, ALL)
        assert found is not None
        assert len(await rows(m, follower, found)) == 12
        await follower.commit(m, one)
        assert await follower.next(m, found, ALL) is None
        assert sum((await queue.cursors()).values()) == 12

    run(tmp_path, main)


def test_a_cursor_that_does_not_retain_is_refused(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.cursor("lake")
        with pytest.raises(Exists, match="what workers settle"):
            await Follower(options(cursor="lake")).begin(m)

    run(tmp_path, main)


def test_a_stream_that_begins_behind_rows_that_are_gone(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 10)
        await queue.purge()
        await queue.publish(b"y")
        start = Start(seqs=((0, 5),))
        with pytest.raises(CursorExpired, match="start at the beginning or after them"):
            await Follower(options(cursor="lake", starting=start)).begin(m)
        assert await queue.cursors() == {}
        follower = Follower(options(cursor="lake", starting=start, fail_on_data_loss=False))
        offset = await follower.begin(m)
        assert offset.seqs == (0,)
        found = await follower.next(m, offset, ALL)
        assert found is not None
        assert await rows(m, follower, found) == [(0, 11)]

    run(tmp_path, main)


def test_two_queries_do_not_read_by_one_cursor(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 10)
        follower = Follower(options(cursor="lake"))
        start = await follower.begin(m)
        one = await follower.next(m, start, BatchLimit(rows=4))
        assert one is not None
        two = await follower.next(m, one, BatchLimit(rows=4))
        assert two is not None
        assert await follower.next(m, two, ALL) is not None
        zombie = Follower(options(cursor="lake"))
        with pytest.raises(Stale, match="another query reads by it"):
            await zombie.next(m, one, ALL)
        with pytest.raises(Refused, match="the checkpoint is of 'lake'"):
            await Follower(options(cursor="other")).next(m, one, ALL)

    run(tmp_path, main)


def test_a_driver_that_was_restarted_fences_the_one_that_runs_on(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 10)
        zombie = Follower(options(cursor="lake"))
        one = await zombie.next(m, await zombie.begin(m), BatchLimit(rows=4))
        assert one is not None
        lost = await Follower(options(cursor="lake")).next(m, one, BatchLimit(rows=4))
        # What the driver in between has claimed is not in the checkpoint.
        restarted = Follower(options(cursor="lake"))
        two = await restarted.next(m, one, BatchLimit(rows=4))
        assert lost is not None
        assert two is not None
        assert (two.after, two.seqs) == (lost.after, lost.seqs) == ((4,), (8,))
        with pytest.raises(Fenced, match="later follower"):
            await zombie.next(m, one, ALL)
        with pytest.raises(Fenced):
            await zombie.commit(m, two)
        assert (await queue.cursors())["lake"] == 4
        await restarted.commit(m, two)
        assert (await queue.cursors())["lake"] == 8

    run(tmp_path, main)


def test_a_stream_starts_at_a_position_unless_it_was_taken_back(tmp_path: Path) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish_many([b"x"] * 3)
        position = await queue.position()
        await queue.publish(b"y")
        follower = Follower(options(starting=read_start(str(position), "startingOffsets")))
        offset = await follower.begin(m)
        assert offset.seqs == (3,)
        found = await follower.next(m, offset, ALL)
        assert found is not None
        assert await rows(m, follower, found) == [(0, 4)]
        [(shard, place)] = position.parts
        foreign = Position(((shard, msgspec.structs.replace(place, history=bytes(16))),))
        starting = read_start(str(foreign), "startingOffsets")
        with pytest.raises(RolledBack, match="begin with earliest"):
            await Follower(options(starting=starting)).begin(m)
        # So is a checkpoint whose cursor was not made yet when the queue was restored.
        other = msgspec.structs.replace(offset, history=bytes(16).hex(), cursor="spark-x")
        with pytest.raises(CursorExpired):
            await Follower(options()).next(m, other, ALL)

    run(tmp_path, main)


@pytest.mark.parametrize("name", ["", "lake"])
def test_a_stream_is_refused_at_a_position_whose_rows_were_settled(
    tmp_path: Path, name: str
) -> None:
    async def main(m: millrace.Millrace) -> None:
        queue = await m.queue("tea")
        await queue.publish(b"x")
        position = await queue.position()
        await queue.publish_many([b"y", b"z"])
        for lease in await queue.lease(2):
            await lease.settle()
        starting = read_start(str(position), "startingOffsets")

        async def first(*, fail_on_data_loss: bool = True) -> list[tuple[int, int]]:
            given = options(starting=starting, cursor=name, fail_on_data_loss=fail_on_data_loss)
            follower = Follower(given)
            found = await follower.next(m, await follower.begin(m), ALL)
            assert found is not None
            return await rows(m, follower, found)

        with pytest.raises(CursorExpired, match="while no cursor kept them"):
            await first()
        assert await first(fail_on_data_loss=False) == [(0, 3)]

    run(tmp_path, main)


def test_an_offset_comes_back_from_json_and_others_are_refused() -> None:
    offset = Offset(1, "default", "tea", (7, 8), "ab" * 16, "lake", (1, 1), "t", (0, 0), (3, 4))
    text = json.dumps(offset.shown())
    assert Offset.of(json.loads(text)) == Offset.of(text) == offset
    assert offset.place().seqs == (3, 4)
    assert (offset.span().after.number, offset.span().upto.number) == (0, 7)
    for wrong in ({}, {"version": 2}, {"topic": {"0": 5}}):
        with pytest.raises(Refused, match="another query"):
            Offset.of(wrong)
