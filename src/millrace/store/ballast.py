"""The ballast: a file that reserves disk space for the index, to be deleted on a full disk.

A full disk must not stop the operations that free space: settles, deaths and checkpoints. The
ballast is deleted when a commit of the index finds no room, and restored when there is space again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

NAME = "ballast"

FULL_CODES = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error codes of a full disk."""


class Ballast:
    """One file of a fixed size in a folder; used by one thread at a time."""

    def __init__(self, folder: Path, *, size_bytes: int, spare_bytes: int) -> None:
        self._folder = folder
        self._path = folder / NAME
        self._size_bytes = size_bytes
        self._spare_bytes = spare_bytes
        try:
            held = self._path.stat().st_size
        except FileNotFoundError:
            held = -1
        self._is_whole = held == size_bytes
        self.is_short = False
        """True if the disk counts as full: the ballast is gone, or will soon be needed."""
        self.maintain()

    def maintain(self) -> None:
        """Check the free space: restore the ballast if there is enough, and update `is_short`."""
        free = self.free_bytes()
        if self._is_whole:
            self.is_short = free < self._spare_bytes * (2 if self.is_short else 1)
            return
        # Require more than the ballast, or it would be created and released alternately.
        wanted = self._size_bytes + self._spare_bytes * (2 if self.is_short else 1)
        self.is_short = free < wanted or not self._make()

    def release(self) -> None:
        """Delete the ballast. When this returns, the next write can use its space."""
        self.is_short = True
        self._is_whole = False
        self._path.unlink(missing_ok=True)
        # A journalling file system reuses freed blocks only after its next commit: this forces one.
        sync_folder(self._folder)

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Allocate disk blocks for the file, created if missing; release the ballast if need be."""
        try:
            allocate(path, size_bytes)
        except OSError as error:
            if error.errno not in FULL_CODES:
                raise
            self.release()
            allocate(path, size_bytes)

    def free_bytes(self) -> int:
        """Return the free bytes of the disk for ordinary users."""
        status = os.statvfs(self._folder)
        return status.f_bavail * status.f_frsize

    def _make(self) -> bool:
        self._path.unlink(missing_ok=True)
        try:
            allocate(self._path, self._size_bytes)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            if error.errno in FULL_CODES:
                return False
            raise
        self._is_whole = True
        return True


def allocate(path: Path, size_bytes: int) -> None:
    """Allocate disk blocks for the first bytes of the file; its content stays."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the entries of the folder durable (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
