"""Contract of registries: run it over your own implementation of `millrace.backend.registry`.

Each check takes a function that returns the registry of a node, by its name; all share one store,
which is new and may be out of reach now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace import limits
from millrace.backend.objects import BackendUnavailable
from millrace.backend.registry import Registry, RegistryValue, WriteConflict
from millrace.errors import TooLarge

Of = Callable[[str], Registry]

NODES = 8
INCREMENTS = 5


async def read(registry: Registry, key: str) -> RegistryValue | None:
    """Read until the backend answers."""
    while True:
        try:
            return await registry.read(key)
        except BackendUnavailable:
            await asyncio.sleep(0)


async def names(registry: Registry, prefix: str) -> list[str]:
    while True:
        try:
            return await registry.names(prefix)
        except BackendUnavailable:
            await asyncio.sleep(0)


async def check_versions(of: Of) -> None:
    """A write names the version that it replaces; another one is a conflict."""
    a, b = of("a"), of("b")
    assert await read(a, "k") is None
    first = await a.write("k", b"1", None)
    assert await read(b, "k") == first
    assert first.writer == "a"
    with pytest.raises(WriteConflict) as caught:
        await b.write("k", b"2", None)
    assert caught.value.current == first
    second = await b.write("k", b"2", first.version)
    assert (await read(a, "k"), second.writer) == (second, "b")
    with pytest.raises(WriteConflict) as caught:
        await a.write("k", b"3", first.version)
    assert caught.value.current == second
    with pytest.raises(WriteConflict) as caught:
        await a.write("none", b"3", first.version)
    assert caught.value.current is None


async def check_equal_values(of: Of) -> None:
    """A write of equal bytes is another version: who wrote last is known."""
    a, b = of("a"), of("b")
    first = await a.write("k", b"same", None)
    second = await b.write("k", b"same", first.version)
    assert second.version != first.version
    with pytest.raises(WriteConflict):
        await a.write("k", b"same", first.version)


async def check_counter(of: Of) -> None:
    """Every increment of every node counts once; only those of which it is said may count twice."""
    ambiguous = 0

    async def count(node: str) -> None:
        nonlocal ambiguous
        registry = of(node)
        for _ in range(INCREMENTS):
            while True:
                value = await read(registry, "count")
                number = 0 if value is None else int(value.data)
                version = None if value is None else value.version
                try:
                    await registry.write("count", b"%d" % (number + 1), version)
                except WriteConflict as conflict:
                    ambiguous += conflict.may_have_applied
                    continue
                break

    await asyncio.gather(*(count(f"node-{at}") for at in range(NODES)))
    found = await read(of("a"), "count")
    assert found is not None
    assert 0 <= int(found.data) - NODES * INCREMENTS <= ambiguous


async def check_names(of: Of) -> None:
    """Keys are listed by prefix."""
    registry = of("a")
    for key in ("group/2", "group/1", "node/a"):
        await registry.write(key, b"", None)
    assert await names(registry, "group/") == ["group/1", "group/2"]
    assert await names(of("b"), "") == ["group/1", "group/2", "node/a"]


async def check_sizes(of: Of) -> None:
    """A value of 64 KiB is stored, a larger one is refused."""
    registry = of("a")
    largest = bytes(limits.REGISTRY_VALUE_BYTES_MAX)
    await registry.write("large", largest, None)
    found = await read(registry, "large")
    assert found is not None
    assert found.data == largest
    with pytest.raises(TooLarge) as caught:
        await registry.write("larger", largest + b"x", None)
    assert caught.value.limit == limits.REGISTRY_VALUE_BYTES_MAX
    assert await read(registry, "larger") is None


CHECKS = (check_versions, check_equal_values, check_counter, check_names, check_sizes)


async def check_registry(make: Callable[[], Awaitable[Of]]) -> None:
    """Run all checks, each with a new store."""
    for check in CHECKS:
        await check(await make())
