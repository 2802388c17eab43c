"""Retention of a log on a real engine: by age, number and bytes, and what holds messages back."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import errors
from millrace.client.millrace import Millrace
from millrace.testing.frozen_clock import FrozenClock, open_millrace
from tests.client.harness import embedded, run


def test_a_log_keeps_messages_for_so_long(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FrozenClock()
        async with await open_millrace(tmp_path / "data", clock=clock) as m:
            queue = await m.queue("events", retention="log", keep=3600)
            await queue.publish_many([b"%d" % at for at in range(5)])
            held = await queue.lease(1)
            async with queue.snapshot(seconds=80_000) as snapshot:
                clock.advance(3000)
                await queue.publish(b"late")
                clock.advance(660)
                await clock.caught_up()
                assert [row.body for row in await queue.peek()] == [b"late"]
                assert len([row async for row in snapshot.rows()]) == 5
                with pytest.raises(errors.Gone):
                    await held[0].settle()
            stats = await queue.stats()
            assert (stats["live"], stats["expired"]) == (1, 5)
        async with await open_millrace(tmp_path / "data", clock=clock) as m:
            queue = await m.find("events")
            assert await queue.stats() == stats
            clock.advance(3600)
            await clock.caught_up()
            assert (await queue.stats())["live"] == 0

    run(main())


def test_files_go_with_what_has_expired(tmp_path: Path) -> None:
    """Disk usage follows the retained messages, through checkpoints, sealing and reopening."""

    async def main() -> None:
        clock = FrozenClock()
        sizes: list[int] = []
        for _ in range(6):
            async with await open_millrace(tmp_path / "data", clock=clock) as m:
                queue = await m.queue("events", retention="log", keep_bytes=3 * 1024 * 1024)
                for _ in range(16):
                    await queue.publish_many([bytes(10_000)] * 50)
                clock.advance(5)
                await clock.caught_up()
                live = (await queue.stats())["live"]
                assert 3 * 1024 * 1024 <= live * 10_000 < 5.2 * 1024 * 1024
            sizes.append(sum(path.stat().st_size for path in (tmp_path / "data").rglob("*.arrow")))
        assert max(sizes) < 16 * 1024 * 1024

    run(main())


@embedded
async def test_settings_that_no_queue_takes(m: Millrace) -> None:
    for settings, field in [
        ({"keep": 5}, "keep"),
        ({"keep_bytes": 5}, "keep_bytes"),
        ({"retention": "log", "keyed": True, "keep_messages": 5}, "keep_messages"),
        ({"retention": "log", "keep_messages": -1}, "keep_messages"),
        ({"retention": "log", "keep_bytes": 1.5}, "keep_bytes"),
        ({"pin_max_bytes": -1}, "pin_max_bytes"),
        ({"retain_max": -1}, "retain_max"),
        ({"compressed": "gzip"}, "compressed"),
    ]:
        with pytest.raises(errors.Invalid) as refused:
            await m.queue("q", **settings)  # type: ignore[arg-type]
        assert refused.value.field == field
    queue = await m.queue("log", retention="log")
    assert (await queue.configure(keep=60, keep_messages=7)).keep_messages == 7
    assert (await queue.configure(keep_messages=0)).keep_ms == 60_000
    assert (await queue.configure(compressed="lz4")).compressed == "lz4"
    assert (await queue.configure(compressed="none")).compressed == ""


@embedded
async def test_who_holds_back_is_told(m: Millrace) -> None:
    queue = await m.queue("work")
    await queue.cursor("lake", retain=True)
    await queue.publish_many([bytes(1000)] * 10)
    await queue.settle(await queue.lease(4))
    async with queue.snapshot() as _:
        await queue.settle(await queue.lease(2))
        pin, cursor = (await queue.holders()).held
    assert (pin.kind, pin.rows, pin.seq) == ("pin", 0, 10), "the cursor keeps what was settled"
    assert (cursor.kind, cursor.name, cursor.seq, cursor.rows) == ("cursor", "lake", 0, 6)
    assert 6000 <= cursor.bytes <= 6200
