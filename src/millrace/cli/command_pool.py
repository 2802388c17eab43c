"""A pool of child processes: `millrace work` runs one command per message, some concurrently.

Rule 1: a message is settled after its command exited with 0, never before; otherwise it is released
as failed. On a forced shutdown it is released without counting a failure.
Rule 2: a failed message is held for a pause before it is released, so that one that always fails
does not keep the machine busy. With `once` it is held to the end: no message is tried twice.
Rule 3: no command outlives the pool: each is awaited.
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
from millrace.cli.exit_errors import ExitError
from millrace.cli.formatting import bytes_field
from millrace.cli.shell import display_name
from millrace.cli.shutdown import ShutdownSignal
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
"""Environment variables that configure this program; they are passed on to commands."""


class CommandResult(NamedTuple):
    """Result of one command."""

    seq: int
    how: str
    """settled, failed, released (shutdown), or lost (to a newer revision or another worker)."""
    exit_code: int | None
    seconds: float


class CommandPool:
    """Runs a command for each message of a queue, up to `concurrency` at a time."""

    def __init__(
        self,
        queue: Queue,
        command: Sequence[str],
        stop: ShutdownSignal,
        tell: Callable[[CommandResult], None],
        *,
        pause: float,
        is_json: bool,
        waits: bool = False,
    ) -> None:
        """With `waits`, calls to an unreachable server are retried."""
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
        """Process messages until shutdown, or with `once` until the queue is empty.

        Raises:
            ExitError: too many messages have failed, or the command cannot be run.
        """
        self._held = [] if once else None
        free = asyncio.Semaphore(concurrency)
        idle = 0 if once else None
        try:
            # Running commands are awaited, whatever ends the loop.
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
        except* (ExitError, MillraceError, OSError) as group:
            raise group.exceptions[0] from None
        finally:
            if self._held:
                await self._queue.release(self._held, failed=True)
        if self._held is not None and len(self._held) >= FAILED_MAX:
            raise ExitError(
                f"{FAILED_MAX:,} messages have failed, and no more were tried",
                "fix the command first; the failed messages are in the queue",
            )

    async def _do(self, lease: Lease, free: asyncio.Semaphore) -> None:
        began = time.monotonic()
        try:
            code = await self._command_for(lease)
            how = await self._end(lease, code)
        finally:
            free.release()
        self.counts[how] += 1
        self._tell(CommandResult(lease.seq, how, code, round(time.monotonic() - began, 3)))

    async def _command_for(self, lease: Lease) -> int:
        """Run the command to its end; return its exit code, or the negative number of a signal."""
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
                env=environment(lease, display_name(self._queue)),
                # Ctrl-C on the terminal must reach this program only, which shuts down in order.
                start_new_session=True,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It may run already, with child processes of its own.
            await _end_process(await starting)
            raise
        except OSError as error:
            what = f"{self._command[0]} cannot be run: {error.strerror}"
            raise ExitError(what, "run it on its own first") from error

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
            # Another worker has it, a newer revision has replaced it, or the queue was deleted.
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
        """Make the call; retry while the server is unreachable, until shutdown is requested."""
        while True:
            try:
                await ask()
                return
            except (Closed, Unknown):
                if not self._waits or self._stop.is_set:
                    raise


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM to the process group of a command, and SIGKILL after a timeout."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            # The process may have exited already, with its exit code not yet collected.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()
                return


def environment(lease: Lease, queue: str) -> dict[bytes, bytes]:
    """Return the environment variables of a message's command.

    A value with zero bytes, which no variable can hold, is in `MILLRACE_HEADERS` alone. A value
    that is too large for a variable is left out. Variables of an outer message, whose command
    started this program, are removed.
    """
    headers = [{"name": name, **bytes_field("value", value)} for name, value in lease.headers]
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
