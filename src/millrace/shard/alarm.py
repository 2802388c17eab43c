"""One timer for the soonest of many times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Makes a call at the soonest of the times that it was set to, and is unset then."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        call: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int) -> None:
        """Ring at this time too, if it does not ring before."""
        if self._timer is not None:
            if self._at_ms <= at_ms:
                return
            self._timer.cancel()
        self._at_ms = at_ms
        delay = max(at_ms - self._now_ms(), 1) / 1000
        self._timer = self._loop.call_later(delay, self._ring)

    def cancel(self) -> None:
        """Do not ring any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._call()
