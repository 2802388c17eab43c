"""Queues with several shards, on a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path

import pyarrow as pa
import pytest

import millrace
from millrace import Message, Place
from millrace.client.message import Rows
from millrace.core.format.frozen_hash import hash_one
from millrace.errors import (
    Exists,
    Fenced,
    Forged,
    Gone,
    Invalid,
    NotFound,
    OutOfOrder,
    Refused,
    SnapshotExpired,
    Stale,
    TooLarge,
)
from tests.client.harness import opened, run

KEYS = [f"key-{number}".encode() for number in range(40)]


def shard_of(key: bytes, count: int) -> int:
    return hash_one(key) % count


def looped(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """Run the test on an event loop of its own."""

    @wraps(test)
    def on_a_loop(**arguments: object) -> None:
        run(test(**arguments))

    return on_a_loop


def place_of(number: int | None) -> Place:
    assert isinstance(number, Place)
    return number


# --- Making -------------------------------------------------------------------------------------


@looped
async def test_the_number_of_shards_is_fixed(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3, route="key")
        assert len(await queue.shard_stats()) == 3
        with pytest.raises(Exists, match="has 3 shards, not 4") as found:
            await m.queue("orders", shards=4)
        assert found.value.field == "shards"
        with pytest.raises(Exists, match="routed by 'key', not 'spread'"):
            await m.queue("orders", route="spread")
        for way in (m.queue("orders"), m.queue("orders", shards=3), m.find("orders")):
            assert len(await (await way).shard_stats()) == 3
    async with opened(tmp_path) as m:
        assert len(await (await m.queue("orders")).shard_stats()) == 3


@looped
async def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        with pytest.raises(TooLarge, match="64"):
            await m.queue("orders", shards=65)
        with pytest.raises(Invalid, match="shards"):
            await m.queue("orders", shards=0)
        with pytest.raises(Invalid, match="'key', 'group' or 'spread'"):
            await m.queue("orders", shards=2, route="chance")
        with pytest.raises(Invalid, match="routed by 'key'"):
            await m.queue("orders", shards=2, route="spread", keyed=True)
        assert await m.queues() == []


# --- Publishing ---------------------------------------------------------------------------------


@looped
async def test_keys_are_placed_by_the_frozen_hash(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=4)
        for key in KEYS:
            place = place_of(await queue.publish(key, key=key))
            assert place.shard == shard_of(key, 4)
            row = await queue.get(place)
            assert row is not None
            assert (row.seq, row.key, row.body) == (place, key, key)
        counts = [one["published"] for one in await queue.shard_stats()]
        assert sum(counts) == len(KEYS)
        assert min(counts) > 0


def as_messages(keys: list[bytes]) -> Rows:
    return [Message(b"v" + key, key=key, headers={"n": key}) for key in keys]


def as_arrow(keys: list[bytes]) -> Rows:
    headers = pa.array(
        [[("n", key)] for key in keys],
        pa.list_(pa.struct([pa.field("name", pa.utf8()), pa.field("value", pa.binary())])),
    )
    return pa.record_batch(
        {"key": pa.array(keys), "value": pa.array([b"v" + key for key in keys]), "headers": headers}
    )


@pytest.mark.parametrize("make", [as_messages, as_arrow])
@looped
async def test_a_batch_is_split_and_answered_in_its_order(tmp_path: Path, make: object) -> None:
    assert callable(make)
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=4)
        places = await queue.publish_many(make(KEYS))
        assert [place_of(place).shard for place in places] == [shard_of(k, 4) for k in KEYS]
        for key, place in zip(KEYS, places, strict=True):
            row = await queue.get(place)
            assert row is not None
            assert (row.key, row.body, row.headers) == (key, b"v" + key, (("n", key),))


@looped
async def test_groups_are_placed_together(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=4, route="group")
        rows = [Message(b"x", key=key, headers={"millrace-group": key[-1:]}) for key in KEYS]
        for key, place in zip(KEYS, await queue.publish_many(rows), strict=True):
            assert place_of(place).shard == shard_of(key[-1:], 4)
        one = await queue.publish(b"x", key=b"key-0", headers={"millrace-group": b"g"})
        assert place_of(one).shard == shard_of(b"g", 4)
        assert place_of(await queue.publish(b"x", key=b"key-0")).shard == shard_of(b"key-0", 4)


@looped
async def test_a_message_is_replaced_within_its_shard(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=4)
        place = place_of(await queue.publish(b"x", key=KEYS[0]))
        [lease] = await queue.lease(1)
        elsewhere = next(key for key in KEYS if shard_of(key, 4) != place.shard)
        with pytest.raises(Invalid, match="another shard"):
            await lease.replace(b"y", key=elsewhere)
        new = await lease.replace(b"y")
        assert place_of(new.seq) == Place.of(place.shard, place.seq + 1)
        await new.settle()
        assert (await queue.stats())["live"] == 0


@looped
async def test_what_needs_one_shard_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=4)
        with pytest.raises(Invalid, match="a session needs a queue with one shard, not 4") as no:
            queue.session()
        assert (no.value.field, no.value.limit) == ("shards", 1)
        assert "lease from this one, or make a queue with shards=1" in str(no.value)
        with pytest.raises(Invalid, match="attempt id needs a queue with one shard, not 4") as no:
            await queue.lease(1, attempt="a")
        assert (no.value.field, no.value.limit) == ("attempt", 1)
        assert "leave the id out, or make a queue with shards=1" in str(no.value)
        with pytest.raises(Invalid, match="never meet"):
            await queue.configure(dedup_by_body=True)
        with pytest.raises(Invalid, match="never meet"):
            await m.queue("other", shards=2, dedup_by_body=True)


@looped
async def test_ids_are_known_over_all_shards(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        for name, route in (("keys", "key"), ("turns", "spread")):
            queue = await m.queue(name, shards=4, route=route)
            first = [await queue.publish(b"x", dedup=f"id-{at}") for at in range(9)]
            again = [await queue.publish(b"x", dedup=f"id-{at}") for at in range(9)]
            assert again == first
            rows = [Message(b"x", dedup=f"id-{at}") for at in range(12)]
            assert list(await queue.publish_many(rows))[:9] == first
            assert (await queue.stats())["published"] == 12


@looped
async def test_what_has_no_key_takes_turns_by_call(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3, route="spread")
        shards = [place_of(await queue.publish(b"x", key=b"same")).shard for _ in range(6)]
        assert sorted(shards) == [0, 0, 1, 1, 2, 2]
        places = await queue.publish_many([b"a", b"b", b"c"])
        assert len({place_of(place).shard for place in places}) == 1


@looped
async def test_a_repeat_changes_nothing_on_any_shard(tmp_path: Path) -> None:
    """Exactly once over shards: all of them record each number."""
    async with opened(tmp_path) as m:
        for name, route in (("keys", "key"), ("turns", "spread")):
            queue = await m.queue(name, shards=4, route=route)
            first = await queue.publish_many(as_messages(KEYS), producer="p", number=1)
            again = await queue.publish_many(as_messages(KEYS), producer="p", number=1)
            assert again == first
            # Other messages under a number that was used are no new ones, wherever they would go.
            other = await queue.publish_many(as_messages(KEYS[:3]), producer="p", number=1)
            assert sorted(other) == sorted(first)
            one = await queue.publish(b"x", key=b"k", producer="p", number=2)
            assert await queue.publish(b"x", key=b"k", producer="p", number=2) == one
            with pytest.raises(OutOfOrder, match="3 is expected"):
                await queue.publish(b"x", key=b"other", producer="p", number=4)
            assert await queue.producer("p") == 2
            assert (await queue.stats())["published"] == len(KEYS) + 1
    async with opened(tmp_path) as m:
        queue = await m.queue("keys")
        places = await queue.publish_many(as_messages(KEYS), producer="p", number=1)
        assert sorted(place_of(place).shard for place in places) == sorted(
            shard_of(key, 4) for key in KEYS
        )


@looped
async def test_keyed_revisions_meet(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("table", shards=4, keyed=True)
        old = await queue.publish_many(as_messages(KEYS))
        new = await queue.publish_many(as_messages(KEYS))
        stats = await queue.stats()
        assert (stats["live"], stats["superseded"]) == (len(KEYS), len(KEYS))
        told = await queue.explain(old[7])
        assert (told.seq, told.state, told.superseded_by) == (old[7], "dead", new[7])
        assert [row.seq for row in await queue.peek(100)] == sorted(new)


@looped
async def test_arrow_counts_the_shards_of_the_queue(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        await m.queue("another", shards=3)
        queue = await m.queue("orders", shards=4)
        places = sorted(map(place_of, await queue.publish_many(as_messages(KEYS))))
        async with queue.snapshot() as snapshot:
            tables = [
                snapshot.arrow().read_all(),
                pa.Table.from_batches([batch async for batch in snapshot.batches()]),
            ]
            for table in tables:
                found = [Place.of(row["shard"], row["seq"]) for row in table.to_pylist()]
                assert sorted(found) == places
        single = await m.queue("single")
        await single.publish(b"x")
        async with single.snapshot() as snapshot:
            assert snapshot.arrow().read_all()["shard"].to_pylist() == [0]


# --- Working ------------------------------------------------------------------------------------


@looped
async def test_one_call_leases_from_all_shards(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=4)
        places = await queue.publish_many(as_messages(KEYS))
        leases = await queue.lease(100)
        assert sorted(lease.seq for lease in leases) == sorted(places)
        assert await queue.lease(1) == []
        receipts = [lease.receipt for lease in leases]
        assert await queue.settle(receipts[:20]) == {}
        assert await queue.settle(leases[20:]) == {}
        assert (await queue.stats())["settled"] == len(KEYS)
        refused = await queue.release(leases)
        assert sorted(refused) == sorted(places)
        assert all(isinstance(error, Stale) for error in refused.values())


@looped
async def test_shards_are_served_in_turns(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3, route="spread")
        for _ in range(3):
            await queue.publish_many([b"x"] * 10)
        served = [place_of((await queue.lease(1))[0].seq).shard for _ in range(9)]
        for at in range(0, 9, 3):
            assert sorted(served[at : at + 3]) == [0, 1, 2]


@looped
async def test_a_waiting_call_is_woken_by_any_shard(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        for key in (b"key-0", b"key-1", b"key-2", b"key-5"):
            waiting = [asyncio.ensure_future(queue.lease(1, wait=20)) for _ in range(2)]
            await asyncio.sleep(0)
            place = await queue.publish(b"x", key=key)
            done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            [[lease]] = [task.result() for task in done]
            assert lease.seq == place
            # Who waits on is given what comes to another shard, once.
            place = await queue.publish(b"y", key=b"key-" + key[-1:] * 2)
            [[other]] = [await task for task in left]
            assert other.seq == place
            await queue.settle([lease, other])
        assert await queue.lease(1, wait=0.01) == []
        assert (await queue.stats())["live"] == 0


@looped
async def test_a_call_that_waits_at_all_shards_is_given_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        waiting = asyncio.ensure_future(queue.lease(1, wait=20))
        await asyncio.sleep(0)
        # Two entries, and the second one is decided before the first is committed.
        places = await asyncio.gather(
            *(queue.publish(b"x", key=f"key-{number}") for number in range(20))
        )
        [lease] = await waiting
        await lease.settle()
        others = await queue.lease(100)
        assert sorted([lease.seq, *(other.seq for other in others)]) == sorted(
            place for place in places if place is not None
        )
        assert {other.deliveries for other in others} == {1}
        # No other shard has handed out anything for the call that was given what it wanted.
        mine = place_of(lease.seq).shard
        elsewhere = [other for other in others if place_of(other.seq).shard != mine]
        assert {other.version for other in elsewhere} == {1}


@looped
async def test_a_cancelled_call_gives_back_what_it_was_handed(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        waiting = asyncio.ensure_future(queue.lease(100, wait=20))
        await asyncio.sleep(0)
        await queue.publish_many(as_messages(KEYS))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        got: list[millrace.Lease] = []
        while len(got) < len(KEYS):
            got += await queue.lease(100, wait=5)
        assert {lease.deliveries for lease in got} == {1}


@looped
async def test_extend_release_and_context(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3, max_failures=2)
        await queue.publish_many(as_messages(KEYS[:9]))
        leases = await queue.lease(9)
        assert await queue.extend(leases, 60) == {}
        await queue.release(leases[:5], failed=True)
        async with leases[5]:
            pass
        await leases[6].discard()
        told = await queue.explain(leases[7].seq)
        assert (told.seq, told.state) == (leases[7].seq, "leased")
        again = await queue.lease(9)
        assert sorted(lease.seq for lease in again) == sorted(lease.seq for lease in leases[:5])
        assert {(lease.deliveries, lease.failures) for lease in again} == {(2, 1)}


@looped
async def test_a_worker_works_all_shards(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=4)
        out = await m.queue("done", shards=2)
        await queue.publish_many(as_messages(KEYS))
        seen: list[bytes] = []

        async def handle(lease: millrace.Lease, transaction: millrace.Transaction) -> None:
            seen.append(lease.body)
            transaction.publish(out, lease.body, key=lease.key)
            if len(seen) == len(KEYS):
                worker.stop()

        worker = millrace.Worker(queue, handle)
        await worker.run()
        assert sorted(seen) == sorted(b"v" + key for key in KEYS)
        assert (await queue.stats())["live"] == 0
        assert (await out.stats())["live"] == len(KEYS)


@looped
async def test_dead_letters_and_redrive(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        dead = await m.queue("dead", shards=3)
        queue = await m.queue("orders", shards=4, dead_letter="dead")
        places = await queue.publish_many(as_messages(KEYS))
        await queue.discard(await queue.lease(100))
        letters: list[millrace.Lease] = []
        while len(letters) < len(KEYS):
            letters += await dead.lease(100, wait=5)
        told = {dict(lease.headers)["millrace-dead-seq"].decode() for lease in letters}
        assert told == {str(place) for place in places}
        for lease in letters:
            assert lease.key is not None
            assert place_of(lease.seq).shard == shard_of(lease.key, 3)
        await dead.release(letters)
        stats = await dead.redrive().run()
        assert (stats.total, stats.moved, stats.kept) == (len(KEYS), len(KEYS), 0)
        back = await queue.lease(100)
        assert sorted(lease.body for lease in back) == sorted(b"v" + key for key in KEYS)


@looped
async def test_purge_rewind_and_settings_reach_all_shards(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3, retention="log")
        await queue.publish_many(as_messages(KEYS))
        await queue.settle(await queue.lease(100))
        assert await queue.lease(1) == []
        await queue.rewind(datetime.now(UTC) - timedelta(hours=1))
        assert len(await queue.lease(100)) == len(KEYS)
        await queue.rewind("beginning")
        assert len(await queue.lease(100)) == len(KEYS)
        with pytest.raises(Invalid, match="says nothing about the 2 others"):
            await queue.rewind(1)
        assert (await queue.configure(max_failures=7)).max_failures == 7
        await queue.purge()
        assert (await queue.stats())["live"] == 0
        assert await queue.peek(10) == []
    async with opened(tmp_path) as m:
        assert (await (await m.queue("orders")).spec()).max_failures == 7


@looped
async def test_stages_become_visible_on_all_shards_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        assert await queue.stage("s", as_messages(KEYS[:10])) == 10
        assert await queue.stage("s", as_messages(KEYS[10:])) == len(KEYS)
        assert await queue.stage("one", as_messages(KEYS[:1])) == 1
        assert await queue.stages() == {"s": len(KEYS), "one": 1}
        assert await queue.peek(10) == []
        with pytest.raises(NotFound, match="no stage 'other'"):
            await queue.publish_staged(["s", "other"])
        places = await queue.publish_staged(["s", "one"], producer="p", number=1)
        assert len(places) == len(KEYS) + 1
        assert await queue.publish_staged(["s"], producer="p", number=1) == places
        assert [row.seq for row in await queue.peek(100)] == list(places)
        await queue.stage("s", as_messages(KEYS[:10]))
        assert await queue.drop_stage("s")
        assert await queue.stages() == {}


@looped
async def test_peek_goes_from_shard_to_shard(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        places = sorted(await queue.publish_many(as_messages(KEYS)))
        seen: list[int] = []
        while rows := await queue.peek(7, after=seen[-1] if seen else 0):
            seen += [row.seq for row in rows]
        assert seen == places
        with pytest.raises(Invalid, match="no place in 3 shards"):
            await queue.get(Place.of(3, 1))
        with pytest.raises(Invalid, match="no place in 3 shards"):
            await queue.explain(Place.of(1, 0))


@looped
async def test_a_transaction_over_several_shards_and_queues(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        source = await m.queue("source", shards=3)
        target = await m.queue("target", shards=2)
        await source.publish_many(as_messages(KEYS))
        leases = await source.lease(100)
        async with m.transaction() as t:
            t.settle(leases[:30])
            many = t.publish_many("target", as_messages(KEYS), producer="p", number=1)
            one = t.publish(target, b"x", key=b"k")
        assert [place_of(place).shard for place in many.value] == [shard_of(k, 2) for k in KEYS]
        assert place_of(one.value).shard == shard_of(b"k", 2)
        assert (await source.stats())["settled"] == 30
        await source.release(leases[30])

        async def too_late() -> None:
            async with m.transaction() as t:
                t.publish_many(target, as_messages(KEYS))
                t.settle(leases[30:])

        with pytest.raises(Refused):
            await too_late()
        assert (await target.stats())["published"] == len(KEYS) + 1
        assert (await source.stats())["settled"] == 30


# --- Following ----------------------------------------------------------------------------------


@looped
async def test_a_cursor_has_a_boundary_for_each_shard(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        cursor = await queue.cursor("lake")
        assert await cursor.next() is None
        places = await queue.publish_many(as_messages(KEYS))
        snapshot = await cursor.next()
        assert snapshot is not None
        later = await queue.publish_many(as_messages(KEYS[:5]))
        counts = [one["published"] for one in await queue.shard_stats()]
        assert sum(snapshot.boundaries) == len(KEYS)
        assert snapshot.afters == (0, 0, 0)
        assert [row.seq async for row in snapshot.rows()] == sorted(places)
        table = snapshot.arrow().read_all()
        assert table.num_rows == len(KEYS)
        parts: dict[int, list[int]] = {}
        async for shard, rows in snapshot.parts():
            parts.setdefault(shard, []).extend(row.seq for row in rows)
        assert list(parts) == [0, 1, 2]
        assert [seq for seqs in parts.values() for seq in seqs] == sorted(places)
        assert sum(await cursor.lag()) == sum(counts)
        await snapshot.commit()
        assert sum(await cursor.lag()) == len(later)
        assert [position.seq for position in cursor.positions] == list(snapshot.boundaries)
        assert await queue.cursors() == {"lake": len(KEYS)}
        following = await cursor.next()
        assert following is not None
        assert following.id[1] == snapshot.id[1] + 1
        assert [row.seq async for row in following.rows()] == sorted(later)
    async with opened(tmp_path) as m:
        # What was read and not committed is given again, the same rows.
        cursor = await (await m.queue("orders")).cursor("lake")
        again = await cursor.next()
        assert again is not None
        assert (again.id, again.boundaries) == (following.id, following.boundaries)
        assert [row.seq async for row in again.rows()] == sorted(later)


@looped
async def test_a_commit_in_the_middle_resumes_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        places = sorted(await queue.publish_many(as_messages(KEYS)))
        cursor = await queue.cursor("lake")
        snapshot = await cursor.next()
        assert snapshot is not None
        middle = place_of(places[len(places) // 2])
        await snapshot.commit(middle)
        await queue.publish_many(as_messages(KEYS))
        for _ in range(2):
            # Whatever came since is not mixed into it.
            again = await (await queue.cursor("lake")).next()
            assert again is not None
            assert again.boundaries == snapshot.boundaries
            rest = [row.seq async for row in again.rows()]
            assert rest == places[len(places) // 2 + 1 :]
            assert (again.id, again.boundary) == (snapshot.id, snapshot.boundary)
        with pytest.raises(Fenced):
            await snapshot.commit()
        later = await (await queue.cursor("lake")).next()
        assert later is not None
        await later.commit()
        last = await (await queue.cursor("lake")).next()
        assert last is not None
        assert last.afters == snapshot.boundaries


@looped
async def test_a_waiting_follower_is_woken_by_any_shard(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        cursor = await queue.cursor("lake")
        for key in (b"key-0", b"key-1", b"key-2", b"key-5"):
            waiting = asyncio.ensure_future(cursor.next(wait=20))
            await asyncio.sleep(0)
            place = await queue.publish(b"x", key=key)
            snapshot = await waiting
            assert snapshot is not None
            async with snapshot:
                assert [row.seq async for row in snapshot.rows()] == [place]


@looped
async def test_a_pinned_snapshot_of_all_shards(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        places = sorted(await queue.publish_many(as_messages(KEYS)))
        async with queue.snapshot() as snapshot:
            await queue.purge()
            await queue.publish_many(as_messages(KEYS))
            assert [row.seq async for row in snapshot.rows()] == places
        with pytest.raises(SnapshotExpired):
            _ = [row async for row in snapshot.rows()]


@looped
async def test_reset_and_delete_reach_all_shards(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        places = sorted(await queue.publish_many(as_messages(KEYS)))
        cursor = await queue.cursor("lake", start="end")
        assert await cursor.next() is None
        with pytest.raises(Invalid, match="says nothing about the 2 others"):
            await cursor.reset(1)
        await cursor.reset("beginning")
        snapshot = await cursor.next()
        assert snapshot is not None
        assert [row.seq async for row in snapshot.rows()] == places
        await cursor.reset(datetime.now(UTC) + timedelta(hours=1))
        with pytest.raises(NotFound, match="reset"):
            await snapshot.commit()
        assert await cursor.delete()
        assert not await cursor.delete()
        assert await queue.cursors() == {}


# --- Deleted and made anew ----------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
@looped
async def test_nothing_of_a_deleted_queue_is_taken_for_the_new_one(
    tmp_path: Path, shards: int
) -> None:
    async with opened(tmp_path) as m:
        old = await m.queue("orders", shards=shards)
        await old.publish_many(as_messages(KEYS), producer="p", number=1)
        leases = await old.lease(5)
        receipts = [lease.receipt for lease in leases]
        cursor = await old.cursor("lake")
        snapshot = await cursor.next()
        assert snapshot is not None
        await old.stage("s", as_messages(KEYS))
        waiting = [asyncio.ensure_future((await m.queue("orders")).lease(1, wait=20))]
        await waiting[0]
        pinned = old.snapshot()
        held = await pinned.__aenter__()
        await m.delete_queue("orders")

        new = await m.queue("orders", shards=shards)
        # Messages and counters.
        assert await new.peek(10) == []
        assert (await new.stats())["published"] == 0
        # Producers: the number is new.
        assert await new.producer("p") == 0
        places = await new.publish_many(as_messages(KEYS), producer="p", number=1)
        assert len(places) == len(KEYS)
        # Stages.
        assert await new.stages() == {}
        with pytest.raises(NotFound, match="no stage"):
            await new.publish_staged(["s"])
        # Cursors, and snapshots of theirs.
        assert await new.cursors() == {}
        with pytest.raises(NotFound):
            await cursor.next()
        with pytest.raises(NotFound):
            await snapshot.commit()
        fresh = await (await new.cursor("lake")).next()
        assert fresh is not None
        with pytest.raises(NotFound):
            await snapshot.unpin()
        # Pins.
        with pytest.raises(NotFound):
            _ = [row async for row in held.rows()]
        assert [row.seq async for row in fresh.rows()] == sorted(places)
        # Receipts and leases: refused, and nobody else's.
        mine = await new.lease(5)
        with pytest.raises(Forged, match="not of queue"):
            await new.settle(receipts)
        with pytest.raises(Forged, match="not of queue"):
            await new.settle(leases)
        with pytest.raises(NotFound):
            await old.settle(leases)
        for lease in leases:
            with pytest.raises(NotFound):
                await lease.settle()
        assert await new.extend(mine, 30) == {}
        for call in (old.publish(b"x"), old.publish_many([b"x"]), old.lease(1), old.stats()):
            with pytest.raises(NotFound, match="deleted"):
                await call
        assert (await new.stats())["published"] == len(KEYS)


@looped
async def test_who_waits_at_a_queue_that_is_deleted_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        cursor = await queue.cursor("lake")
        waiting = [
            asyncio.ensure_future(queue.lease(1, wait=20)),
            asyncio.ensure_future(cursor.next(wait=20)),
        ]
        await asyncio.sleep(0)
        await m.delete_queue("orders")
        for task in waiting:
            with pytest.raises(NotFound, match="deleted"):
                await task


@looped
async def test_a_receipt_outlives_its_engine(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        queue = await m.queue("orders", shards=3)
        await queue.publish_many(as_messages(KEYS))
        receipts = [lease.receipt for lease in await queue.lease(100)]
    async with opened(tmp_path) as m:
        queue = await m.queue("orders")
        assert await queue.settle(receipts) == {}
        assert (await queue.stats())["settled"] == len(KEYS)
        await queue.purge()
        refused = await queue.release(receipts)
        assert all(isinstance(error, Stale | Gone) for error in refused.values())
