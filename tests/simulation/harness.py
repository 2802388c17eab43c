"""The shipped node on a simulated machine, driven by a script: for what the simulator has found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, Ports
from millrace.settings import Settings
from millrace.store.memory_cells import Image, MemoryCells
from tests.support.simulator.clock import SimClock
from tests.support.simulator.disk import Crashed, Effect, SimDisk
from tests.support.simulator.event_loop import Halted, SimLoop
from tests.support.simulator.io_threads import IoDelay, SimIoThread, SteppedThreads

T = TypeVar("T")

SETTINGS = Settings(
    segment_bytes=192 * 1024,
    log_segments_max=8,
    log_segments_unsealed=1,
    switch_interval_seconds=None,
)


class Bench:
    """A folder, and what is done to it, one life of the engine after another."""

    def __init__(self, settings: Settings = SETTINGS, *, lane_seconds: float = 0.0) -> None:
        self.settings = settings
        self.lane_seconds = lane_seconds
        """What a piece of work on a lane takes, about."""
        self.disk = SimDisk(random.Random(1))
        self.clock = SimClock()
        self.cells = MemoryCells()
        self.failures: list[str] = []
        """What nobody handled."""
        self._image: Image | None = None
        self._chance = random.Random(2)

    def live(self, script: Callable[[Millrace, Node], Awaitable[T]], *, close: bool = True) -> T:
        """Open the folder, do as the script says, and close it again or have it killed."""
        loop = SimLoop(self.clock)

        async def main() -> T:
            node = await Node.open(self._ports(), self.settings)
            millrace = Millrace(EmbeddedEngine(node))
            result = await script(millrace, node)
            if close:
                await millrace.close()
            return result

        try:
            return loop.run(main())
        finally:
            self.failures += loop.failures
            self._image = self.cells.image()
            loop.bury()
            self.disk = self.disk.kill()

    def end_before(self, effect: int) -> None:
        """End the machine before its effect of this number, counted from now on."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        left = effect

        def count(_: Effect) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                loop.halt()
                raise Crashed

        self.disk.hook = count

    def _ports(self) -> Ports:
        pace = IoDelay(self.lane_seconds, 0.0, 0.0)
        return Ports(
            disk=self.disk,
            cells=self._open_cells,
            io_thread=lambda name: SimIoThread(name, pace, self._chance, SteppedThreads()),
            now_ms=self.clock.now_ms,
            chance=self._chance.randbytes,
        )

    def _open_cells(self) -> MemoryCells:
        self.cells = MemoryCells(self._image)
        return self.cells


STEPS_MAX = 300
"""More effects than any script here takes."""

Script = Callable[[Millrace, Node, Callable[[], None]], Awaitable[None]]
"""Does something; what is called in it says from when on the machine may end."""


def at_every_step(
    make: Callable[[Bench], Script], *, power: bool = False
) -> Iterator[tuple[Bench, bool]]:
    """Machines that ended before the first effect of a script, the second and so on.

    `make` may use the machine before. At last comes one that did not end; each time it is told
    whether it did. With `power`, what was not synced is lost, or not.
    """
    for step in range(1, STEPS_MAX):
        bench, has_ended = Bench(), False
        script = make(bench)
        try:
            bench.live(_with(script, lambda b=bench, at=step: b.end_before(at)), close=False)  # type: ignore[misc]
        except Halted:
            has_ended = True
        if power:
            bench.disk = bench.disk.crash()
        yield bench, has_ended
        if not has_ended:
            assert step > 3, "there was hardly anything to interrupt"
            return
    raise AssertionError("it never gets to its end")


def _with(script: Script, begin: Callable[[], None]) -> Callable[[Millrace, Node], Awaitable[None]]:
    return lambda m, node: script(m, node, begin)
