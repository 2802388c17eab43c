"""A defect in the checkpointer ends the engine, so that no request waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.errors import Fatal
from millrace.node import Node, Ports, real_ports
from millrace.settings import Settings
from millrace.store.cells import Cells


class BrokenCells:
    """Cells whose `care` has a bug."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.short_of_space = False
        self.get = cells.get
        self.range = cells.range
        self.commit = cells.commit
        self.check = cells.check
        self.close = cells.close

    def maintain(self) -> None:
        raise ZeroDivisionError("a bug")


def test_waiting_callers_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        real = real_ports(tmp_path / "data")
        ports = Ports(
            real.disk, lambda: BrokenCells(real.cells()), real.io_thread, real.now_ms, real.chance
        )
        node = await Node.open(ports, Settings(segment_bytes=1 << 20))
        m = Millrace(EmbeddedEngine(node))
        queue = await m.queue("orders")
        with pytest.raises(Fatal, match="a bug"):
            await queue.lease(1, wait=30)
        await m.close()

    loop = asyncio.new_event_loop()
    # The defect itself is reported as well, so that it does not go unnoticed.
    loop.set_exception_handler(lambda loop, context: None)
    try:
        loop.run_until_complete(asyncio.wait_for(main(), 60))
    finally:
        loop.close()
