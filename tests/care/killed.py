"""A backup, an archive and a restore, killed before each of their steps on the disk.

Run in a process of its own, which has no threads yet and can be forked:
`python -m tests.care.killed backup|follow|restore FOLDER`.
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
from millrace.care.restore import RESTORING
from millrace.care.vault import UNFINISHED, Vault
from millrace.care.verify import verify
from millrace.settings import Settings
from tests.cli.program import findings
from tests.client.harness import SMALL, opened

Work = Callable[[], Coroutine[object, object, None]]

WIDE = Settings(segment_bytes=1024 * 1024, log_segments_max=200, follow_held_bytes=1 << 30)
"""An engine that is killed again and again leaves much to be archived."""

STEPS = ("fsync", "fdatasync", "rename", "link", "unlink", "mkdir")


def killed_at(step: int, work: Work) -> bool:
    """Do the work in a child that is killed before its step of this number; False: it had fewer."""
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
        await m._engine._node.keeper.seal_all()  # type: ignore[attr-defined]
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
        vault = Vault(folder / "vault")
        if vault.path.exists():
            for number in vault.numbers()[made:]:
                assert verify(vault.folder_of(number), against=folder / "data").differences == []
            made = len(vault.numbers())
            assert sum(name.name.endswith(UNFINISHED) for name in vault.path.iterdir()) <= 1
        assert findings(folder / "data") == []
        step += 1
    last = Vault(folder / "vault").numbers()[-1]
    assert verify(folder / "vault" / f"{last:06d}", against=folder / "data").differences == []
    assert not any(name.name.endswith(UNFINISHED) for name in (folder / "vault").iterdir())
    return step


def follow(folder: Path) -> int:
    """Segments come and go, and the engine is killed: the archive misses nothing."""
    vault = folder / "vault"
    asyncio.run(fill(folder / "data", vault, follow=True))

    async def work() -> None:
        async with opened(folder / "data", settings=WIDE) as m:
            queue = await m.queue("orders")
            for _ in range(4):
                await queue.settle(await queue.lease(400))
                await queue.publish_many([bytes(1000)] * 400)
                await m._engine._node.keeper.seal_all()  # type: ignore[attr-defined]

    step = 1
    while killed_at(step, work):
        # Each engine goes on where the one before was killed, and archives what that one left.
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
    """From the archive alone, everything up to the end."""
    made = await millrace.restore(backup, into)
    assert made.index == index


def restore(folder: Path) -> int:
    asyncio.run(fill(folder / "data", folder / "vault"))
    into = folder / "into"

    async def work() -> None:
        await millrace.restore(folder / "vault", into)

    async def refused() -> None:
        with pytest.raises(errors.Refused, match="unfinished restore"):
            await millrace.open(into, settings=SMALL)

    step = 1
    while killed_at(step, work):
        if (into / RESTORING).exists():
            asyncio.run(refused())
        elif into.exists() and any(into.iterdir()):
            assert findings(into) == []
        shutil.rmtree(into, ignore_errors=True)
        step += 1
    assert findings(into) == []
    return step


if __name__ == "__main__":
    jobs = {"backup": backup, "follow": follow, "restore": restore}
    print(jobs[sys.argv[1]](Path(sys.argv[2])))
