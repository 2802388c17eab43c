"""The event loop of those who may choose one."""

from __future__ import annotations

import asyncio
import gc


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, which costs less per call."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def rest_collector() -> None:
    """Look for unreachable cycles seldom, and not among what is there now: for a process that has
    started, and serves.

    What requests leave behind is freed at once, without it; but each time it runs it walks through
    all that is under way.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 100)


_YOUNG = 50_000
"""Objects, not bytes: a few megabytes."""
