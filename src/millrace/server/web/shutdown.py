"""Graceful shutdown of requests that wait for events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Waiter(Protocol):
    """A waiting request without a task."""

    def stop(self) -> None:
        """Stop waiting and respond."""
        ...


class Shutdown:
    """The waiting requests, so that a stop answers them immediately instead of cutting them off.

    Messages that a call leased at the moment of the stop are returned to the queue, as for any call
    whose client has disconnected.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: set[asyncio.Task[object]] = set()
        self._waiters: set[Waiter] = set()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting) + len(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """Add a waiting request until it is discarded."""
        self._waiters.add(waiter)

    def discard(self, waiter: Waiter) -> None:
        """Remove a waiting request."""
        self._waiters.discard(waiter)

    async def until(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """Run `wait` and return its result; None if the server stops first."""
        if self.is_set:
            return None
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            return await wait()
        except asyncio.CancelledError:
            # Swallow the cancellation only if `stop` is its single cause.
            if task in self._waiting or task.uncancel():
                raise
            return None
        finally:
            self._waiting.discard(task)

    def stop(self) -> None:
        """End all waits, present and future ones."""
        self.is_set = True
        waiting, self._waiting = self._waiting, set()
        for task in waiting:
            task.cancel()
        for waiter in list(self._waiters):
            waiter.stop()
