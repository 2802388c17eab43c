"""The shipped node on a simulated machine, driven by a script: for what the simulator has found."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, Ports
from millrace.settings import Settings
from millrace.store.memory import Image, MemoryCells
from millrace.testing.clock import SimClock
from millrace.testing.disk import SimDisk
from millrace.testing.lanes import Pace, SimLane, Steps
from millrace.testing.loop import SimLoop

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

    def _ports(self) -> Ports:
        pace = Pace(self.lane_seconds, 0.0, 0.0)
        return Ports(
            disk=self.disk,
            cells=self._open_cells,
            lane=lambda name: SimLane(name, pace, self._chance, Steps()),
            now_ms=self.clock.now_ms,
            chance=self._chance.randbytes,
        )

    def _open_cells(self) -> MemoryCells:
        self.cells = MemoryCells(self._image)
        return self.cells
