"""Backup, archive and restore without disk space; the data is on another file system.

`test_backup_full_disk.py` runs it in a process of its own: `python -m tests.maintenance.full_disk
DATA SMALL`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.maintenance.restore import RESTORING
from tests.cli.program import findings
from tests.client.harness import SMALL, opened, run

DISK_BYTES = 16 * 1024 * 1024


async def main(data: Path, small: Path) -> None:
    vault = small / "vault"
    async with opened(data) as m:
        queue = await m.queue("orders")
        for _ in range(4):
            await queue.publish_many([os.urandom(1000)] * 500)
        await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
        # Across file systems, sealed files are copied the first time and linked the second.
        first = await m.backup(vault)
        second = await m.backup(vault)
        [name] = [path.name for path in (first.path / "sealed").iterdir()]
        paths = [made.path / "sealed" / name for made in (first, second)]
        assert paths[0].samefile(paths[1])
        assert not paths[0].samefile(data / "sealed" / name)
        for _ in range(12):
            await queue.publish_many([os.urandom(1000)] * 500)
        await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
        for _ in range(2):
            for _ in range(12):
                await queue.publish_many([os.urandom(1000)] * 500)
            await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
        with pytest.raises(errors.Full):
            await m.backup(vault, follow=True)
        # Nothing is left of it, and the engine goes on.
        assert sorted(path.name for path in vault.iterdir()) == [
            "000001",
            "000002",
            "archive",
            "lock",
        ]
        assert (await m.health()).archive is None
        await queue.publish(b"goes on")
    assert (await millrace.verify(second.path)).rows == 2000
    fill(small)
    with pytest.raises(errors.Full):
        await millrace.restore(second.path, small / "again", settings=SMALL)
    check_unfinished(small / "again")
    restored = await millrace.restore(second.path, data.parent / "again", settings=SMALL)
    assert findings(restored.path) == []
    protect(small)
    with pytest.raises(errors.Refused, match="Read-only"):
        await millrace.verify(second.path)


def protect(disk: Path) -> None:
    """Make a folder read-only."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Fill the disk up to the last megabyte."""
    status = os.statvfs(disk)
    with (disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - 1_000_000)


def check_unfinished(folder: Path) -> None:
    assert (folder / RESTORING).exists()


if __name__ == "__main__":
    run(main(Path(sys.argv[1]), Path(sys.argv[2])))
