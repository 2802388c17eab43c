"""Followers: cursors and snapshots."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace import errors, limits
from millrace.client.cursor import Cursor, Snapshot, Start
from millrace.client.message import Message
from millrace.client.millrace import Millrace
from millrace.client.multi_shard_cursor import find_cursor
from millrace.client.queue import Queue, engine_and_shards
from millrace.core.cells import CursorCell
from millrace.core.commands import OpenCursor
from millrace.core.model import StartPoint as StartAt
from tests.client.harness import Clock, embedded, eventually, timed


async def bodies(snapshot: Snapshot | None) -> list[bytes | None]:
    assert snapshot is not None
    return [row.body async for row in snapshot.rows()]


async def filled(m: Millrace, count: int, *, keyed: bool = False) -> Queue:
    queue = await m.queue("orders", keyed=keyed)
    await queue.publish_many([b"%d" % n for n in range(1, count + 1)])
    return queue


# --- Reading -------------------------------------------------------------------------------------


@embedded
async def test_one_snapshot_after_another(m: Millrace) -> None:
    queue = await m.queue("prices", keyed=True)
    await queue.publish_many([Message(b"1", "a"), Message(b"1", "b")])
    cursor = await queue.cursor("report")
    first = await cursor.next()
    assert first is not None
    assert (first.after, first.boundary) == (0, 2)
    await queue.publish(b"2", key="a")
    assert await bodies(first) == [b"1", b"1"]
    await first.commit()
    second = await cursor.next()
    assert second is not None
    assert (second.after, second.boundary) == (2, 3)
    assert await bodies(second) == [b"2"]
    assert second.id[0] == first.id[0]
    assert second.id[1] > first.id[1]
    await second.commit()
    assert await cursor.next() is None


@embedded
async def test_iterating_waits_for_rows(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursor = await queue.cursor("report")
    found: asyncio.Queue[list[bytes | None]] = asyncio.Queue()

    async def follow() -> None:
        async for snapshot in cursor:
            async with snapshot:
                found.put_nowait(await bodies(snapshot))

    task = asyncio.create_task(follow())
    for n in range(3):
        await queue.publish(b"%d" % n)
        assert await found.get() == [b"%d" % n]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@embedded
async def test_what_was_not_committed_is_read_again(m: Millrace) -> None:
    queue = await filled(m, 3)
    cursor = await queue.cursor("report")
    assert len(await bodies(await cursor.next())) == 3
    assert await cursor.next() is None
    again = await queue.cursor("report")
    assert again.position.seq == 0
    assert len(await bodies(await again.next())) == 3


@embedded
async def test_commit_in_mid_snapshot(m: Millrace) -> None:
    queue = await filled(m, 5)
    cursor = await queue.cursor("report")
    snapshot = await cursor.next()
    assert snapshot is not None
    await snapshot.commit(2)
    await queue.publish(b"later")
    again = await queue.cursor("report")
    assert again.position.seq == 2
    rest = await again.next()
    assert rest is not None
    assert (rest.after, rest.boundary) == (2, 5)
    assert rest.id == snapshot.id
    assert await bodies(rest) == [b"3", b"4", b"5"]
    await rest.commit(4)
    await rest.commit()
    assert await bodies(await again.next()) == [b"later"]


@embedded
async def test_a_failed_context_commits_nothing(m: Millrace) -> None:
    queue = await filled(m, 2)
    cursor = await queue.cursor("report")
    snapshot = await cursor.next()
    assert snapshot is not None
    with pytest.raises(ZeroDivisionError):
        async with snapshot:
            1 / snapshot.after
    assert await queue.cursors() == {"report": 0}
    async with snapshot:
        pass
    assert await queue.cursors() == {"report": 2}


@embedded
async def test_arrow_has_every_column(m: Millrace) -> None:
    queue = await m.queue("prices", keyed=True)
    await queue.publish(b"1", key="a", headers={"h": "v"})
    await queue.publish(None, key="b")
    async with queue.snapshot() as snapshot:
        table = snapshot.arrow().read_all()
        batches = [batch async for batch in snapshot.batches()]
    assert table.column_names == ["shard", "seq", "key", "headers", "time", "value"]
    first, second = table.to_pylist()
    assert (first["seq"], first["key"], first["value"]) == (1, b"a", b"1")
    assert first["headers"] == [{"name": "h", "value": b"v"}]
    assert first["time"].tzinfo is not None
    assert (second["key"], second["value"], second["headers"] or []) == (b"b", None, [])
    assert pa.Table.from_batches(batches).equals(table)


@embedded
async def test_another_thread_may_read(m: Millrace) -> None:
    queue = await filled(m, 5000)
    async with queue.snapshot() as snapshot:
        reader = snapshot.arrow()
        table = await asyncio.to_thread(reader.read_all)
        assert table.num_rows == 5000
        half = snapshot.arrow()
        await asyncio.to_thread(half.read_next_batch)
        await asyncio.to_thread(half.close)


def test_arrow_can_be_written_as_it_is(tmp_path: Path) -> None:
    @embedded
    async def at(m: Millrace) -> None:
        queue = await filled(m, 100)
        async with queue.snapshot() as snapshot:
            pq.write_table(snapshot.arrow().read_all(), tmp_path / "rows.parquet")
        assert pq.read_table(tmp_path / "rows.parquet").num_rows == 100

    at(tmp_path)


# --- Where it begins -----------------------------------------------------------------------------


@embedded
async def test_a_cursor_begins_where_it_is_told(m: Millrace) -> None:
    queue = await filled(m, 5)
    places: dict[str, tuple[Start, int]] = {
        "all": ("beginning", 5),
        "none": ("end", 0),
        "some": (4, 2),
        "next": (6, 0),
        "old": (datetime(2001, 1, 1, tzinfo=UTC), 5),
        "new": (datetime(2900, 1, 1, tzinfo=UTC), 0),
    }
    for name, (start, count) in places.items():
        snapshot = await (await queue.cursor(name, start=start)).next()
        assert (len(await bodies(snapshot)) if snapshot else 0) == count, name
    assert await queue.cursors() == {
        "all": 0,
        "new": 5,
        "next": 5,
        "none": 5,
        "old": 0,
        "some": 3,
    }


@timed
async def test_a_cursor_begins_at_a_time(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"old")
    clock.forward(seconds=3600)
    await queue.publish(b"new")
    row = (await queue.peek())[1]
    at = datetime.fromtimestamp(row.time_ms / 1000 - 60, tz=UTC)
    assert await bodies(await (await queue.cursor("report", start=at)).next()) == [b"new"]


@embedded
async def test_a_cursor_that_is_there_keeps_its_place(m: Millrace) -> None:
    queue = await filled(m, 5)
    await queue.cursor("report", start=3)
    again = await queue.cursor("report", start="beginning")
    assert (again.name, again.position.seq, again.retain) == ("report", 2, False)
    with pytest.raises(errors.Exists, match="retain"):
        await queue.cursor("report", retain=True)


@embedded
async def test_a_snapshot_from_before_a_reset_moves_nothing(m: Millrace) -> None:
    queue = await filled(m, 5)
    cursor = await queue.cursor("report")
    old = await cursor.next()
    assert old is not None
    await cursor.reset("beginning")
    with pytest.raises(errors.NotFound, match="made anew") as caught:
        await old.commit()
    assert caught.value.field == "name"
    t = m.transaction()
    t.commit(old)
    with pytest.raises(errors.NotFound):
        async with t:
            pass
    assert cursor.position.seq == 0
    new = await cursor.next()
    assert new is not None
    assert len(await bodies(new)) == 5
    await new.commit()
    assert cursor.position.seq == 5


@embedded
async def test_reset_begins_anew(m: Millrace) -> None:
    queue = await filled(m, 5)
    cursor = await queue.cursor("report")
    other = await queue.cursor("report")
    old = await other.next()
    assert old is not None
    await cursor.reset("end")
    assert await cursor.next() is None
    await cursor.reset(4)
    assert await bodies(await cursor.next()) == [b"4", b"5"]
    await cursor.reset()
    assert len(await bodies(await cursor.next())) == 5
    await cursor.reset(datetime(2900, 1, 1, tzinfo=UTC))
    assert await cursor.next() is None
    with pytest.raises(errors.NotFound, match="anew"):
        await old.commit()


@embedded
async def test_a_later_follower_fences_the_earlier_one(m: Millrace) -> None:
    queue = await filled(m, 5)
    first = await queue.cursor("report")
    early = await first.next()
    assert early is not None
    second = await queue.cursor("report")
    late = await second.next()
    assert late is not None
    # What it was given it may read on; it moves nothing, and lets nothing go.
    assert len(await bodies(early)) == 5
    for call in (early.commit, partial(early.commit, 3), first.next):
        with pytest.raises(errors.Fenced, match="later follower"):
            await call()
    assert not await early.unpin()
    async with m.transaction() as transaction:
        transaction.commit(late)
    with pytest.raises(errors.Fenced):
        async with m.transaction() as transaction:
            transaction.commit(early)
    assert second.position.seq == 5
    assert await queue.cursors() == {"report": 5}
    # A look at it fences nobody, as little as an empty wait does.
    assert await find_cursor(queue, "report") is not None
    assert await second.next() is None
    # Whoever is to have it again opens it again.
    third = await queue.cursor("report")
    with pytest.raises(errors.Fenced):
        await second.next()
    assert await third.next() is None


@embedded
async def test_a_reset_fences_as_opening_does(m: Millrace) -> None:
    queue = await filled(m, 2)
    first = await queue.cursor("report")
    second = await queue.cursor("report")
    await first.reset()
    with pytest.raises(errors.NotFound):
        await second.next()
    snapshot = await first.next()
    assert snapshot is not None
    await snapshot.commit()


@embedded
async def test_cursors_of_an_older_folder_are_fenced_once_they_are_opened(m: Millrace) -> None:
    queue = await filled(m, 2)
    engine, shards = engine_and_shards(queue)
    # As it stands in a folder of before there were claims, and a snapshot of then.
    made = OpenCursor("report", StartAt.BEGINNING, retain=False)
    assert (await engine.ask(shards.first, made, CursorCell)).claim == b""
    known = await find_cursor(queue, "report")
    assert known is not None
    snapshot = await known.next()
    assert snapshot is not None
    await snapshot.commit(1)
    await queue.cursor("report")
    with pytest.raises(errors.Fenced):
        await snapshot.commit()


@embedded
async def test_a_deleted_cursor_is_forgotten(m: Millrace) -> None:
    queue = await filled(m, 5)
    cursor = await queue.cursor("report")
    assert await cursor.delete()
    assert not await cursor.delete()
    assert await queue.cursors() == {}
    with pytest.raises(errors.NotFound, match="report"):
        await cursor.next()
    with pytest.raises(errors.NotFound, match="report"):
        await cursor.reset()


# --- What is kept --------------------------------------------------------------------------------


@embedded
async def test_a_retaining_cursor_sees_what_was_settled(m: Millrace) -> None:
    queue = await m.queue("orders")
    keeping = await queue.cursor("lake", retain=True)
    passing = await queue.cursor("report")
    assert (keeping.retain, passing.retain) == (True, False)
    await queue.publish_many([b"1", b"2", b"3"])
    await queue.settle(await queue.lease(2))
    assert await bodies(await passing.next()) == [b"3"]
    assert [row.body for row in await queue.peek()] == [b"3"]
    kept = await keeping.next()
    assert await bodies(kept) == [b"1", b"2", b"3"]
    assert kept is not None
    await kept.commit()
    assert (await queue.stats())["settled"] == 2


@embedded
async def test_a_snapshot_always_shows_the_same_rows(m: Millrace) -> None:
    queue = await m.queue("prices", keyed=True)
    await queue.publish_many([Message(b"1", "a"), Message(b"1", "b"), Message(b"1", "c")])
    async with queue.snapshot() as snapshot:
        before = snapshot.arrow().read_all()
        await queue.publish(b"2", key="a")
        await (await queue.lease())[0].settle()
        await queue.publish(None, key="c")
        await queue.purge()
        await queue.publish(b"9", key="d")
        assert snapshot.arrow().read_all().equals(before)
        assert await bodies(snapshot) == [b"1", b"1", b"1"]
    assert [row.body for row in await queue.peek()] == [b"9"]


@embedded
async def test_a_snapshot_that_was_let_go_shows_no_rows(m: Millrace) -> None:
    queue = await filled(m, 3)
    async with queue.snapshot() as snapshot:
        reader = snapshot.arrow()
    with pytest.raises(errors.SnapshotExpired):
        reader.read_all()
    with pytest.raises(errors.SnapshotExpired):
        await bodies(snapshot)
    assert not await snapshot.unpin()


@embedded
async def test_a_pin_that_goes_ends_the_reading(m: Millrace) -> None:
    """Half of it was read: without the pin, the rest would come from another state."""
    queue = await m.queue("orders")
    for _ in range(40):
        await queue.publish_many([b"x" * 1000] * 500)
    async with queue.snapshot() as snapshot:
        rows = snapshot.batches()
        first = await anext(rows)
        assert 0 < first.num_rows < 20_000
        await snapshot.unpin()
        await queue.purge()
        with pytest.raises(errors.SnapshotExpired):
            await anext(rows)
        assert first.column("value")[0].as_py() == b"x" * 1000


@timed
async def test_a_pin_goes_by_age(m: Millrace, clock: Clock) -> None:
    queue = await filled(m, 3)
    async with queue.snapshot(seconds=60) as snapshot:
        await queue.purge()
        assert len(await bodies(snapshot)) == 3
        clock.forward(seconds=61)

        async def expired() -> bool:
            try:
                snapshot.arrow().read_all()
            except errors.SnapshotExpired:
                return True
            return False

        await eventually(expired)


@timed
async def test_a_cursor_whose_pin_went_goes_on_in_another(m: Millrace, clock: Clock) -> None:
    queue = await filled(m, 4)
    cursor = await queue.cursor("report")
    snapshot = await cursor.next(seconds=60)
    assert snapshot is not None
    await snapshot.commit(1)
    clock.forward(seconds=61)

    async def expired() -> bool:
        try:
            await snapshot.commit(2)
        except errors.SnapshotExpired:
            return True
        return False

    await eventually(expired)
    again = await queue.cursor("report")
    rest = await again.next()
    assert (await bodies(rest))[-1] == b"4"


@embedded
async def test_a_cursor_behind_a_purge_must_be_reset(m: Millrace) -> None:
    queue = await filled(m, 4)
    cursor = await queue.cursor("report", start=3)
    await queue.purge()
    await queue.publish(b"new")
    with pytest.raises(errors.CursorExpired, match="reset"):
        await cursor.next()
    await cursor.reset("beginning")
    assert await bodies(await cursor.next()) == [b"new"]


@timed
async def test_a_retaining_cursor_that_stays_away_is_told(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("orders")
    cursor = await queue.cursor("lake", retain=True)
    await queue.publish_many([b"1", b"2"])
    await queue.settle(await queue.lease(1))
    clock.forward(seconds=8 * 24 * 3600)

    async def dropped() -> bool:
        try:
            await cursor.next()
        except errors.CursorExpired:
            return True
        return False

    # Each call renews nothing: the cursor has not moved.
    await eventually(dropped)
    await cursor.reset("beginning")
    assert await bodies(await cursor.next()) == [b"2"]


@embedded
async def test_many_followers(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursors = [await queue.cursor(f"c{n}") for n in range(20)]

    async def follow(cursor: Cursor) -> list[bytes | None]:
        found: list[bytes | None] = []
        while len(found) < 50:
            async with await anext(cursor) as snapshot:
                found += await bodies(snapshot)
        return found

    tasks = [asyncio.create_task(follow(cursor)) for cursor in cursors]
    for n in range(50):
        await queue.publish(b"%d" % n)
    for found in await asyncio.gather(*tasks):
        assert found == [b"%d" % n for n in range(50)]


# --- Where there is no room ---------------------------------------------------------------------


def test_a_cursor_waits_for_a_pin_that_others_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One publish wakes all followers at once; those beyond the limit follow a little later."""
    monkeypatch.setattr(limits, "PINS_MAX", 2)
    embedded(_followers)(tmp_path)


