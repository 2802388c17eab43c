"""Lanes of the simulator: blocking work, at a later virtual time, while nobody else runs.

A piece of work runs whole on the loop's thread; or in steps, from one effect to the next, so that
the engine and other lanes come in between. A stepped piece has a thread of its own, but only for
its stack: it runs while the loop's thread waits for it, and waits otherwise. So there is never more
than one thread that moves, and a seed replays everything.
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


class Pace(NamedTuple):
    """How long a lane takes, in seconds of virtual time."""

    usual: float
    slow: float
    slow_share: float
    """How often it is slow."""
    is_stepped: bool = False
    """Whether others come in between the effects of one piece of work."""

    def delay(self, chance: random.Random) -> float:
        mean = self.slow if chance.random() < self.slow_share else self.usual
        return chance.expovariate(1 / mean) if mean else 0.0


class Steps:
    """The lanes of one life whose work is done in steps."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._walkers: list[Walker] = []

    def walker(self) -> Walker:
        """One who stands still and has nothing to do."""
        walker = Walker(self._here)
        self._walkers.append(walker)
        return walker

    def pause(self) -> None:
        """Called before each effect: stand still here, if this is done in steps."""
        walker: Walker | None = getattr(self._here, "walker", None)
        if walker is not None:
            walker.pause()

    def end(self) -> None:
        """The process is gone: what stands still goes no further."""
        for walker in self._walkers:
            walker.end()
        self._walkers.clear()


class Walker:
    """A thread that moves only while whoever calls `step` waits for it."""

    def __init__(self, here: threading.local) -> None:
        self._here = here
        self._work: Callable[[], None] | None = None
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], None]) -> None:
        """Do this from the next step on."""
        self._work = work

    def step(self) -> bool:
        """Let it go on to its next effect; tells whether the work is done."""
        if self._is_ending:
            # The process is gone, and with it what was still to be done.
            return True
        self._go.release()
        self._stopped.acquire()
        return self._work is None

    def pause(self) -> None:
        """Stand still until the next step; on the thread itself."""
        self._stopped.release()
        self._go.acquire()
        if self._is_ending:
            raise Crashed

    def end(self) -> None:
        """End the work where it stands, and the thread."""
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


class SimLane:
    """Runs work in the order of submission, one piece at a time, each after a delay by chance."""

    def __init__(self, name: str, pace: Pace, chance: random.Random, steps: Steps) -> None:
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
        """Go on with the work that has begun, or begin the next."""
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
