"""I/O threads of the simulator: run blocking work at a later virtual time, one piece at a time.

Work runs as a whole on the loop's thread, or in steps, from one effect to the next, interleaved
with the engine and other I/O threads. Stepped work has a thread of its own, but only for its stack:
it runs while the loop's thread waits for it, and waits otherwise. So only one thread runs at any
time, and a seed replays everything.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from tests.support.simulator.disk import Crashed

T = TypeVar("T")


class IoDelay(NamedTuple):
    """Distribution of delays of an I/O thread, in seconds of virtual time."""

    usual: float
    slow: float
    slow_share: float
    """Share of slow calls."""
    is_stepped: bool = False
    """True if work is interleaved with other threads between its effects."""

    def delay(self, chance: random.Random) -> float:
        mean = self.slow if chance.random() < self.slow_share else self.usual
        return chance.expovariate(1 / mean) if mean else 0.0


class SteppedThreads:
    """The stepped I/O threads of one life."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._walkers: list[SteppedThread] = []

    def walker(self) -> SteppedThread:
        """Return a new idle thread."""
        walker = SteppedThread(self._here)
        self._walkers.append(walker)
        return walker

    def pause(self) -> None:
        """Suspend stepped work; called before each effect."""
        walker: SteppedThread | None = getattr(self._here, "walker", None)
        if walker is not None:
            walker.pause()

    def end(self) -> None:
        """End all threads: the process is gone."""
        for walker in self._walkers:
            walker.end()
        self._walkers.clear()


class SteppedThread:
    """A thread that runs only while the caller of `step` waits for it."""

    def __init__(self, here: threading.local) -> None:
        self._here = here
        self._work: Callable[[], None] | None = None
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], None]) -> None:
        """Set the work for the next steps."""
        self._work = work

    def step(self) -> bool:
        """Resume it until its next effect; return True if the work is done."""
        if self._is_ending:
            # The process is gone, and with it all remaining work.
            return True
        self._go.release()
        self._stopped.acquire()
        return self._work is None

    def pause(self) -> None:
        """Wait for the next step; called on the thread itself."""
        self._stopped.release()
        self._go.acquire()
        if self._is_ending:
            raise Crashed

    def end(self) -> None:
        """Abort the work, and end the thread."""
        self._is_ending = True
        while self._thread.is_alive():
            self._go.release()
            self._thread.join(0.001)

    def _run(self) -> None:
        self._here.walker = self
        self._go.acquire()
        while not self._is_ending:
            assert self._work is not None, "it was told what to do"
            with suppress(Crashed):
                # The machine may end within it; then nobody waits for an answer.
                self._work()
            self._work = None
            self._stopped.release()
            self._go.acquire()


class SimIoThread:
    """Runs work in the order of submission, each after a random delay."""

    def __init__(
        self, name: str, pace: IoDelay, chance: random.Random, steps: SteppedThreads
    ) -> None:
        self.name = name
        self._pace = pace
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._walker = steps.walker() if pace.is_stepped else None
        self._is_walking = False
        self._is_busy = False

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                self._loop.call_soon(_fail, future, error)
            else:
                self._loop.call_soon(_finish, future, result)

        self._waiting.append(run)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_later(self._pace.delay(self._chance), self._next)
        return future

    def close(self) -> None:
        while self._is_walking or self._waiting:
            self._move()

    def _next(self) -> None:
        self._move()
        self._is_busy = self._is_walking or bool(self._waiting)
        if self._is_busy:
            self._loop.call_later(self._pace.delay(self._chance), self._next)

    def _move(self) -> None:
        """Continue the current work, or begin the next."""
        walker = self._walker
        if self._waiting and not self._is_walking:
            work = self._waiting.popleft()
            if walker is None:
                work()
                return
            walker.begin(work)
            self._is_walking = True
        if walker is not None and self._is_walking:
            self._is_walking = not walker.step()


def _finish(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
