"""Backoff: growing pauses before a request to a backend is sent again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace import limits
from millrace.backend.objects import BackendUnavailable

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds; the simulator has its own."""


class Backoff:
    """Pauses that double, up to a limit."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._seconds = limits.BACKEND_RETRY_SECONDS_MIN

    async def wait(self) -> None:
        """Wait before the next attempt."""
        seconds = self._seconds
        self._seconds = min(2 * seconds, limits.BACKEND_RETRY_SECONDS_MAX)
        await self._sleep(seconds)


async def retry(request: Callable[[], Awaitable[T]], sleep: Sleep) -> T:
    """Send a request that may be repeated, until the backend answers; return the answer."""
    backoff = Backoff(sleep)
    while True:
        try:
            return await request()
        except BackendUnavailable:
            await backoff.wait()
