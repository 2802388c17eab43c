"""The WAL archive: every point can be restored, and a gap is never crossed."""

from __future__ import annotations

import asyncio
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, real_ports
from millrace.settings import Settings
from tests.client.harness import SMALL, Clock, eventually, opened, run
from tests.maintenance.test_backup import bodies

PATIENT = Settings(segment_bytes=1024 * 1024, log_segments_max=64, follow_held_bytes=1 << 30)
TIGHT = Settings(segment_bytes=1024 * 1024, follow_held_bytes=0)


def node_of(m: Millrace) -> Node:
    return m._engine._node  # type: ignore[attr-defined, no-any-return]


async def recycle(m: Millrace) -> None:
    """Release all segments of the log that nobody holds."""
    await node_of(m).checkpointer.seal_all()


async def archive(m: Millrace) -> None:
    follower = node_of(m).supervisor.archiver
    assert follower is not None
    await follower.catch_up()


def test_what_is_recycled_was_archived_before(tmp_path: Path) -> None:
    async def main() -> None:
        vault = tmp_path / "vault"
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            await m.backup(vault, follow=True)
            for turn in range(8):
                await queue.publish_many([b"%d" % turn] * 10)
                await recycle(m)
        # The next engine resumes the archive on its own.
        async with opened(tmp_path / "data") as m:
            queue = await m.find("orders")
            await queue.publish(b"last")
            await recycle(m)
        assert (await millrace.verify(vault, against=tmp_path / "data")).differences == ()
        shutil.rmtree(tmp_path / "data")
        await millrace.restore(vault, tmp_path / "again")
        async with opened(tmp_path / "again") as m:
            found = await bodies(m)
        assert found == [b"%d" % turn for turn in range(8) for _ in range(10)] + [b"last"]

    run(main())


def test_a_time_is_reached(tmp_path: Path) -> None:
    async def main() -> None:
        vault, clock = tmp_path / "vault", Clock()
        clock.stop()
        begun = datetime.fromtimestamp(clock() / 1000, UTC)
        async with opened(tmp_path / "data", clock=clock) as m:
            queue = await m.queue("orders")
            await m.backup(vault, follow=True)
            for second in range(1, 6):
                clock.forward(seconds=1)
                await queue.publish(b"%d" % second)
        for second in range(6):
            into = tmp_path / f"at-{second}"
            at = begun + timedelta(seconds=second, milliseconds=500 if second < 5 else 0)
            made = await millrace.restore(vault, into, time=at)
            async with opened(into) as m:
                assert await bodies(m) == [b"%d" % n for n in range(1, second + 1)]
            assert made.time <= at
        for wrong in (begun - timedelta(seconds=1), begun + timedelta(seconds=60)):
            with pytest.raises(errors.Refused):
                await millrace.restore(vault, tmp_path / "never", time=wrong)
        assert not (tmp_path / "never").exists()

    run(main())


def test_what_the_archive_lacks_is_held_up_to_a_size(tmp_path: Path) -> None:
    """The repository is missing: the log is retained, and archived when it is back."""

    async def main() -> None:
        vault = tmp_path / "vault"
        async with opened(tmp_path / "data", settings=PATIENT) as m:
            queue = await m.queue("orders")
            await m.backup(vault, follow=True)
        vault.rename(tmp_path / "away")
        async with opened(tmp_path / "data", settings=PATIENT) as m:
            # More than the segments that are ready: free ones are overwritten.
            for turn in range(12):
                await (await m.find("orders")).publish(b"%d" % turn)
                await recycle(m)
            with pytest.raises(errors.NotFound, match="mounted"):
                await archive(m)
        # Nor does the next engine recycle it, whose index does not need it.
        async with opened(tmp_path / "data", settings=PATIENT) as m:
            (tmp_path / "away").rename(vault)
            await archive(m)
            assert (await m.health()).archive_gap is False
            queue = await m.find("orders")
            await queue.publish(b"12")
        await millrace.restore(vault, tmp_path / "again")
        async with opened(tmp_path / "again") as m:
            assert await bodies(m) == [b"%d" % n for n in range(13)]

    run(main())


def test_a_gap_is_told_of_and_never_crossed(tmp_path: Path) -> None:
    async def main() -> None:
        vault = tmp_path / "vault"
        async with opened(tmp_path / "data", settings=TIGHT) as m:
            queue = await m.queue("orders")
            await m.backup(vault, follow=True)
            await queue.publish(b"archived")
            await archive(m)
        vault.rename(tmp_path / "away")
        async with opened(tmp_path / "data", settings=TIGHT) as m:
            queue = await m.find("orders")
            for _ in range(2):
                await queue.publish(b"nobody has it")
                await recycle(m)
            await queue.publish(b"behind the gap")
            (tmp_path / "away").rename(vault)
            await archive(m)
            assert (await m.health()).archive_gap is True
        with pytest.raises(errors.Refused, match="gap") as refusal:
            await millrace.restore(vault, tmp_path / "never")
        last = refusal.value.limit
        assert refusal.value.field == "index"
        with pytest.raises(errors.Refused, match="gap") as refusal:
            await millrace.restore(vault, tmp_path / "never", time=datetime.now(UTC))
        assert refusal.value.field == "time"
        await millrace.restore(vault, tmp_path / "before", index=last)
        async with opened(tmp_path / "before") as m:
            assert await bodies(m) == [b"archived"]
        # A new backup begins a new stretch.
        async with opened(tmp_path / "data", settings=TIGHT) as m:
            await m.backup(vault, follow=True)
            assert (await m.health()).archive_gap is False
            await (await m.find("orders")).publish(b"after")
        await millrace.restore(vault, tmp_path / "after")
        async with opened(tmp_path / "after") as m:
            assert (await bodies(m))[-2:] == [b"behind the gap", b"after"]

    run(main())


def test_unfollow_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            await m.queue("orders")
            assert await m.unfollow() is False
            await m.backup(tmp_path / "vault", follow=True)
            assert (await m.health()).archive == tmp_path / "vault"
            assert await m.unfollow() is True
            assert (await m.health()).archive is None
        async with opened(tmp_path / "data") as m:
            assert (await m.health()).archive is None

    run(main())


def test_the_archive_keeps_up_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            await m.backup(tmp_path / "vault", follow=True)
            await queue.publish(b"one")

            async def is_archived() -> bool:
                return (await m.health()).archive_behind_bytes == 0

            await eventually(is_archived)
            into = tmp_path / "again"
            await millrace.restore(tmp_path / "vault", into)
            async with opened(into) as other:
                assert await bodies(other) == [b"one"]

    run(main())


def test_an_engine_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async def begin() -> Node:
        node = await Node.open(real_ports(tmp_path / "data"), SMALL)
        m = Millrace(EmbeddedEngine(node))
        queue = await m.queue("orders")
        await m.backup(tmp_path / "vault", follow=True)
        await queue.publish(b"not archived by this one, perhaps")
        return node

    node = asyncio.run(begin())
    node.give_up()
    assert not [one for one in threading.enumerate() if one.name == "millrace-archive"]

    async def go_on() -> None:
        async with opened(tmp_path / "data"):
            pass
        assert (await millrace.verify(tmp_path / "vault", against=tmp_path / "data")).rows == 1

    run(go_on())
