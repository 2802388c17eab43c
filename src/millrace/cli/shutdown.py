"""Graceful shutdown: the first SIGINT or SIGTERM requests it, the second one forces it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from threading import Event
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ShutdownSignal:
    """Catches SIGINT and SIGTERM within its context: `asked` after one, `insisted` after two."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self.asked.is_set()

    async def unless(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of the call; on shutdown, cancel it and return None."""
        task = asyncio.ensure_future(call)
        stop = asyncio.ensure_future(self.asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            # It may have completed at the same time; its result must not be lost.
            await asyncio.wait({task})
            return None if task.cancelled() else task.result()
        finally:
            task.cancel()
            stop.cancel()

    async def thread(self, call: Callable[[Event], T]) -> T:
        """Run a call in a thread and return its result; its event is set on shutdown."""
        ending = Event()
        work = asyncio.create_task(asyncio.to_thread(call, ending))
        asked = asyncio.create_task(self.asked.wait())
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        ending.set()
        asked.cancel()
        return await work

    def _ask(self) -> None:
        (self.insisted if self.is_set else self.asked).set()

    async def __aenter__(self) -> ShutdownSignal:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._ask)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
