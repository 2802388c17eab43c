"""A frozen clock for tests, and small engines that use it.

Rule 1: the clock sets the time of every engine opened with it: leases, waits, pins, and expiry.
Rule 2: when `advance` or `set` returns, or `caught_up` on an engine's own loop, all due events have
happened.
Rule 3: timers of an event loop follow the clock only if the clock made the loop. Timers run before
the engine: a worker that extends its lease in time keeps it.
Rule 4: the clock jumps, and nothing happens in between: a jump beyond the end of a lease is as if
its worker had been suspended.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from millrace import sync
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.client.portal import Portal
from millrace.core.commands import Tick
from millrace.core.model import CATALOG
from millrace.errors import Closed, Invalid, Refused
from millrace.node import Node, real_ports
from millrace.settings import Settings

SMALL = Settings(segment_bytes=1024 * 1024, log_segments_free=1)
"""Small WAL segments, quick to create; messages above some hundred KiB need larger ones."""

CATCH_UP_SECONDS_MAX = 60
"""Timeout for an engine to handle a jump of the clock."""

TIMERS_FIRST = 8
"""Rounds of the event loop that run due timers before the engine looks at the time."""


class FrozenClock:
    """A clock that stands still until it is moved; it starts at the current time."""

    def __init__(self) -> None:
        self._now_ms = time.time_ns() // 1_000_000
        self._leapt_seconds = 0.0
        self._engines: dict[EmbeddedEngine, tuple[Node, asyncio.AbstractEventLoop]] = {}
        self._catching_up: set[asyncio.Task[None]] = set()

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return self._now_ms

    @property
    def now(self) -> datetime:
        """The time as a datetime in UTC."""
        return datetime.fromtimestamp(self._now_ms / 1000, UTC)

    @property
    def leapt_seconds(self) -> float:
        """Total of all moves forward, in seconds."""
        return self._leapt_seconds

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`. Due events have happened when this returns.

        On the engine's own event loop, they happen while the test awaits `clock.caught_up()`.
        """
        if not seconds >= 0:
            raise Invalid(f"seconds are {seconds}, not 0 or more; see `set`", field="seconds")
        self._leapt_seconds += seconds
        self._move(self._now_ms + round(seconds * 1000))

    def set(self, when: datetime) -> None:
        """Move to a time, which may be in the past, as when a system clock is set."""
        if when.tzinfo is None:
            raise Invalid("when is a datetime without a time zone", field="when")
        now_ms = round(when.timestamp() * 1000)
        self._leapt_seconds += max(now_ms - self._now_ms, 0) / 1000
        self._move(now_ms)

    def _move(self, now_ms: int) -> None:
        self._now_ms = now_ms
        for engine, (node, loop) in list(self._engines.items()):
            if loop.is_closed():
                del self._engines[engine]
            elif loop.is_running() and loop is not _running_loop():
                done = asyncio.run_coroutine_threadsafe(self._catch_up(engine, node), loop)
                done.result(CATCH_UP_SECONDS_MAX)
            else:
                task = loop.create_task(self._catch_up(engine, node))
                self._catching_up.add(task)
                task.add_done_callback(self._catching_up.discard)

    async def caught_up(self) -> None:
        """Wait until all due events have happened, in engines on this event loop."""
        while self._catching_up:
            await asyncio.wait(list(self._catching_up))

    async def _catch_up(self, engine: EmbeddedEngine, node: Node) -> None:
        for _ in range(TIMERS_FIRST):
            await asyncio.sleep(0)
        try:
            for shard in node.store.shards():
                # A queue that was deleted in the meantime has no due events.
                with suppress(Refused):
                    while await engine.ask(shard, Tick(), object) is True:
                        pass
            node.commit_loop_of(CATALOG).check_waiting()
        except Closed:
            del self._engines[engine]

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop whose timers follow this clock in addition to real time.

        `asyncio.Runner(loop_factory=clock.new_loop)` runs a test on it.
        """
        return _LeapingLoop(self)

    def drive(self, engine: EmbeddedEngine, node: Node) -> None:
        """Register an engine on this event loop, to be notified of each move of the clock."""
        self._engines[engine] = node, asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<FrozenClock at {self.now.isoformat()}>"


class _LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time advances with the clock."""

    def __init__(self, clock: FrozenClock) -> None:
        self._frozen = clock
        super().__init__()

    def time(self) -> float:
        return super().time() + self._frozen.leapt_seconds


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def open_millrace(
    folder: Path, *, settings: Settings = SMALL, clock: FrozenClock | None = None
) -> Millrace:
    """Open a folder on this event loop, as `millrace.open` does, with an optional clock.

    The caller has to close it.
    """
    ports = real_ports(folder)
    if clock is not None:
        ports = replace(ports, now_ms=clock.now_ms)
    node = await Node.open(ports, settings)
    engine = EmbeddedEngine(node, str(folder))
    if clock is not None:
        clock.drive(engine, node)
    return Millrace(engine)


def open_blocking(
    folder: Path, *, settings: Settings = SMALL, clock: FrozenClock | None = None
) -> sync.Millrace:
    """Open a folder, as `millrace.sync.open` does; timers of its event loop follow the clock."""
    portal = Portal(None if clock is None else clock.new_loop)
    opening = open_millrace(folder, settings=settings, clock=clock)
    return sync.Millrace(portal, portal.begin(opening))
