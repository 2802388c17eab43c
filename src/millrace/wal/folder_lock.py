"""The lock of a folder: one owner, in this process or elsewhere.

The kernel's lock belongs to the open file, which a forked process shares with its parent: it would
keep the folder locked when the owner has closed it, or is dead. So the owner unlocks in so many
words, and a forked process closes its own descriptors first of all.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from millrace.errors import InUse


class RealLock:
    """A locked descriptor: the kernel lets go of it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        status = os.fstat(descriptor)
        self.file = (status.st_dev, status.st_ino)
        _HELD.add(self)

    def release(self) -> None:
        """Let another owner in. Releasing twice changes nothing, nor does a forked process."""
        if os.getpid() == self._process and self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor; whoever shares it keeps the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        _HELD.discard(self)
        if descriptor >= 0:
            os.close(descriptor)


_HELD: set[RealLock] = set()
"""The locks of this process: a fork must find them, whoever calls it."""


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def take(descriptor: int, root: Path) -> RealLock:
    """Become the one owner by the descriptor, which is closed where that fails.

    Raises:
        InUse: another owner lives; `pid` says where.
        OSError: the file cannot be locked or written.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return RealLock(descriptor)
    except BlockingIOError as error:
        in_use = _in_use(descriptor, root)
        os.close(descriptor)
        raise in_use from error
    except OSError:
        os.close(descriptor)
        raise


def _in_use(descriptor: int, root: Path) -> InUse:
    status = os.fstat(descriptor)
    file = (status.st_dev, status.st_ino)
    # By the number alone it could be another machine's process.
    if any(lock.file == file for lock in list(_HELD)):
        return InUse(
            f"{root} is already open in this process ({os.getpid()}); use it there, from any "
            "task or thread, or close it first",
            pid=os.getpid(),
        )
    digits = os.pread(descriptor, 20, 0).strip()
    pid = int(digits) if digits.isdigit() else None
    return InUse(
        f"{root} is in use by process {pid or 'unknown'}; close it there first, or share it there",
        # Our own number is that of a process of another machine or container, which has it as well.
        pid=None if pid == os.getpid() else pid,
    )
