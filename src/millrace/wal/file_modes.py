"""File permissions in a data folder: 0600 for files and 0700 for folders, without exception.

The index holds names of queues and users and digests of tokens; the log, sealed files and backups
hold bodies. `RealDisk` creates files with these modes; files of earlier versions, and files that
LMDB created by the umask of the process, are changed when the folder is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_OTHERS = 0o077


def make_private(folder: Path, names: Collection[str]) -> int:
    """Remove all permissions of group and others from the folder and the named entries in it.

    Folders are changed recursively. Other entries stay as they are; links are not followed. Files
    of another owner cannot be changed and are skipped: opening them fails, or their owner permits
    reading them. Returns the number of changed modes.
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
    # The file may just have been removed, have another owner, or its file system may keep no modes.
    with suppress(OSError):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
            return 1
    return 0
