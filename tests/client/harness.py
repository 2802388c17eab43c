"""Fixtures of the API tests: a timeout, a folder with small segments, a clock."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, real_ports
from millrace.settings import Settings
from tests.support.timeouts import scaled

T = TypeVar("T")

WAYS: list[Callable[[Millrace, Path], AbstractAsyncContextManager[Millrace]]] = []
"""How `opened` leads to the engine; by itself, to the one in the same process."""

SECONDS_MAX = scaled(60)
"""No test takes longer, or something waits for what never comes."""

SMALL = Settings(segment_bytes=1024 * 1024)
"""Segments that are made in a moment."""

LARGE = Settings(segment_bytes=32 * 1024 * 1024, log_segments_free=1)
"""Segments that hold the largest message."""


def run(test: Coroutine[object, object, T]) -> T:
    """Run a test to its end, and fail it after a timeout."""
    return asyncio.run(asyncio.wait_for(test, SECONDS_MAX))


class Clock:
    """The machine's time, which can be put forward and stopped."""

    def __init__(self) -> None:
        self._ahead_ms = 0
        self._stopped_ms: int | None = None

    def __call__(self) -> int:
        now = time.time_ns() // 1_000_000 if self._stopped_ms is None else self._stopped_ms
        return now + self._ahead_ms

    def stop(self) -> None:
        """Stop the time: only `forward` advances it, however slow the machine is."""
        self._stopped_ms = time.time_ns() // 1_000_000

    def forward(self, *, seconds: float) -> None:
        self._ahead_ms += round(seconds * 1000)


@asynccontextmanager
async def opened(
    path: Path, *, settings: Settings = SMALL, clock: Clock | None = None
) -> AsyncIterator[Millrace]:
    """Open a folder as `millrace.open` does, optionally with another clock."""
    ports = real_ports(path)
    if clock is not None:
        ports = replace(ports, now_ms=clock)
    node = await Node.open(ports, settings)
    async with Millrace(EmbeddedEngine(node, str(path))) as m:
        if not WAYS:
            yield m
            return
        async with WAYS[-1](m, path) as other:
            yield other


Test = Callable[[Millrace], Awaitable[None]]


def embedded(test: Test) -> Callable[[Path], None]:
    """Give a test a Millrace in a folder of its own."""

    def wrapped(tmp_path: Path) -> None:
        async def main() -> None:
            async with opened(tmp_path / "data") as m:
                await test(m)

        run(main())

    wrapped.__name__ = wrapped.__qualname__ = getattr(test, "__name__", "test")
    wrapped.__doc__ = test.__doc__
    wrapped.__module__ = test.__module__
    return wrapped


def timed(test: Callable[[Millrace, Clock], Awaitable[None]]) -> Callable[[Path], None]:
    """Give a test a Millrace and its clock."""

    def wrapped(tmp_path: Path) -> None:
        async def main() -> None:
            clock = Clock()
            async with opened(tmp_path / "data", clock=clock) as m:
                await test(m, clock)

        run(main())

    wrapped.__name__ = wrapped.__qualname__ = getattr(test, "__name__", "test")
    wrapped.__doc__ = test.__doc__
    wrapped.__module__ = test.__module__
    return wrapped


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds; `run` bounds the wait."""
    # Nothing else would wake it: the condition lies in the engine, and is asked for.
    while not await holds():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


def copy_live(source: Path, target: Path) -> None:
    """Copy a folder that an engine has open, as a kill would leave it.

    If a segment made ahead is renamed during the copy, the copy starts again.
    """
    while True:
        try:
            shutil.copytree(source, target)
            return
        except shutil.Error:
            shutil.rmtree(target)
