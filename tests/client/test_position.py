"""Positions that followers store: tokens, and their validity after a restore."""

from __future__ import annotations

import asyncio
import random
import zlib
from base64 import urlsafe_b64encode
from pathlib import Path

import msgspec
import pytest

import millrace
from millrace import Position, errors
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.core.model import CursorPosition as Place
from millrace.core.model import ShardId
from tests.client.harness import embedded, opened, run

TOKEN = "pos1.kgGRlQfEEAABAgMEBQYHCAkKCwwNDg_MyAPNASxaJGhJ"
"""Its bytes are a format: followers have stored it."""

KNOWN = Position(((ShardId(7), Place(bytes(range(16)), 200, 3, 300)),))


def token_of(body: bytes) -> str:
    data = body + zlib.crc32(body).to_bytes(4, "big")
    return "pos1." + urlsafe_b64encode(data).rstrip(b"=").decode()


async def rows_of(queue: Queue, name: str, start: object) -> list[bytes | None]:
    cursor = await queue.cursor(name, start=start)  # type: ignore[arg-type]
    snapshot = await cursor.next()
    return [] if snapshot is None else [row.body async for row in snapshot.rows()]


# --- Tokens --------------------------------------------------------------------------------------


def test_the_format_of_tokens() -> None:
    assert str(KNOWN) == TOKEN
    assert Position.parse(TOKEN) == KNOWN
    assert (KNOWN.seq, KNOWN.snapshot_start, KNOWN.snapshot_end) == (200, 3, 300)
    assert KNOWN.seqs == (200,)


def test_a_damaged_token_is_refused() -> None:
    chance = random.Random(1)
    characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=é"
    for at in range(len(TOKEN) - 1):
        found = list(TOKEN)
        found[at] = chance.choice(characters.replace(TOKEN[at], ""))
        with pytest.raises(errors.Invalid, match="damaged") as told:
            Position.parse("".join(found))
        assert told.value.field == "position"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "pos1.",
        "pos2." + TOKEN[5:],
        TOKEN[:-5],
        "pos1." + "A" * 100_000,
        token_of(b""),
        token_of(b"\xc1"),
        token_of(msgspec.msgpack.encode([2, [[7, bytes(16), 1, 1, 1]]])),
        token_of(msgspec.msgpack.encode([1, []])),
        token_of(msgspec.msgpack.encode([1, [[7, bytes(15), 1, 1, 1]]])),
        token_of(msgspec.msgpack.encode([1, [[7, bytes(16), 1, 2, 3]]])),
        token_of(msgspec.msgpack.encode([1, [[7, bytes(16), -1, 0, 3]]])),
        token_of(msgspec.msgpack.encode([1, [[7, bytes(16), 2**63, 0, 2**63]]])),
        token_of(msgspec.msgpack.encode([1, [[7, bytes(16), 1, 1, 1, 9]]])),
        token_of(b"\x91" * 10_000),
    ],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(errors.Invalid) as told:
        Position.parse(token)
    assert told.value.field == "position"


# --- Going on ------------------------------------------------------------------------------------


@embedded
async def test_a_follower_goes_on_at_the_position_that_it_keeps(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"1", b"2", b"3", b"4"])
    async with queue.snapshot() as snapshot:
        whole, middle = snapshot.position, snapshot.position_at(2)
        with pytest.raises(errors.Invalid, match="5 is not within"):
            snapshot.position_at(5)
    await queue.publish(b"5")
    assert await rows_of(queue, "a", whole) == [b"5"]
    assert await rows_of(queue, "b", str(middle)) == [b"3", b"4", b"5"]
    assert await rows_of(queue, "c", await queue.position()) == []
    # What the follower has kept counts, not what the cursor of this name has committed.
    assert await rows_of(queue, "a", middle) == [b"3", b"4", b"5"]
    cursor = await queue.cursor("a", start=middle)
    assert (cursor.position.seq, cursor.position.snapshot_start) == (2, 0)
    await cursor.reset(str(whole))
    assert cursor.position == whole
    # An ordinary open goes on where the cursor is.
    assert (await queue.cursor("a")).position == whole


