"""Waiting for a silence: for so long nobody has said anything.

Rule 1: a stall of this process is no silence. What was said meanwhile has not been read: whoever is
waited for gets all of the time again, up to a bound for stalls in a row.
Rule 2: some event loops call timers before they read. So the last part of the time is waited for
apart: in it what came before is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millrace import limits


class Silence:
    """Calls `then` when it was not stopped for so many seconds in which the loop was there."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._then = then
        self._forgiven = 0.0
        self._wait(is_last=False)

    def stop(self) -> None:
        """Somebody was heard, or is waited for no longer."""
        self._timer.cancel()

    def _wait(self, *, is_last: bool) -> None:
        share = limits.SESSION_LAST_SHARE
        seconds = self._seconds * (share if is_last else 1 - share)
        due = self._loop.time() + seconds
        self._timer = self._loop.call_at(due, self._look, due, is_last)

    def _look(self, due: float, is_last: bool) -> None:  # noqa: FBT001
        late = self._loop.time() - due
        if late > limits.HTTP_STALL_SECONDS and self._forgiven < limits.HTTP_FORGIVEN_SECONDS_MAX:
            self._forgiven += late
            self._wait(is_last=False)
        elif is_last:
            self._then()
        else:
            self._wait(is_last=True)
