"""One life of the program in a child of this process: quicker to start than a process of its own.

Only a process that runs no threads of its own may do this.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import tempfile
import time
import traceback
from pathlib import Path

from tests.crash import program
from tests.crash.events import Closed, Duty, events_in, whole_bytes
from tests.crash.ledger import Ledger

CHILD_SECONDS_MAX = 30.0
"""An engine that takes longer is taken to hang."""


class Failed(Exception):
    """The program did not come to its end."""


def live(folder: Path, duty: Duty, ledger: Ledger) -> None:
    """Let the program live in a child until it closes by itself; the ledger hears it.

    Raises:
        Failed: it ended in another way, or took too long; the text is what it said.
    """
    with tempfile.TemporaryFile() as errors:
        mine, its = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(mine)
            os.dup2(errors.fileno(), 2)
            _live(folder, duty, its)
        os.close(its)
        try:
            is_closed = _hear(mine, ledger)
        finally:
            os.close(mine)
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if not is_closed:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            raise Failed(f"status {status}: {said[-3_000:]}")


def _live(folder: Path, duty: Duty, out: int) -> None:
    """In the child: live, and end without returning to what the parent was about."""
    code = 1
    try:
        asyncio.run(program.run(folder, duty, out))
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def _hear(descriptor: int, ledger: Ledger) -> bool:
    """Hear it to its end; whether it said that it had closed."""
    until = time.monotonic() + CHILD_SECONDS_MAX
    rest = b""
    is_closed = False
    while select.select([descriptor], [], [], max(until - time.monotonic(), 0))[0]:
        data = os.read(descriptor, 1 << 20)
        if not data:
            break
        rest += data
        whole = whole_bytes(rest)
        for event in events_in(rest[:whole]):
            is_closed = is_closed or isinstance(event, Closed)
            ledger.hear(event)
        rest = rest[whole:]
    return is_closed