@embedded
async def test_a_position_of_another_queue_is_refused(m: Millrace) -> None:
    queue, other = await m.queue("orders"), await m.queue("tea")
    await queue.publish(b"1")
    position = await queue.position()
    for use in (other.cursor("c", start=position), other.cursor("c", start=str(position))):
        with pytest.raises(errors.NotFound, match="not of the queue") as told:
            await use
        assert told.value.field == "position"
    await m.delete_queue("orders")
    again = await m.queue("orders")
    with pytest.raises(errors.NotFound):
        await again.cursor("c", start=position)
    ahead = Position(((again.shards.first, Place(position.history, 5, 5, 5)),))
    with pytest.raises(errors.Invalid, match="ends at 0"):
        await again.cursor("c", start=ahead)
    assert await again.cursors() == {}


@embedded
async def test_of_several_shards_a_position_has_a_place_in_each(m: Millrace) -> None:
    queue = await m.queue("orders", shards=3)
    places = sorted(await queue.publish_many([b"%d" % n for n in range(30)]))
    async with queue.snapshot() as snapshot:
        whole = snapshot.position
        middle = snapshot.position_at(int(places[12]))
        rows = [row.body async for row in snapshot.rows()]
    assert Position.parse(str(whole)) == whole == await queue.position()
    assert await rows_of(queue, "a", whole) == []
    assert await rows_of(queue, "a", middle) == rows[13:]


@embedded
async def test_a_retaining_cursor_is_refused_behind_rows_that_were_settled(m: Millrace) -> None:
    for shards in (1, 3):
        queue = await m.queue(f"jobs-{shards}", shards=shards)
        lake = await queue.cursor("lake", retain=True)
        await queue.publish_many([millrace.Message(b"a", group="x"), millrace.Message(b"b")])
        first = await lake.next()
        assert first is not None
        await first.commit()
        await queue.publish_many([b"%d" % number for number in range(12)])
        second = await lake.next()
        assert second is not None
        for lease in await queue.lease(100):
            await lease.settle()
        # They are kept until the follower has committed them, and gone after that.
        lake = await queue.cursor("lake", start=first.position, retain=True)
        again = await lake.next()
        assert again is not None
        assert len([row async for row in again.rows()]) == 12
        await again.commit()
        for name in ("lake", "new"):
            with pytest.raises(errors.CursorExpired, match="while no cursor kept them") as told:
                await queue.cursor(name, start=first.position, retain=True)
            assert told.value.field == "start"
        with pytest.raises(errors.CursorExpired, match="while no cursor kept them"):
            await lake.reset(first.position)
        # One that does not retain is promised no rows that workers have settled.
        await queue.cursor("plain", start=first.position)
        await queue.cursor("lake", start=again.position, retain=True)


def test_k10_after_a_restore_a_follower_is_told_where_to_go_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("prices", keyed=True, retention="log")
            await queue.publish_many([b"1", b"2", b"3"])
            cursor = await queue.cursor("shop")
            first = await cursor.next()
            assert first is not None
            await first.commit()
            kept = first.position
            await m.backup(tmp_path / "backup")
            await queue.publish_many([b"lost", b"lost too"])
            ahead = (await queue.position(), str(await queue.position()))
        await millrace.restore(tmp_path / "backup", tmp_path / "restored")
        async with opened(tmp_path / "restored") as m:
            queue = await m.find("prices")
            # Other messages get the seqs of the lost ones: a bare seq would skip them silently.
            await queue.publish_many([b"new", b"newer", b"newest"])
            for start in ahead:
                with pytest.raises(errors.RolledBack, match="after 3"):
                    await queue.cursor("mine", start=start)
            with pytest.raises(errors.RolledBack) as told:
                await queue.cursor("mine", start=ahead[0])
            assert told.value.limit == 3
            assert "mine" not in await queue.cursors()
            back = Position.parse(told.value.position or "")
            assert back.history != kept.history
            wanted = [b"new", b"newer", b"newest"]
            assert await rows_of(queue, "mine", back) == wanted
            # One that was kept before the backup still holds.
            assert await rows_of(queue, "mine", kept) == wanted
            with pytest.raises(errors.RolledBack):
                await (await queue.cursor("mine")).reset(ahead[0])
            await queue.purge()
            for gone in (kept, *ahead):
                with pytest.raises(errors.CursorExpired, match="start over"):
                    await queue.cursor("mine", start=gone)

    run(main())


