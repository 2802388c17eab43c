"""Opening a folder that another process may hold for a moment.

Rule: a process that took the folder just now may be a command that is about to end, or a server
that is about to share it, and is waited for. A process that has held it for longer is waited for
only with an explicit timeout.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.opening import open as open_folder
from millrace.errors import InUse
from millrace.settings import Settings

_LOCK = "lock"
"""The file whose modification time is that of the latest takeover."""


async def take_folder(
    path: Path,
    settings: Settings,
    *,
    patience: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Millrace:
    """Open a folder, or join the process that shares it, as soon as either is possible.

    `patience` is the timeout in seconds. None waits only for a process that took the folder just
    now, for `limits.FOLDER_TAKEN_SECONDS`. `say` is called once when it has to wait.

    Raises:
        InUse: the folder is still in use.
    """
    loop = asyncio.get_running_loop()
    seconds = limits.FOLDER_TAKEN_SECONDS if patience is None else patience
    until = loop.time() + seconds
    is_first = True
    while True:
        try:
            return await open_folder(path, settings=settings)
        except InUse as error:
            # This process would wait for itself.
            is_own = error.pid == os.getpid()
            # A lock is taken an instant before the file's time is set, so check twice.
            is_kept = patience is None and not is_first and not _was_taken_now(path)
            if is_own or is_kept or loop.time() >= until:
                raise
            if say is not None and not is_first:
                whose = "another process" if error.pid is None else f"process {error.pid}"
                say(f"{path} is in use by {whose}; waiting up to {seconds:g} s for it")
                say = None
            is_first = False
        await asyncio.sleep(limits.FOLDER_KNOCK_SECONDS)


def _was_taken_now(path: Path) -> bool:
    try:
        taken = (path / _LOCK).stat().st_mtime
    except OSError:
        return False
    # If the clock was set back, the wait has the same bound.
    return abs(time.time() - taken) < limits.FOLDER_TAKEN_SECONDS
