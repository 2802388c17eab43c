"""Refusals that depend on earlier operations: each is clear, and loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millrace import errors, limits
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from tests.client.harness import LARGE, Clock, embedded, eventually, opened, run, timed

# --- Names of queues -----------------------------------------------------------------------------


@embedded
async def test_bad_names_are_refused(m: Millrace) -> None:
    names: list[Any] = ["", "a b", "a/b", "ü", "a\n", "x" * 1_000_000 + "!", None, 5, b"orders"]
    for name in names:
        for call in (m.queue(name), m.find(name), m.delete_queue(name), m.queue("q", space=name)):
            with pytest.raises(errors.Invalid, match="letters") as caught:
                await call
            assert caught.value.field in ("queue", "space")
            assert len(str(caught.value)) < 300
        with pytest.raises(errors.Invalid):
            m.transaction(space=name)
        with pytest.raises(errors.Invalid):
            await m.queues(space=name)
    with pytest.raises(errors.TooLarge, match="81 characters, up to 80") as too_long:
        await m.queue("n" * (limits.NAME_CHARS_MAX + 1))
    assert too_long.value.limit == limits.NAME_CHARS_MAX
    assert await m.queues() == []
    await m.queue("n" * limits.NAME_CHARS_MAX)


@embedded
async def test_an_unknown_queue_is_not_found(m: Millrace) -> None:
    with pytest.raises(errors.NotFound, match="no queue 'orders' in 'default'") as caught:
        await m.find("orders")
    assert caught.value.field == "queue"
    assert not await m.delete_queue("orders")
    assert await m.queues() == []


@embedded
async def test_bad_settings_make_no_queue(m: Millrace) -> None:
    for call in (m.queue("q", retention="forever"), m.queue("q", keep_deletes=-1)):
        with pytest.raises(errors.Invalid):
            await call
    assert await m.queues() == []


# --- What must fit exactly ------------------------------------------------------------------------


def test_the_largest_are_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=LARGE) as m:
            queue = await m.queue("orders", keyed=True)
            await queue.publish(bytes(limits.BODY_BYTES_MAX), key=bytes(limits.KEY_BYTES_MAX))
            headers = [("n", bytes(limits.HEADER_BYTES_MAX // limits.HEADERS_MAX - 1))]
            await queue.publish(b"", headers=headers * limits.HEADERS_MAX)
            await queue.publish_many([b""] * limits.PUBLISH_MESSAGES_MAX)
            rows = await queue.peek(2)
            assert rows[0].body is not None
            assert (len(rows[0].body), len(rows[0].key or b"")) == (
                limits.BODY_BYTES_MAX,
                limits.KEY_BYTES_MAX,
            )
            assert len(rows[1].headers) == limits.HEADERS_MAX
            leases = await queue.lease(
                limits.LEASE_MESSAGES_MAX, seconds=limits.LEASE_MS_MAX / 1000
            )
            assert len(leases) == limits.LEASE_MESSAGES_MAX
            assert await queue.settle(leases) == {}

    run(main())


# --- Receipts ------------------------------------------------------------------------------------


@embedded
async def test_receipts_of_others_are_refused(m: Millrace) -> None:
    queue, other = await m.queue("orders"), await m.queue("other")
    for each in (queue, other):
        await each.publish_many([b"1", b"2"])
    foreign = (await other.lease())[0]
    own = (await queue.lease())[0]
    text = own.receipt
    changed = [text[:at] + "AB"[text[at] == "A"] + text[at + 1 :] for at in range(len(text))]
    others: list[Lease | str] = [foreign, foreign.receipt, *changed, text[:-1], text + "A", ""]
    for receipt in others:
        calls = [
            queue.settle(receipt),
            queue.settle([own, receipt]),
            queue.release(receipt),
            queue.extend([receipt], 10),
        ]
        for call in calls:
            with pytest.raises(errors.Forged) as caught:
                await call
            assert caught.value.field in ("receipt", "leases")
    assert (await queue.stats())["settled"] == (await other.stats())["settled"] == 0
    await own.settle()
    await foreign.settle()


@timed
async def test_stale_receipts_are_told_so(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    first = (await queue.lease(seconds=1))[0]
    clock.forward(seconds=2)
    second = (await queue.lease())[0]
    for receipt in (first, first.receipt):
        with pytest.raises(errors.Stale, match="someone else") as caught:
            await queue.settle(receipt)
        assert caught.value.field == "receipt"
    assert (await queue.settle([first.receipt, second.receipt])).keys() == {1}
    assert (await queue.stats())["settled"] == 1


@timed
async def test_forgotten_leases_are_gone(m: Millrace, clock: Clock) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    lease = (await queue.lease())[0]
    await lease.settle()
    await lease.settle()
    clock.forward(seconds=limits.LEASE_REMEMBERED_MS / 1000 + 1)

    async def forgotten() -> bool:
        try:
            await lease.settle()
        except errors.Gone:
            return True
        return False

    await eventually(forgotten)
    with pytest.raises(errors.Gone, match="cannot be known"):
        await lease.settle()
    assert (await queue.stats())["settled"] == 1


# --- Too much at once ----------------------------------------------------------------------------


@embedded
async def test_a_full_inbox_refuses(m: Millrace) -> None:
    queue = await m.queue("orders")
    count = limits.INBOX_COMMANDS_MAX + 10
    found = await asyncio.gather(
        *(queue.publish(b"x") for _ in range(count)), return_exceptions=True
    )
    full = [error for error in found if isinstance(error, BaseException)]
    assert 0 < len(full) < count
    for error in full:
        assert isinstance(error, errors.Full)
        assert (error.field, error.limit) == ("inbox", limits.INBOX_COMMANDS_MAX)
        assert error.after_ms > 0
    assert (await queue.stats())["published"] == count - len(full)
    await queue.publish(b"after")


# --- Snapshots and cursors -----------------------------------------------------------------------


@embedded
async def test_bad_places_cannot_be_committed(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish_many([b"x"] * 5)
    cursor = await queue.cursor("report", start=2)
    snapshot = await cursor.next()
    assert snapshot is not None
    for seq in (0, 6, 2**62):
        with pytest.raises(errors.Refused):
            await snapshot.commit(seq)
    bad: list[Any] = [-1, 2**63, 1.5, "2", True]
    for seq in bad:
        with pytest.raises(errors.Invalid) as caught:
            await snapshot.commit(seq)
        assert caught.value.field == "seq"
    assert await queue.cursors() == {"report": 1}
    await snapshot.commit(3)
    with pytest.raises(errors.Stale, match="stands at 3"):
        await snapshot.commit(2)
    async with queue.snapshot() as pinned:
        with pytest.raises(errors.Invalid, match="without a cursor"):
            await pinned.commit()


@embedded
async def test_bad_times_are_refused(m: Millrace) -> None:
    queue = await m.queue("orders")
    cursor = await queue.cursor("report")
    with pytest.raises(errors.TooLarge) as caught:
        queue.snapshot(seconds=10**6)
    assert (caught.value.field, caught.value.limit) == ("seconds", limits.PIN_MS_MAX // 1000)
    for call in (cursor.next(wait=-1), cursor.next(wait=10**6), cursor.next(seconds=10**6)):
        with pytest.raises(errors.Refused):
            await call
    with pytest.raises(errors.Invalid, match="batch"):
        queue.work(batch=0)
    with pytest.raises(errors.Invalid, match="seconds"):
        queue.work(seconds=-1)
    with pytest.raises(errors.Invalid, match="idle"):
        queue.work(idle=-1)


@embedded
async def test_too_many_pins_are_refused(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"x")
    pins = [queue.snapshot() for _ in range(limits.PLAIN_PINS_MAX)]
    await asyncio.gather(*(pin.__aenter__() for pin in pins))
    with pytest.raises(errors.Full) as caught:
        await queue.snapshot().__aenter__()
    assert (caught.value.field, caught.value.limit) == ("pins", limits.PLAIN_PINS_MAX)
    cursor = await queue.cursor("c")
    assert await cursor.next() is not None, "there is room for cursors"
    await pins[0].__aexit__(None, None, None)
    async with queue.snapshot() as snapshot:
        assert snapshot.arrow().read_all().num_rows == 1


# --- Where it is used ----------------------------------------------------------------------------


def test_another_event_loop_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            queue = await m.queue("orders")

            def elsewhere() -> None:
                with pytest.raises(errors.Invalid, match="event loop"):
                    asyncio.run(queue.publish(b"x"))

            await asyncio.to_thread(elsewhere)
            assert (await queue.stats())["published"] == 0

    run(main())
