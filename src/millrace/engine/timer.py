"""One timer for the soonest of many times."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from millrace import limits

_SOON_SECONDS = 0.001
"""Timers may ring a little early: what is not over then is looked at again after this time."""


class Timer:
    """Makes a call at the soonest of the times that it was set to, and is unset then.

    What follows the last call closely waits a little, so that one call does for many times.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._rang = -math.inf

    def set(self, at: float) -> None:
        """Ring at this time of the loop too, if it does not ring before."""
        at = max(at, self._rang + limits.WAKE_STEP_MS / 1000)
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
        self._rang = self._loop.time()
        self._call()
