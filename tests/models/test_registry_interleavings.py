"""Registry writes under all interleavings, with lost requests and answers (X11)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from millrace.backend.object_registry import ObjectRegistry
from millrace.backend.registry import RegistryValue, WriteConflict
from tests.support.interleavings import Schedule, ScheduledObjects, explore, no_pause
from tests.support.memory_objects import MemoryBackend, MemoryObjects


def registry_of(backend: MemoryBackend, schedule: Schedule, node: str) -> ObjectRegistry:
    objects = ScheduledObjects(backend, schedule, node)
    return ObjectRegistry(objects, node, random.Random(node).randbytes, no_pause)


def test_one_of_several_claims_wins() -> None:
    """A claim that returned is in force or was overtaken by a later epoch; no two have one."""

    async def main(schedule: Schedule) -> Callable[[], None]:
        backend = MemoryBackend()
        before = ObjectRegistry(MemoryObjects(backend), "before", random.Random(0).randbytes)
        first = await before.write("group/1", b"epoch 1", None)
        won: list[tuple[str, RegistryValue]] = []
        lost: list[WriteConflict] = []

        async def claim(node: str) -> None:
            registry = registry_of(backend, schedule, node)
            try:
                won.append((node, await registry.write("group/1", node.encode(), first.version)))
            except WriteConflict as conflict:
                lost.append(conflict)

        await asyncio.gather(claim("a"), claim("b"), claim("c"))
        found = await before.read("group/1")

        def check() -> None:
            assert found is not None
            assert [node for node, _ in won] == [found.writer], "one claim is in force"
            assert [value for _, value in won] == [found]
            assert len(lost) == 2
            for conflict in lost:
                assert conflict.current == found

        return check

    assert explore(main, preemptions=2, losses=1) > 300


def test_a_write_without_an_answer_is_never_taken_for_refused() -> None:
    """The version is unchanged when it is read: that is no outcome, and the write is sent again."""

    async def main(schedule: Schedule) -> Callable[[], None]:
        backend = MemoryBackend()
        registry = registry_of(backend, schedule, "a")
        first = await registry.write("k", b"1", None)
        second = await registry.write("k", b"2", first.version)
        found = await ObjectRegistry(
            MemoryObjects(backend), "late", random.Random(1).randbytes
        ).read("k")

        def check() -> None:
            assert found == second

        return check

    assert explore(main, losses=3) > 10
