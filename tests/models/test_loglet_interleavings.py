"""Loglets under all interleavings: writers, sealers and trimmers, with lost requests.

What must hold in every run: all who seal get the same end; what was acknowledged is within it and
readable, unless it was trimmed; nothing is acknowledged behind it (X3 to X6).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from millrace.backend.loglets import LogletSealed, LogletTrimmed
from millrace.backend.object_loglets import ObjectLoglets
from millrace.backend.object_registry import ObjectRegistry
from millrace.errors import Corrupt
from tests.support.interleavings import Program, Schedule, ScheduledObjects, explore, no_pause, run
from tests.support.memory_objects import MemoryBackend, MemoryObjects

ID = b"l" * 16

BOUNDS = pytest.mark.parametrize(
    ("losses", "preemptions"), [(0, 2), (1, 0)], ids=["interleaved", "with a lost request"]
)
"""Requests that are lost, and preemptions, in one run: some thousand runs together."""


class World:
    """A backend, the loglets of several nodes, and what was acknowledged."""

    def __init__(self, schedule: Schedule, barrier: int = 4) -> None:
        self.schedule = schedule
        self._barrier = barrier
        self.backend = MemoryBackend()
        self.acknowledged: list[int] = []
        self.refused: list[int] = []
        self.ends: list[int] = []
        self.trimmed = 0
        self._objects = ScheduledObjects(self.backend, schedule, "writer")
        self.writer = self._loglets(self._objects, "writer")

    def node(self, name: str) -> ObjectLoglets:
        return self._loglets(ScheduledObjects(self.backend, self.schedule, name), name)

    def _loglets(self, objects: ScheduledObjects | MemoryObjects, name: str) -> ObjectLoglets:
        registry = ObjectRegistry(objects, name, random.Random(name).randbytes, no_pause)
        return ObjectLoglets(objects, registry, no_pause, barrier_records=self._barrier)

    async def begin(self, count: int) -> None:
        """Append records before the schedule begins."""
        self._objects.is_free = True
        for number in range(1, count + 1):
            await self.append(number)
        self._objects.is_free = False

    async def append(self, number: int) -> None:
        try:
            await self.writer.append(ID, number, b"record %d" % number)
        except LogletSealed:
            self.refused.append(number)
        else:
            self.acknowledged.append(number)

    async def write(self, first: int, last: int) -> None:
        """Append records, all in flight at once."""
        await asyncio.gather(*(self.append(n) for n in range(first, last + 1)))

    async def seal(self, name: str) -> None:
        self.ends.append(await self.node(name).seal(ID))

    async def trim(self, upto: int) -> None:
        self.trimmed = max(self.trimmed, upto)
        await self.node(f"trimmer to {upto}").trim(ID, upto)

    def check(self) -> None:
        """Compare what was acknowledged with what is there."""
        assert len(set(self.ends)) == 1, f"several ends: {self.ends}"
        end = self.ends[0]
        assert sorted(self.acknowledged) == list(range(1, len(self.acknowledged) + 1))
        assert end >= len(self.acknowledged), f"{self.acknowledged} was acknowledged, {end} the end"
        assert all(number > end for number in self.refused)
        for number in range(1, end + 1):
            found = self.backend.objects.get(f"loglet/{ID.hex()}/{number:020d}")
            if number > self.trimmed:
                assert found == b"record %d" % number, f"record {number} is {found!r}"

    async def check_again(self) -> None:
        """A node that knows nothing finds the same end and the same records."""
        late = self._loglets(MemoryObjects(self.backend), "late")
        assert await late.seal(ID) == self.ends[0]
        for number in range(1, self.ends[0] + 1):
            try:
                assert await late.read(ID, number, number) == [b"record %d" % number]
            except LogletTrimmed:
                assert number <= self.trimmed
        zombie = self._loglets(MemoryObjects(self.backend), "zombie")
        try:
            await zombie.append(ID, self.ends[0] + 1, b"of a zombie")
        except (LogletSealed, Corrupt):
            return
        raise AssertionError("a zombie went on behind the end")


def program(*parts: Callable[[World], Awaitable[None]], records: int = 0) -> Program:
    async def main(schedule: Schedule) -> Callable[[], None]:
        world = World(schedule)
        await world.begin(records)
        await asyncio.gather(*(part(world) for part in parts))
        await world.check_again()
        return world.check

    return main


@pytest.mark.slow
@BOUNDS
def test_one_writer_and_two_sealers(losses: int, preemptions: int) -> None:
    runs = explore(
        program(
            lambda world: world.write(2, 3),
            lambda world: world.seal("a"),
            lambda world: world.seal("b"),
            records=1,
        ),
        preemptions=preemptions,
        losses=losses,
    )
    assert runs > 100


@BOUNDS
def test_a_sealer_beside_a_trimmer(losses: int, preemptions: int) -> None:
    """X4: what was committed is trimmed while the end is searched."""
    runs = explore(
        program(
            lambda world: world.seal("a"),
            lambda world: world.trim(4),
            lambda world: world.write(5, 5),
            records=4,
        ),
        preemptions=preemptions,
        losses=losses,
    )
    assert runs > 100


def test_a_sealer_that_looked_before_a_trim() -> None:
    """X4: a sealer that read "trimmed to 0" comes to the hole that a trim has made."""
    runs = explore(
        program(
            lambda world: world.seal("slow"),
            lambda world: world.seal("quick"),
            lambda world: world.trim(3),
            records=3,
        ),
        preemptions=2,
    )
    assert runs > 100


class QuickWriter(Schedule):
    """The writer has several requests answered for each one of the others."""

    def grant(self) -> None:
        is_writers_turn = len(self.trace) % 6 != 0
        mine = [one for one in self.waiting if one.label.startswith("writer") == is_writers_turn]
        chosen = (mine or self.waiting)[0]
        self.waiting.remove(chosen)
        self.trace.append(chosen.label)
        chosen.granted.set_result("done")


def test_sealing_ends_beside_a_writer_that_is_quicker() -> None:
    """X5: without a barrier the sealer would chase the writer for ever."""

    async def main(schedule: Schedule) -> Callable[[], None]:
        # Farther than the writer gets within one request of the sealer.
        world = World(schedule, barrier=32)

        async def write() -> None:
            number = 1
            while not world.refused:
                await asyncio.gather(*(world.append(number + at) for at in range(8)))
                number += 8

        await asyncio.gather(write(), world.seal("a"))
        return world.check

    schedule = QuickWriter([], 0, 0)
    run(main, schedule)
    assert len(schedule.trace) < 400
