"""Retries with backoff: while an engine is full, or a server is unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace import limits
from millrace.client.engine import Engine
from millrace.errors import Closed, MillraceError, Retry, Unknown

T = TypeVar("T")


def may_recover(engine: Engine, error: MillraceError) -> bool:
    """Return True if the engine is remote and may answer again after this error."""
    return isinstance(error, Closed | Unknown) and engine.is_remote and not engine.is_closed


async def retry_until_answered(
    engine: Engine,
    ask: Callable[[], Awaitable[T]],
    *,
    on_retry: Callable[[MillraceError], None],
    may_wait: Callable[[], bool],
) -> T:
    """Call `ask` until the engine answers, with exponential backoff; `on_retry` gets each error.

    While the engine is unreachable, `may_wait` decides whether to continue. A call whose outcome is
    unknown is repeated, so it must be idempotent, or `on_retry` must make it so.
    """
    pause_ms = 0
    while True:
        try:
            return await ask()
        except (Retry, Unknown) as error:
            is_away = isinstance(error, Closed | Unknown)
            if is_away and not (may_recover(engine, error) and may_wait()):
                raise
            after_ms = error.after_ms if isinstance(error, Retry) else limits.WORKER_LOOK_MS
            pause_ms = min(max(after_ms, 2 * pause_ms), limits.WORKER_PAUSE_MS_MAX)
            on_retry(error)
        await asyncio.sleep(pause_ms / 1000)
