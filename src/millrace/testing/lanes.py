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
from typing import NamedTuple, TypeVar

from millrace.testing.disk import Crashed

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
    """The stepped pieces of work of one life."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._standing: list[Stepped] = []

    def begin(self, work: Callable[[], None]) -> Stepped:
        """A piece of work that stands still until its first step."""
        stepped = Stepped(work, self._here)
        self._standing.append(stepped)
        return stepped

    def end(self, stepped: Stepped) -> None:
        self._standing.remove(stepped)

    def pause(self) -> None:
        """Called before each effect: stand still here, if this is a stepped piece of work."""
        stepped: Stepped | None = getattr(self._here, "stepped", None)
        if stepped is not None:
            stepped.pause()

    def drop_all(self) -> None:
        """The process is gone: what stands still goes no further."""
        for stepped in self._standing:
            stepped.drop()
        self._standing.clear()


class Stepped:
    """One piece of work and the thread that holds its stack."""

    def __init__(self, work: Callable[[], None], here: threading.local) -> None:
        self._work = work
        self._here = here
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._is_dropped = False
        self.is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> bool:
        """Let it go on to its next effect; tells whether it has ended."""
        self._go.release()
        self._stopped.acquire()
        if self.is_over:
            self._thread.join()
        return self.is_over

    def pause(self) -> None:
        """Stand still until the next step; on its own thread."""
        self._stopped.release()
        self._go.acquire()
        if self._is_dropped:
            raise Crashed

    def drop(self) -> None:
        """End it where it stands."""
        self._is_dropped = True
        while not self.is_over:
            self.step()

    def _run(self) -> None:
        self._go.acquire()
        self._here.stepped = self
        try:
            if not self._is_dropped:
                self._work()
        except Crashed:
            # The machine has ended within it; nobody waits for an answer.
            return
        finally:
            self.is_over = True
            self._stopped.release()


class SimLane:
    """Runs work in the order of submission, one piece at a time, each after a delay by chance."""

    def __init__(self, name: str, pace: Pace, chance: random.Random, steps: Steps) -> None:
        self.name = name
        self._pace = pace
        self._chance = chance
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._current: Stepped | None = None
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
        if self._current is not None:
            while not self._current.step():
                pass
            self._steps.end(self._current)
            self._current = None
        while self._waiting:
            self._waiting.popleft()()

    def _next(self) -> None:
        """Go on with the work that has begun, or begin the next."""
        if self._current is None and self._waiting:
            work = self._waiting.popleft()
            if self._pace.is_stepped:
                self._current = self._steps.begin(work)
            else:
                work()
        if self._current is not None and self._current.step():
            self._steps.end(self._current)
            self._current = None
        self._is_busy = self._current is not None or bool(self._waiting)
        if self._is_busy:
            self._loop.call_later(self._pace.delay(self._chance), self._next)


def _finish(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
