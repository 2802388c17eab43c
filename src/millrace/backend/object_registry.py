"""A registry in an object store: one object per key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millrace.backend.backoff import Backoff, Sleep
from millrace.backend.objects import BackendUnavailable, ObjectStore, Version, check_name
from millrace.backend.registry import (
    RegistryValue,
    WriteConflict,
    decode_value,
    encode_value,
)

ATTEMPT_BYTES = 16


class ObjectRegistry:
    """Keeps each value in the object `registry/KEY`."""

    def __init__(
        self,
        objects: ObjectStore,
        writer: str,
        chance: Callable[[int], bytes],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`writer` names this node in the values that it writes."""
        self._objects = objects
        self._writer = writer
        self._chance = chance
        self._sleep = sleep

    async def read(self, key: str) -> RegistryValue | None:
        found = await self._read(key)
        return None if found is None else found[0]

    async def write(self, key: str, data: bytes, expected: Version | None) -> RegistryValue:
        attempt = self._chance(ATTEMPT_BYTES)
        stored = encode_value(data, self._writer, attempt)
        name = _name(key)
        backoff, is_unknown = Backoff(self._sleep), False
        while True:
            try:
                if expected is None:
                    version = await self._objects.create(name, stored)
                else:
                    version = await self._objects.replace(name, stored, expected)
                if version is not None:
                    return RegistryValue(data, version, self._writer)
                found = await self._read(key)
            except BackendUnavailable:
                # Sent again as the same attempt, so that it is applied at most once.
                is_unknown = True
                await backoff.wait()
                continue
            if found is not None and found[1] == attempt:
                # An attempt with an unknown outcome was applied.
                return found[0]
            current = None if found is None else found[0]
            if (None if current is None else current.version) != expected:
                # The version has moved: no copy of the request can be applied any more.
                raise WriteConflict(
                    f"the registry value {key!r} was changed by another node",
                    current=current,
                    may_have_applied=is_unknown,
                )
            # The store refused the write of a version that it still has: that is no outcome.
            await backoff.wait()

    async def names(self, prefix: str) -> list[str]:
        found = await self._objects.entries(f"registry/{prefix}")
        return [entry.name.removeprefix("registry/") for entry in found]

    async def _read(self, key: str) -> tuple[RegistryValue, bytes] | None:
        found = await self._objects.read(_name(key))
        return None if found is None else decode_value(key, *found)


def _name(key: str) -> str:
    return check_name(f"registry/{key}")
