"""An object store in memory, with the faults of real ones.

Each request takes a few turns of the event loop. With `chance`, it may time out without an effect,
with its effect, or with an effect that comes later: a write that was given up may be applied at any
time until its version moves.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from typing import TypeVar

from millrace.backend.objects import BackendUnavailable, ObjectEntry, Version, check_name

T = TypeVar("T")

LATE_SECONDS_MAX = 0.01


class MemoryBackend:
    """The objects that several clients share."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests = 0
        self.is_down = False
        """True while no request is answered, and none has an effect."""

    # --- What a request does, at one moment ---------------------------------------------------

    def create(self, name: str, data: bytes) -> Version | None:
        if name in self.objects:
            return None
        self.objects[name] = data
        return version_of(data)

    def replace(self, name: str, data: bytes, version: Version) -> Version | None:
        found = self.objects.get(name)
        if found is None or version_of(found) != version:
            return None
        self.objects[name] = data
        return version_of(data)

    def read(self, name: str) -> tuple[bytes, Version] | None:
        data = self.objects.get(name)
        return None if data is None else (data, version_of(data))

    def entries(self, prefix: str) -> list[ObjectEntry]:
        return sorted(
            ObjectEntry(name, len(data))
            for name, data in self.objects.items()
            if name.startswith(prefix)
        )

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)


class MemoryObjects:
    """A client of a backend in memory."""

    def __init__(self, backend: MemoryBackend, chance: random.Random | None = None) -> None:
        """`chance` decides on faults; without it there are none."""
        self._backend = backend
        self._chance = chance

    async def create(self, name: str, data: bytes) -> Version | None:
        check_name(name)
        return await self._ask(lambda: self._backend.create(name, data))

    async def replace(self, name: str, data: bytes, version: Version) -> Version | None:
        check_name(name)
        return await self._ask(lambda: self._backend.replace(name, data, version))

    async def read(self, name: str) -> tuple[bytes, Version] | None:
        check_name(name)
        return await self._ask(lambda: self._backend.read(name))

    async def read_range(self, name: str, start: int, length: int) -> bytes | None:
        found = await self.read(name)
        return None if found is None else found[0][start : start + length]

    async def entries(self, prefix: str) -> list[ObjectEntry]:
        return await self._ask(lambda: self._backend.entries(prefix))

    async def delete(self, name: str) -> None:
        check_name(name)
        # A deletion that comes late would delete a successor: names are never used again.
        await self._ask(lambda: self._backend.delete(name))

    async def _ask(self, request: Callable[[], T]) -> T:
        self._backend.requests += 1
        chance = self._chance
        await asyncio.sleep(0)
        if self._backend.is_down:
            raise BackendUnavailable("the backend is down")
        if chance is None:
            return request()
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        fault = chance.random()
        if fault < 0.1:
            raise BackendUnavailable("it timed out before its effect")
        if fault < 0.2:
            later = chance.uniform(0, LATE_SECONDS_MAX)
            asyncio.get_running_loop().call_later(later, request)
            raise BackendUnavailable("it timed out, and its effect comes later")
        result = request()
        if fault < 0.3:
            raise BackendUnavailable("it timed out after its effect")
        return result


def version_of(data: bytes) -> Version:
    return hashlib.sha256(data).hexdigest()