def test_k10_of_an_unknown_history_nothing_is_shared(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"1", b"2"])
            foreign = Position(((queue.shards.first, Place(bytes(16), 2, 2, 2)),))
            with pytest.raises(errors.RolledBack, match="after 0") as told:
                await queue.cursor("c", start=foreign)
            assert await rows_of(queue, "c", told.value.position) == [b"1", b"2"]

    run(main())


# --- Waiting for a follower ----------------------------------------------------------------------


@embedded
async def test_k6_a_publisher_waits_until_a_follower_has_committed(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursor = await queue.cursor("lake")
    await queue.publish_many([b"1", b"2", b"3"])
    position = await queue.position()
    with pytest.raises(errors.NotYet, match="'lake'") as late:
        await queue.wait_for(position, cursor="lake", wait=0)
    assert late.value.field == "wait"
    waiting = [
        asyncio.create_task(queue.wait_for(at, cursor="lake", wait=None))
        for at in (position, str(position))
    ]
    snapshot = await cursor.next()
    assert snapshot is not None
    await snapshot.commit(2)
    with pytest.raises(errors.NotYet):
        # In the middle, a newer revision of what was published may still lie ahead.
        await queue.wait_for(snapshot.position_at(2), cursor="lake", wait=0.001)
    assert not any(one.done() for one in waiting)
    await queue.publish(b"4")
    await snapshot.commit()
    # Nobody asks again and again: a step of a wait is a minute.
    await asyncio.gather(*waiting)
    await queue.wait_for(position, cursor="lake", wait=0)
    with pytest.raises(errors.NotYet):
        await queue.wait_for(await queue.position(), cursor="lake", wait=0)


@embedded
async def test_who_waits_is_told_that_the_cursor_is_gone(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"1")
    position = await queue.position()
    with pytest.raises(errors.NotFound, match="lake"):
        await queue.wait_for(position, cursor="lake", wait=0)
    cursor = await queue.cursor("lake")
    waiting = asyncio.create_task(queue.wait_for(position, cursor="lake", wait=None))
    await asyncio.sleep(0)
    await cursor.delete()
    with pytest.raises(errors.NotFound):
        await waiting
    for bad in (-1, "soon"):
        with pytest.raises(errors.Invalid) as told:
            await queue.wait_for(position, cursor="lake", wait=bad)  # type: ignore[arg-type]
        assert told.value.field == "wait"
    with pytest.raises(errors.Invalid):
        await queue.wait_for(3, cursor="lake")  # type: ignore[arg-type]


@embedded
async def test_of_several_shards_all_must_have_come_so_far(m: Millrace) -> None:
    queue = await m.queue("orders", shards=3)
    cursor = await queue.cursor("lake")
    places = sorted(await queue.publish_many([b"%d" % n for n in range(30)]))
    position = await queue.position()
    waiting = asyncio.create_task(queue.wait_for(position, cursor="lake", wait=None))
    snapshot = await cursor.next()
    assert snapshot is not None
    await snapshot.commit(int(places[20]))
    with pytest.raises(errors.NotYet):
        await queue.wait_for(position, cursor="lake", wait=0)
    assert not waiting.done()
    await snapshot.commit()
    await waiting


def test_k6_what_a_restore_took_back_is_never_confirmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            await queue.publish(b"1")
            await queue.cursor("lake")
            await m.backup(tmp_path / "backup")
            await queue.publish(b"2")
            lost = await queue.position()
        await millrace.restore(tmp_path / "backup", tmp_path / "restored")
        async with opened(tmp_path / "restored") as m:
            queue = await m.find("orders")
            await queue.publish_many([b"x", b"y"])
            snapshot = await (await queue.cursor("lake")).next()
            assert snapshot is not None
            await snapshot.commit()
            with pytest.raises(errors.RolledBack, match="publish it again"):
                await queue.wait_for(lost, cursor="lake", wait=None)

    run(main())
