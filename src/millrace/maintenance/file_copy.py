"""Files on their way into a backup, or out of one: in steps, summed, durable at the end.

Rule 1: a copy is written and synced in small steps, and rests between them, so that the log's own
sync never waits long (F3).
Rule 2: a name is synced by whoever made the folder, when all its files are there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from millrace import limits
from millrace.errors import Corrupt, DiskFailed
from millrace.maintenance import bounds
from millrace.wal.files import Disk, File

Pause = Callable[[int], None]
"""Called after every step with the bytes that it was about; it may rest, or raise to end all."""

_NO_LINK = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOENT}
)
"""Another file system, one that has no hard links, or nothing to be linked."""


class Sum(NamedTuple):
    """What was copied."""

    size: int
    crc: int


def at_once(_: int) -> None:
    """The pause of work that holds nobody up."""


class Tally:
    """A pause that tells how many bytes are done, and of how many, once that is known."""

    def __init__(self, told: Callable[[int, int], None]) -> None:
        self._told = told
        self._done = self._total = 0

    def expect(self, count: int) -> None:
        """So much is still to be done."""
        self._total = self._done + count

    def __call__(self, count: int) -> None:
        self._done += count
        if self._total:
            self._told(self._done, max(self._total, self._done))


def copy(
    source: File, disk: Disk, name: str, *, size: int, pause: Pause = at_once, full: int = 0
) -> Sum:
    """Make the file `name` of the first `size` bytes of `source`; durable when this returns.

    `full`: zeros are written behind them up to this size.

    Raises:
        Full: the disk has no room; what was written is left to whoever made the folder.
        Corrupt: the source is shorter.
    """
    target = disk.create(name)
    crc = 0
    try:
        unsynced = 0
        for offset in range(0, size, bounds.CARE_STEP_BYTES):
            count = min(bounds.CARE_STEP_BYTES, size - offset)
            data = source.read(count, offset)
            if len(data) != count:
                raise Corrupt(f"{source.name} was cut short at {offset + len(data)}", field="path")
            crc = crc32c(data, crc)
            target.write([data], offset)
            unsynced += count
            if unsynced >= limits.SEAL_SYNC_BYTES:
                target.sync()
                unsynced = 0
            pause(count)
        _fill(target, size, full)
        target.sync_all()
    finally:
        target.close()
    return Sum(size, crc)


def _fill(target: File, begin: int, end: int) -> None:
    zeros = memoryview(bytes(min(limits.PREPARE_STEP_BYTES, max(end - begin, 0))))
    for offset in range(begin, end, limits.PREPARE_STEP_BYTES):
        target.write([zeros[: end - offset]], offset)


def sum_of(source: File, size: int, pause: Pause = at_once) -> int:
    """The checksum of the first `size` bytes."""
    crc = 0
    for offset in range(0, size, bounds.CARE_STEP_BYTES):
        data = source.read(min(bounds.CARE_STEP_BYTES, size - offset), offset)
        crc = crc32c(data, crc)
        pause(len(data))
    return crc


def link(source: Path, target: Path) -> bool:
    """Give the file a second name; False where that cannot be, or where it is gone."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise DiskFailed(f"linking {source} to {target}: {error.strerror}", field="path") from error
    return True


def write_whole(disk: Disk, name: str, data: bytes, *, folder: str = "") -> None:
    """Put a small file in the place of the one of its name, in one step; durable afterwards."""
    new = f"{name}.new"
    if disk.exists(new):
        disk.remove(new)
    file = disk.create(new)
    try:
        file.write([data], 0)
        file.sync_all()
    finally:
        file.close()
    disk.rename(new, name)
    disk.sync_folder(folder)
