"""Settings of the interpreter: event loop, garbage collector and thread switch interval."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from typing import TypeVar


def new_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop: uvloop's, which costs less per call, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def rest_collector() -> None:
    """Run the garbage collector rarely and without the objects of the start-up; for servers.

    Objects of requests are freed at once by reference counting; each run of the collector walks
    through everything in flight.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 100)


_YOUNG = 50_000
"""Number of objects: a few megabytes."""


T = TypeVar("T")


async def run_to_completion(task: asyncio.Task[T]) -> T:
    """Wait until a task has ended and return its result; a cancellation of the caller is raised
    after."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


# --- Shortens the interpreter's thread switch interval while an engine is open -------------------
#
# While another Python thread is busy, every sync waits for the GIL twice (Y1). So an engine
# shortens the switch interval for as long as it is open; all engines of a process share that one
# setting.
# Rule 1: the interval is only ever shortened: the shortest requested value counts.
# Rule 2: when the last engine closes, the previous value is restored, unless other code has
# changed the setting in between.

_lock = threading.Lock()
_asked: list[SwitchIntervalLimit] = []
_before = 0.0
"""The interval before the first request."""
_set = 0.0
"""The interval that this module set last."""


class SwitchIntervalLimit:
    """A request for a switch interval of at most `seconds`, until it is ended."""

    def __init__(self, seconds: float) -> None:
        global _before
        self.seconds = seconds
        with _lock:
            if not _asked:
                _before = sys.getswitchinterval()
            _asked.append(self)
            _shorten(sys.getswitchinterval())

    def end(self) -> None:
        """Withdraw the request; ending twice changes nothing."""
        with _lock:
            if self in _asked:
                _asked.remove(self)
                if sys.getswitchinterval() == _set:
                    sys.setswitchinterval(_before)
                    _shorten(_before)


def _shorten(seconds: float) -> None:
    """Set the shortest requested interval, if it is below `seconds`."""
    global _set
    shortest = min((turns.seconds for turns in _asked), default=seconds)
    if shortest < seconds:
        sys.setswitchinterval(shortest)
        _set = sys.getswitchinterval()
