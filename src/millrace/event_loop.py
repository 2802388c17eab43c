"""Event loop and garbage collector settings for processes of our own."""

from __future__ import annotations

import asyncio
import gc
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
