"""The front ends of a server: processes that speak HTTP, and pass calls to the one engine.

Rule 1: all of them listen at the same addresses; the system spreads those who connect.
Rule 2: one that ends is started again; what it had not answered, its clients ask again elsewhere.
Rule 3: they end with the engine's process, however that ends: each reads a pipe that only it holds.
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
from millrace.server.address import Address
from millrace.server.config import ServerSettings
from millrace.server.counted import Counts, decode
from millrace.server.frontend import Orders
from millrace.server.listen import cannot_listen

_logger = logging.getLogger("millrace.server")


class Crew:
    """Starts the front ends, and keeps them."""

    def __init__(self, settings: ServerSettings, orders: Orders) -> None:
        self._settings = settings
        self._orders = orders
        self._held: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: dict[int, asyncio.Event] = {}
        self._told: dict[int, asyncio.Future[bytes]] = {}
        """Who waits for what a front end has counted."""
        self._asking = asyncio.Lock()
        self._is_ending = False

    async def start(self) -> list[Address]:
        """Start all of them; returns where they listen, once all of them do.

        Raises:
            Invalid: an address cannot be had, or a front end ends at once.
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

    def _hold(self, address: Address) -> Address:
        """Keep an address for the front ends, so that it is theirs also while none is there."""
        held = _socket(address)
        try:
            if address.port:
                # What is shared can be shared by a stranger, too: see that nobody has it. Some
                # systems look at all who have it only when one listens.
                with _socket(address) as alone:
                    alone.bind((address.host, address.port))
                    alone.listen()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((address.host, address.port))
            # Now it stands in the way of all who do not share it, though nobody listens yet.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            held.close()
            raise cannot_listen(address, error) from error
        self._held.append(held)
        name = held.getsockname()
        return Address(address.host, int(name[1]))

    async def _keep(self, number: int, orders: Orders) -> None:
        while not self._is_ending:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "millrace.server.frontend"),
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
        """Hear what it has counted, until it ends."""
        with suppress(ValueError):
            # A line that is too long is as good as none.
            while line := await pipe.readline():
                waiting = self._told.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(line)
        await pipe.read()

    async def counted(self) -> list[Counts]:
        """What each of them has counted, as it says now; one that says nothing for a while is told
        of as one that is not there."""
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
                decode(one.result(), number) if one.done() else Counts(number, is_there=False)
                for number, one in waits.items()
            ]

    @property
    def pids(self) -> list[int]:
        """The processes that are there."""
        return [one.pid for one in self._processes.values() if one.returncode is None]

    def reload(self) -> None:
        """Have them read their settings again."""
        self._signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)

    async def stop(self) -> None:
        """Have them answer what they were asked, and end."""
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


def _socket(address: Address) -> socket.socket:
    """One that takes an address, though connections of it that have ended are remembered."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return found
