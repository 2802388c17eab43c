"""Asking until there is an answer: of an engine that has no room, or of a server that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace import limits
from millrace.client.engine import Engine
from millrace.errors import Closed, MillraceError, Retry, Unknown

T = TypeVar("T")


def may_return(engine: Engine, error: MillraceError) -> bool:
    """Whether nobody answers now, but may again: the engine is another process's."""
    return isinstance(error, Closed | Unknown) and engine.is_far and not engine.is_closed


async def insist(
    engine: Engine,
    ask: Callable[[], Awaitable[T]],
    *,
    told: Callable[[MillraceError], None],
    waits: Callable[[], bool],
) -> T:
    """What the engine answers, once it does; `told` hears why it is asked again.

    Where nobody answers, `waits` says whether to go on. What is UNKNOWN is asked again, so that it
    must be such that done twice is the same as once, or `told` must make it so.
    """
    pause_ms = 0
    while True:
        try:
            return await ask()
        except (Retry, Unknown) as error:
            if isinstance(error, Closed | Unknown) and not (may_return(engine, error) and waits()):
                raise
            after_ms = error.after_ms if isinstance(error, Retry) else limits.WORKER_LOOK_MS
            pause_ms = min(max(after_ms, 2 * pause_ms), limits.WORKER_PAUSE_MS_MAX)
            told(error)
        await asyncio.sleep(pause_ms / 1000)
