"""Backup, archive and restore, killed before each of their disk operations.

Runs in a process of its own, which has no threads yet and can fork: `python -m
tests.maintenance.killed backup|follow|end|index|time FOLDER`. The last three restore.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.maintenance.backup_repository import UNFINISHED, BackupRepository
from millrace.maintenance.restore import RESTORING
from millrace.maintenance.verify import verify
from millrace.settings import Settings
from tests.cli.program import findings
from tests.client.harness import SMALL, opened
from tests.maintenance.point import (
    POINTS,
    Point,
    held,
    points,
)

Work = Callable[[], Coroutine[object, object, None]]

WIDE = Settings(segment_bytes=1024 * 1024, log_segments_max=200, follow_held_bytes=1 << 30)
"""Settings for an engine that leaves much to be archived when it is killed repeatedly."""

STEPS = ("fsync", "fdatasync", "rename", "link", "unlink", "mkdir")


def killed_at(step: int, work: Work) -> bool:
    """Do the work in a child that is killed before the given step; return False if it had fewer."""
    child = os.fork()
    if child == 0:
        left = step

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def one(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return one

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        code = 1
        try:
            asyncio.run(work())
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work itself has failed"
    return False


async def fill(folder: Path, vault: Path | None = None, *, follow: bool = False) -> None:
    async with opened(folder) as m:
        queue = await m.queue("orders")
        for _ in range(3):
            await queue.publish_many([bytes(1000)] * 500)
        await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
        await queue.publish_many([b"in the log"] * 10)
        if vault is not None:
            await m.backup(vault, follow=follow)


def backup(folder: Path) -> int:
    asyncio.run(fill(folder / "data"))

    async def work() -> None:
        async with opened(folder / "data") as m:
            queue = await m.queue("orders")
            await queue.publish(b"before")
            await m.backup(folder / "vault")

    step, made = 1, 0
    while killed_at(step, work):
        vault = BackupRepository(folder / "vault")
        if vault.path.exists():
            for number in vault.numbers()[made:]:
                assert verify(vault.folder_of(number), against=folder / "data").differences == []
            made = len(vault.numbers())
            assert sum(name.name.endswith(UNFINISHED) for name in vault.path.iterdir()) <= 1
        assert findings(folder / "data") == []
        step += 1
    last = BackupRepository(folder / "vault").numbers()[-1]
    assert verify(folder / "vault" / f"{last:06d}", against=folder / "data").differences == []
    assert not any(name.name.endswith(UNFINISHED) for name in (folder / "vault").iterdir())
    return step


def follow(folder: Path) -> int:
    """Kill engines while segments come and go: the archive misses nothing."""
    vault = folder / "vault"
    asyncio.run(fill(folder / "data", vault, follow=True))

    async def work() -> None:
        async with opened(folder / "data", settings=WIDE) as m:
            queue = await m.queue("orders")
            for _ in range(4):
                await queue.settle(await queue.lease(400))
                await queue.publish_many([bytes(1000)] * 400)
                await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]

    step = 1
    while killed_at(step, work):
        # Each engine resumes where the previous one was killed, and archives its rest.
        step += 1 + step // 12

    async def open_and_close() -> None:
        async with opened(folder / "data", settings=WIDE):
            pass

    asyncio.run(open_and_close())
    found = verify(vault / "000001", against=folder / "data")
    assert found.differences == [], found
    shutil.rmtree(folder / "data")
    asyncio.run(_restored(vault / "000001", folder / "again", found.index))
    return step


async def _restored(backup: Path, into: Path, index: int) -> None:
    """Restore everything up to the end from the archive alone."""
    made = await millrace.restore(backup, into)
    assert made.index == index


def restore(folder: Path, what: str) -> int:
    """Kill restores and repeat them; the result equals the source at the point."""
    point = asyncio.run(points(folder / "data", folder / "vault"))[what]
    into = folder / "into"

    async def work() -> None:
        await millrace.restore(folder / "vault", into, **point.wanted)

    async def refused() -> None:
        with pytest.raises(errors.Refused, match="unfinished restore"):
            await millrace.open(into, settings=SMALL)
        with pytest.raises(errors.Exists, match="unfinished restore: remove it"):
            await work()

    async def again() -> None:
        made = await millrace.restore(folder / "vault", into, **point.wanted)
        assert made.index == point.index

    # Each point takes its share of the steps; together they take all.
    step = 1 + POINTS.index(what)
    while killed_at(step, work):
        if (into / RESTORING).exists():
            asyncio.run(refused())
            shutil.rmtree(into)
        # A folder without the marker is complete, unless it is still empty.
        if not into.exists() or not any(into.iterdir()):
            asyncio.run(again())
        check_point(into, point)
        shutil.rmtree(into)
        step += len(POINTS)
    check_point(into, point)
    return step


def check_point(folder: Path, point: Point) -> None:
    """Check that the folder is sound, can be opened, and equals the source."""
    assert findings(folder) == []

    async def main() -> None:
        async with opened(folder) as m:
            assert await held(m) == point.held

    asyncio.run(main())


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    jobs = {"backup": backup, "follow": follow}
    print(jobs[what](where) if what in jobs else restore(where, what))
