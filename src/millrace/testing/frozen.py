"""Engines for tests: small, quick to open, and on a clock that stands still until it is moved.

Rule 1: time is what the clock says, for every engine that was opened with it: leases, waits, pins,
and whatever goes by age.
Rule 2: when `advance` or `set` returns, or `caught_up` does on an engine's own loop, whatever fell
due has happened.
Rule 3: timers of an event loop follow only where the loop was made by the clock. There they go
first: who holds a message and extends it in time keeps it.
Rule 4: the clock leaps, and nothing happens in between: a leap beyond the end of a lease is as if
its worker had been asleep for so long.
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
"""A log whose segments are made in a moment; a message of more than some hundred KiB needs more."""

CATCH_UP_SECONDS_MAX = 60
"""How long a move of the clock waits for an engine; one that takes longer is taken to hang."""

TIMERS_FIRST = 8
"""Rounds of its loop that an engine lets pass, so that timers that fell due do their work."""


class FrozenClock:
    """A clock that stands still until it is moved; it begins at the time of its making."""

    def __init__(self) -> None:
        self._now_ms = time.time_ns() // 1_000_000
        self._leapt_seconds = 0.0
        self._engines: dict[EmbeddedEngine, tuple[Node, asyncio.AbstractEventLoop]] = {}
        self._catching_up: set[asyncio.Task[None]] = set()

    def now_ms(self) -> int:
        """The time, in milliseconds since 1970."""
        return self._now_ms

    @property
    def now(self) -> datetime:
        """The time."""
        return datetime.fromtimestamp(self._now_ms / 1000, UTC)

    @property
    def leapt_seconds(self) -> float:
        """How far the clock was moved forwards, all in all."""
        return self._leapt_seconds

    def advance(self, seconds: float) -> None:
        """Move forwards. What falls due has happened when this returns; on the engine's own event
        loop it happens while the test waits: `await clock.caught_up()`."""
        if not seconds >= 0:
            raise Invalid(f"seconds are {seconds}, not 0 or more; see `set`", field="seconds")
        self._leapt_seconds += seconds
        self._move(self._now_ms + round(seconds * 1000))

    def set(self, when: datetime) -> None:
        """Move to a time, which may lie in the past: clocks of machines are set, too."""
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
        """Wait until whatever fell due has happened, in engines on this event loop."""
        while self._catching_up:
            await asyncio.wait(list(self._catching_up))

    async def _catch_up(self, engine: EmbeddedEngine, node: Node) -> None:
        for _ in range(TIMERS_FIRST):
            await asyncio.sleep(0)
        try:
            for shard in node.store.shards():
                # A queue that is deleted meanwhile has nothing that falls due.
                with suppress(Refused):
                    while await engine.ask(shard, Tick(), object) is True:
                        pass
            node.host_of(CATALOG).look()
        except Closed:
            del self._engines[engine]

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop whose timers follow this clock, besides the time that really passes.

        `asyncio.Runner(loop_factory=clock.new_loop)` runs a test on it.
        """
        return _LeapingLoop(self)

    def drive(self, engine: EmbeddedEngine, node: Node) -> None:
        """Tell the engine, which runs on this event loop, whenever the clock is moved."""
        self._engines[engine] = node, asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<FrozenClock at {self.now.isoformat()}>"


class _LeapingLoop(asyncio.SelectorEventLoop):
    """Whenever the clock is moved forwards, as much time has passed here."""

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
    """Open a folder on this event loop, as `millrace.open` does, on another clock if there is one.

    Closing it is the caller's affair.
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
