"""The end of a server, for those who wait for something to come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Waiter(Protocol):
    """Waits, and is no task."""

    def stop(self) -> None:
        """Wait no more."""
        ...


class Stopping:
    """Who waits, so that a stop answers them at once instead of cutting them off.

    What a call handed out in the moment that it was stopped is given back, as by any call whose
    caller has gone.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: set[asyncio.Task[object]] = set()
        self._waiters: set[Waiter] = set()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting) + len(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """One more, until it is discarded."""
        self._waiters.add(waiter)

    def discard(self, waiter: Waiter) -> None:
        """It waits no more."""
        self._waiters.discard(waiter)

    async def until(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """What `wait` comes to; None if the server stops first."""
        if self.is_set:
            return None
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            return await wait()
        except asyncio.CancelledError:
            # Only if nobody else has ended it, too.
            if task in self._waiting or task.uncancel():
                raise
            return None
        finally:
            self._waiting.discard(task)

    def stop(self) -> None:
        """Nobody waits any more."""
        self.is_set = True
        waiting, self._waiting = self._waiting, set()
        for task in waiting:
            task.cancel()
        for waiter in list(self._waiters):
            waiter.stop()
