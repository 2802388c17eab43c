"""Work in a child of this process, which is quicker to start than a process of its own.

Only a process that runs no threads of its own may do this.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from millrace.cli.check.report import (
    CheckPhase,
    CheckReporter,
    Finding,
    PhaseCounts,
    PhaseSkipped,
    decode,
)
from millrace.cli.check.worker import run_phases
from millrace.cli.folder import Folder
from tests.crash import program
from tests.crash.events import Closed, Duty, events_in, whole_bytes
from tests.crash.ledger import Ledger
from tests.support.timeouts import scaled

CHILD_SECONDS_MAX = scaled(30)
"""An engine that takes longer is taken to hang."""


class Failed(Exception):
    """The program did not come to its end."""


def live(folder: Path, duty: Duty, ledger: Ledger) -> None:
    """Let the program live in a child until it closes by itself; the ledger hears it.

    Raises:
        Failed: it ended in another way, or took too long; the text is what it said.
    """
    heard = b""
    is_closed = False
    with _Child(lambda out: asyncio.run(program.run(folder, duty, out))) as child:
        for data in child.said():
            heard += data
            whole = whole_bytes(heard)
            for event in events_in(heard[:whole]):
                is_closed = is_closed or isinstance(event, Closed)
                ledger.hear(event)
            heard = heard[whole:]
        child.must(is_closed)


def check(folder: Path) -> list[str]:
    """What `millrace check` finds, in a child.

    Raises:
        Failed: the check itself has failed.
    """
    heard = b""
    with _Child(lambda out: _check(folder, out)) as child:
        for data in child.said():
            heard += data
        messages = [decode(line) for line in heard.splitlines()]
        child.must(bool(messages) and isinstance(messages[-1], PhaseCounts | PhaseSkipped))
    return [message.text() for message in messages if isinstance(message, Finding)]


def _check(folder: Path, out: int) -> None:
    os.dup2(out, sys.stdout.fileno())
    run_phases(Folder(folder), CheckReporter(), list(CheckPhase))


class _Child:
    """A child that does one thing and ends; it never returns to what the parent was about."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._heard, its = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._heard)
            os.dup2(self._errors.fileno(), sys.stderr.fileno())
            _do(work, its)
        os.close(its)

    def said(self) -> Iterator[bytes]:
        """What it says, to its end or to the end of its time."""
        until = time.monotonic() + CHILD_SECONDS_MAX
        while select.select([self._heard], [], [], max(until - time.monotonic(), 0))[0]:
            data = os.read(self._heard, 1 << 20)
            if not data:
                return
            yield data

    def must(self, is_well: bool) -> None:  # noqa: FBT001
        """Raise `Failed` with what it said of its failure, if it did not come to its end."""
        if is_well:
            return
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        raise Failed(said[-3_000:] or "it did not come to its end, and said nothing")

    def __enter__(self) -> _Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        os.close(self._heard)
        self._errors.close()


def _do(work: Callable[[int], None], out: int) -> NoReturn:
    code = 1
    try:
        work(out)
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)
