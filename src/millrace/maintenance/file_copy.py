"""Copies files for backup and restore: in steps, with checksums, durable at the end.

Rule 1: a copy is written and synced in small steps with pauses between them, so that the sync of
the WAL never waits long (F3).
Rule 2: the creator of a folder syncs its names, once all files are there.
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
from millrace.wal.disk import Disk, File

StepCallback = Callable[[int], None]
"""Called after every step with its number of bytes; it may sleep, or raise to abort the work."""

_NO_LINK = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOENT}
)
"""Errors of hard links: another file system, one without hard links, or a missing file."""


class FileChecksum(NamedTuple):
    """Size and CRC-32C of a copied file."""

    size: int
    crc: int


def no_pause(_: int) -> None:
    """Step callback of work that need not be throttled."""


class ProgressTally:
    """Step callback that reports the bytes done and the total, once that is known."""

    def __init__(self, on_progress: Callable[[int, int], None]) -> None:
        self._on_progress = on_progress
        self._done = self._total = 0

    def expect(self, count: int) -> None:
        """Set the number of bytes that are still to come."""
        self._total = self._done + count

    def __call__(self, count: int) -> None:
        self._done += count
        if self._total:
            self._on_progress(self._done, max(self._total, self._done))


def copy(
    source: File, disk: Disk, name: str, *, size: int, pause: StepCallback = no_pause, full: int = 0
) -> FileChecksum:
    """Copy the first `size` bytes of `source` to the new file `name`; durable when this returns.

    `full`: pad with zeros up to this size.

    Raises:
        Full: the disk has no room; the partial file is left to the caller.
        Corrupt: the source is shorter.
    """
    target = disk.create(name)
    crc = 0
    try:
        unsynced = 0
        for offset in range(0, size, limits.CARE_STEP_BYTES):
            count = min(limits.CARE_STEP_BYTES, size - offset)
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
    return FileChecksum(size, crc)


def _fill(target: File, begin: int, end: int) -> None:
    zeros = memoryview(bytes(min(limits.PREPARE_STEP_BYTES, max(end - begin, 0))))
    for offset in range(begin, end, limits.PREPARE_STEP_BYTES):
        target.write([zeros[: end - offset]], offset)


def checksum(source: File, size: int, pause: StepCallback = no_pause) -> int:
    """Return the CRC-32C of the first `size` bytes."""
    crc = 0
    for offset in range(0, size, limits.CARE_STEP_BYTES):
        data = source.read(min(limits.CARE_STEP_BYTES, size - offset), offset)
        crc = crc32c(data, crc)
        pause(len(data))
    return crc


def link(source: Path, target: Path) -> bool:
    """Hard-link a file; return False if the file system cannot, or the file is gone."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise DiskFailed(f"linking {source} to {target}: {error.strerror}", field="path") from error
    return True


def replace_file(disk: Disk, name: str, data: bytes, *, folder: str = "") -> None:
    """Write or replace a small file atomically; durable when this returns."""
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
