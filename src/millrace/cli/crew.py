"""The commands that `millrace work` runs, a few at a time.

Rule 1: a message is settled when its command has ended with 0, never before; otherwise it is
released as failed. Where the user insists on an end, it is given back as if it had not been tried.
Rule 2: a message that failed is held for a while before it is given back, so that one that always
fails does not keep the machine busy. With `once` it is held to the end: no message is tried twice.
Rule 3: a command that is being run is never left alone: its end is waited for.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from millrace.cli.bounds import FAILED_MAX, KILL_SECONDS, LOST_SECONDS, VARIABLE_BYTES_MAX
from millrace.cli.ending import Ended
from millrace.cli.shell import shown_name
from millrace.cli.stopping import Stop
from millrace.cli.text import named
from millrace.errors import Closed, MillraceError, Refused, Unknown

if TYPE_CHECKING:
    from millrace import Lease, Queue


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")


SETTINGS = (
    b"MILLRACE_DATA",
    b"MILLRACE_URL",
    b"MILLRACE_CONTEXT",
    b"MILLRACE_CONTEXTS",
    b"MILLRACE_TOKEN",
    b"MILLRACE_TOKEN_FILE",
    b"MILLRACE_CERTIFICATES",
    b"MILLRACE_SEGMENT_BYTES",
)
"""Variables of this program that say nothing of a message."""


class Result(NamedTuple):
    """How a message fared."""

    seq: int
    how: str
    """settled, failed, released (not its fault), or lost (to a newer revision or another worker)"""
    exit_code: int | None
    seconds: float


class Crew:
    """Runs a command for each message of a queue."""

    def __init__(
        self,
        queue: Queue,
        command: Sequence[str],
        stop: Stop,
        tell: Callable[[Result], None],
        *,
        pause: float,
        is_json: bool,
        waits: bool = False,
    ) -> None:
        """With `waits`, one who does not answer may do so later."""
        self._waits = waits
        self._queue = queue
        self._command = command
        self._stop = stop
        self._tell = tell
        self._pause = pause
        self._is_json = is_json
        self._held: list[Lease] | None = None
        self.counts = {"settled": 0, "failed": 0, "released": 0, "lost": 0}

    async def run(self, *, concurrency: int, seconds: float, once: bool) -> None:
        """Work until there is nothing left, or for ever; until the user wants an end.

        Raises:
            Ended: too many messages have failed, or the command cannot be run.
        """
        self._held = [] if once else None
        free = asyncio.Semaphore(concurrency)
        idle = 0 if once else None
        try:
            # What runs is waited for, whatever ends the loop.
            async with (
                self._queue.work(batch=concurrency, seconds=seconds, idle=idle) as messages,
                asyncio.TaskGroup() as running,
            ):
                while await self._stop.unless(free.acquire()):
                    try:
                        lease = await self._stop.unless(anext(messages))
                    except StopAsyncIteration:
                        break
                    if lease is None:
                        break
                    if self._stop.is_set:
                        await lease.release()
                        break
                    running.create_task(self._do(lease, free))
        except* (Ended, MillraceError, OSError) as group:
            raise group.exceptions[0] from None
        finally:
            if self._held:
                await self._queue.release(self._held, failed=True)
        if self._held is not None and len(self._held) >= FAILED_MAX:
            raise Ended(
                f"{FAILED_MAX:,} messages have failed, and no more were tried",
                "see to the command first; what it failed on is in the queue",
            )

    async def _do(self, lease: Lease, free: asyncio.Semaphore) -> None:
        began = time.monotonic()
        try:
            code = await self._command_for(lease)
            how = await self._end(lease, code)
        finally:
            free.release()
        self.counts[how] += 1
        self._tell(Result(lease.seq, how, code, round(time.monotonic() - began, 3)))

    async def _command_for(self, lease: Lease) -> int:
        """Run the command to its end; returns its exit code, below zero if a signal ended it."""
        process = await self._start(lease)
        ended = asyncio.ensure_future(process.communicate(lease.body))
        insisted = asyncio.ensure_future(self._stop.insisted.wait())
        try:
            while not ended.done():
                await asyncio.wait(
                    {ended, insisted}, timeout=LOST_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not ended.done() and (insisted.done() or lease.lost is not None):
                    await _end_process(process)
            await ended
        finally:
            insisted.cancel()
            if not ended.done():
                await _end_process(process)
        assert process.returncode is not None
        return process.returncode

    async def _start(self, lease: Lease) -> asyncio.subprocess.Process:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=sys.stderr.fileno() if self._is_json else None,
                env=environment(lease, shown_name(self._queue)),
                # The terminal's interrupt is for this program, which ends in order.
                start_new_session=True,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It may run already, and what it has started with it.
            await _end_process(await starting)
            raise
        except OSError as error:
            what = f"{self._command[0]} cannot be run: {error.strerror}"
            raise Ended(what, "try it on its own first") from error

    async def _end(self, lease: Lease, code: int) -> str:
        try:
            if code == 0:
                await self._insist(lease.settle)
                return "settled"
            if self._stop.insisted.is_set():
                await lease.release()
                return "released"
            if lease.lost is not None:
                return "lost"
            await self._give_back(lease)
        except Refused:
            # Someone else has it, a newer revision has replaced it, or the queue was deleted.
            return "lost"
        return "failed"

    async def _give_back(self, lease: Lease) -> None:
        if self._held is not None:
            self._held.append(lease)
            if len(self._held) >= FAILED_MAX:
                self._stop.asked.set()
            return
        await self._stop.unless(asyncio.sleep(self._pause))
        await self._insist(partial(lease.release, failed=True))

    async def _insist(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Have it done; a server that is away is waited for, unless the user wants an end."""
        while True:
            try:
                await ask()
                return
            except (Closed, Unknown):
                if not self._waits or self._stop.is_set:
                    raise


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Ask the command to end, with all that it has started; then insist."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            # It may have ended by itself, and its exit code be on its way.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()
                return


def environment(lease: Lease, queue: str) -> dict[bytes, bytes]:
    """The environment of a message's command.

    An environment takes no zero bytes: a value that has some is in `MILLRACE_HEADERS` alone. What
    is too large for a variable is left out. Nothing is said of a message whose command has started
    this program.
    """
    headers = [{"name": name, **named("value", value)} for name, value in lease.headers]
    own = {
        "MILLRACE_QUEUE": queue.encode(),
        "MILLRACE_SEQ": b"%d" % lease.seq,
        "MILLRACE_TIME_MS": b"%d" % lease.time_ms,
        "MILLRACE_DELIVERIES": b"%d" % lease.deliveries,
        "MILLRACE_FAILURES": b"%d" % lease.failures,
        "MILLRACE_RECEIPT": lease.receipt.encode(),
        "MILLRACE_HEADERS": json.dumps(headers).encode(),
        "MILLRACE_KEY": lease.key or b"",
    }
    for name, value in lease.headers:
        own.setdefault(f"MILLRACE_HEADER_{_NOT_IN_NAMES.sub('_', name).upper()}", value)
    passed = {
        name.encode(): value
        for name, value in own.items()
        if b"\0" not in value and len(value) <= VARIABLE_BYTES_MAX
    }
    others = {
        name: value
        for name, value in os.environb.items()
        if name in SETTINGS or not name.startswith(b"MILLRACE_")
    }
    return {**others, **passed}
