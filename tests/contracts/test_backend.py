"""The contracts of backends, over stores in memory, with and without faults, and in a folder."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millrace.backend.blobs import Blobs
from millrace.backend.file_objects import FileObjects
from millrace.backend.loglets import Loglets
from millrace.backend.object_blobs import ObjectBlobs
from millrace.backend.object_loglets import ObjectLoglets
from millrace.backend.object_registry import ObjectRegistry
from millrace.backend.objects import ObjectStore
from millrace.backend.registry import Registry
from tests.support.contracts import check_blobs, check_loglets, check_objects, check_registry
from tests.support.memory_objects import MemoryBackend, MemoryObjects

FAULTY_SEEDS = 12

Client = Callable[[], ObjectStore]
"""Returns a client of one store, which is new."""


def memory(seed: int | None) -> Client:
    backend, seeds = MemoryBackend(), itertools.count()

    def client() -> ObjectStore:
        chance = None if seed is None else random.Random(f"{seed} {next(seeds)}")
        return MemoryObjects(backend, chance)

    return client


STORES = ["file", "memory", *(f"faulty {seed}" for seed in range(FAULTY_SEEDS))]


def store_of(kind: str, folder: Path) -> Client:
    if kind == "file":
        return lambda: FileObjects(folder)
    return memory(None if kind == "memory" else int(kind.split()[1]))


async def soon(seconds: float) -> None:
    """Wait a moment: pauses of a real backend would only take time."""
    await asyncio.sleep(0)


def registry_of(objects: ObjectStore, node: str) -> ObjectRegistry:
    chance = random.Random(node)
    return ObjectRegistry(objects, node, chance.randbytes, soon)


@pytest.mark.parametrize("check", check_objects.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_objects(kind: str, check: Callable[[Client], Awaitable[None]], tmp_path: Path) -> None:
    async def main() -> None:
        await check(store_of(kind, tmp_path))

    asyncio.run(main())


@pytest.mark.parametrize("check", check_registry.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_registry(
    kind: str, check: Callable[[Callable[[str], Registry]], Awaitable[None]], tmp_path: Path
) -> None:
    client, numbers = store_of(kind, tmp_path), itertools.count()

    def of(node: str) -> Registry:
        registry = ObjectRegistry(
            client(), node, random.Random(f"{node} {next(numbers)}").randbytes, soon
        )
        return registry

    async def main() -> None:
        await check(of)

    asyncio.run(main())


@pytest.mark.parametrize("check", check_loglets.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_loglets(
    kind: str, check: Callable[[Callable[[], Loglets]], Awaitable[None]], tmp_path: Path
) -> None:
    client, numbers = store_of(kind, tmp_path), itertools.count()

    def node() -> Loglets:
        registry = registry_of(client(), f"node-{next(numbers)}")
        return ObjectLoglets(client(), registry, soon, barrier_records=32)

    async def main() -> None:
        await check(node)

    asyncio.run(main())


@pytest.mark.parametrize("check", check_blobs.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_blobs(
    kind: str, check: Callable[[Callable[[], Blobs]], Awaitable[None]], tmp_path: Path
) -> None:
    client = store_of(kind, tmp_path)

    async def main() -> None:
        await check(lambda: ObjectBlobs(client(), soon))

    asyncio.run(main())
