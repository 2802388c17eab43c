"""One timer for the soonest of many times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_SOON_SECONDS = 0.001
"""Timers may ring a little early: what is not over then is looked at again after this time."""


class Alarm:
    """Makes a call at the soonest of the times that it was set to, and is unset then."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, at: float) -> None:
        """Ring at this time of the loop too, if it does not ring before."""
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        delay = max(at - self._loop.time(), _SOON_SECONDS)
        self._timer = self._loop.call_later(delay, self._ring)

    def cancel(self) -> None:
        """Do not ring any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._call()