async def _followers(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursors = [await queue.cursor(f"c{number}") for number in range(6)]

    async def follow(cursor: Cursor) -> int:
        async for snapshot in cursor:
            async with snapshot:
                return len(await bodies(snapshot))
        raise AssertionError("a cursor has no end")

    following = [asyncio.create_task(follow(cursor)) for cursor in cursors]
    await queue.explain(1)
    await queue.publish(b"x")
    assert await asyncio.gather(*following) == [1] * 6


def test_a_cursor_that_may_not_wait_does_not_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAITERS_MAX", 0)
    embedded(_follower_without_place)(tmp_path)


async def _follower_without_place(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursor = await queue.cursor("report")
    with pytest.raises(errors.Full):
        await cursor.next(wait=1)
    asked = 0
    ask = cursor.next

    async def counted(*, wait: float = 0, seconds: float = 3600) -> Snapshot | None:
        nonlocal asked
        asked += 1
        return await ask(wait=wait, seconds=seconds)

    cursor.next = counted  # type: ignore[method-assign]
    task = asyncio.create_task(anext(cursor))

    async def has_asked_twice() -> bool:
        return asked >= 2

    before = asyncio.get_running_loop().time()
    await eventually(has_asked_twice)
    assert asyncio.get_running_loop().time() - before >= 0.09
    await queue.publish(b"x")
    assert await bodies(await task) == [b"x"]
