"""Modes of the files in a folder of queues: 0600, and 0700 for folders, without exception.

Names of queues, of users and digests of their tokens lie in the index, bodies in log, sealed files
and backups. New files are made so (`RealDisk`); what an earlier version made otherwise, or LMDB by
the umask of the process, is changed when the folder is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_OTHERS = 0o077


def make_private(folder: Path, names: Collection[str]) -> int:
    """Take the bits of group and others off the folder and the named entries, with all in them.

    Other entries belong to somebody else and stay as they are; links are not followed. Files of
    another owner cannot be changed and are passed over: opening them fails, or they are read with
    a right that their owner gave. Returns how many modes were changed.
    """
    folder = Path(os.path.realpath(folder))
    changed = _close(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in names:
                changed += _close_all(Path(entry.path))
    return changed


def _close_all(path: Path) -> int:
    changed = _close(path)
    for base, folders, files in os.walk(path):
        changed += sum(_close(Path(base, name)) for name in (*folders, *files))
    return changed


def _close(path: Path) -> int:
    # A file may go meanwhile, be of another owner, or lie where no modes are kept.
    with suppress(OSError):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
            return 1
    return 0
