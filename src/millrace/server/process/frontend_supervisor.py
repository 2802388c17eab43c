"""Supervisor of front ends: processes that serve HTTP and pass calls to the one engine.

Rule 1: all of them listen on the same addresses; the kernel distributes connections (SO_REUSEPORT).
Rule 2: a front end that exits is restarted; clients repeat its unanswered requests at another one.
Rule 3: they exit with the engine's process, even if it is killed: each reads a pipe that only that
process holds open.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from millrace import limits
from millrace.errors import Invalid
from millrace.server.counters import ProcessCounters, decode
from millrace.server.http.listener import ListenAddress, cannot_listen
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.server_settings import ServerSettings

_logger = logging.getLogger("millrace.server")


class FrontendSupervisor:
    """Starts, restarts and stops the front ends."""

    def __init__(self, settings: ServerSettings, orders: FrontendOrders) -> None:
        self._settings = settings
        self._orders = orders
        self._held: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: dict[int, asyncio.Event] = {}
        self._told: dict[int, asyncio.Future[bytes]] = {}
        """Callers that wait for the counters of a front end."""
        self._asking = asyncio.Lock()
        self._is_ending = False

    async def start(self) -> list[ListenAddress]:
        """Start all front ends; return their addresses when all of them listen.

        Raises:
            Invalid: an address cannot be bound, or a front end does not start in time.
        """
        addresses = [self._hold(address) for address in self._settings.addresses]
        orders = msgspec.structs.replace(
            self._orders, listen=[str(address) for address in addresses]
        )
        loop = asyncio.get_running_loop()
        for number in range(self._settings.frontends):
            self._ready[number] = asyncio.Event()
            self._tasks.append(loop.create_task(self._keep(number, orders)))
        ready = [loop.create_task(event.wait()) for event in self._ready.values()]
        try:
            async with asyncio.timeout(limits.FRONTEND_START_SECONDS):
                await asyncio.gather(*ready)
        except TimeoutError as error:
            raise Invalid("a front end does not start; see the log", field="frontends") from error
        return addresses

    def _hold(self, address: ListenAddress) -> ListenAddress:
        """Reserve an address for the front ends, also while none of them runs."""
        held = _socket(address)
        try:
            if address.port:
                # A shared address could also be shared with a foreign process: check that it is
                # free. Some systems check for conflicts only on listen.
                with _socket(address) as alone:
                    alone.bind((address.host, address.port))
                    alone.listen()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((address.host, address.port))
            # The bound socket now blocks processes that do not share the port, though nobody
            # listens yet.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            held.close()
            raise cannot_listen(address, error) from error
        self._held.append(held)
        name = held.getsockname()
        return ListenAddress(address.host, int(name[1]))

    async def _keep(self, number: int, orders: FrontendOrders) -> None:
        while not self._is_ending:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "millrace.server.process.frontend"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=limits.FRONTEND_TOLD_BYTES_MAX,
            )
            self._processes[number] = process
            assert process.stdin is not None
            assert process.stdout is not None
            mine = msgspec.structs.replace(orders, number=number)
            process.stdin.write(msgspec.json.encode(mine) + b"\n")
            if await process.stdout.readline() == b"ready\n":
                self._ready[number].set()
                await self._listen(number, process.stdout)
            code = await process.wait()
            if not self._is_ending:
                _logger.error("front end %d ended with code %d; it is started again", number, code)
                await asyncio.sleep(limits.FRONTEND_REST_SECONDS)

    async def _listen(self, number: int, pipe: asyncio.StreamReader) -> None:
        """Read the counters that a front end reports, until it exits."""
        with suppress(ValueError):
            # A line that is too long counts as missing.
            while line := await pipe.readline():
                waiting = self._told.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(line)
        await pipe.read()

    async def counted(self) -> list[ProcessCounters]:
        """Return the current counters of all front ends; one that does not answer in time is
        reported as missing."""
        async with self._asking:
            loop = asyncio.get_running_loop()
            waits: dict[int, asyncio.Future[bytes]] = {}
            for number in self._ready:
                waits[number] = self._told[number] = loop.create_future()
                process = self._processes.get(number)
                if process is not None and process.returncode is None:
                    assert process.stdin is not None
                    process.stdin.write(b"\n")
            await asyncio.wait(waits.values(), timeout=limits.FRONTEND_TELL_SECONDS)
            self._told.clear()
            return [
                decode(one.result(), number)
                if one.done()
                else ProcessCounters(number, is_there=False)
                for number, one in waits.items()
            ]

    @property
    def pids(self) -> list[int]:
        """Process ids of the running front ends."""
        return [one.pid for one in self._processes.values() if one.returncode is None]

    def reload(self) -> None:
        """Make all front ends reload their settings."""
        self._signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)

    async def stop(self) -> None:
        """Shut down all front ends gracefully; kill them after the grace period."""
        self._is_ending = True
        self._signal(signal.SIGTERM)
        seconds = self._settings.stop_seconds + limits.FRONTEND_REST_SECONDS
        waits = [one.wait() for one in self._processes.values() if one.returncode is None]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*waits)
        self._signal(signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for held in self._held:
            held.close()


def _socket(address: ListenAddress) -> socket.socket:
    """Return a socket that can bind an address despite closed connections in TIME_WAIT."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return found
