"""Lanes of the simulator: blocking work, on the loop's thread, at a later virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Pace(NamedTuple):
    """How long a lane takes, in seconds of virtual time."""

    usual: float
    slow: float
    slow_share: float
    """How often it is slow."""


class SimLane:
    """Runs work in the order of submission, one piece at a time, each after a delay by chance.

    A piece of work runs whole, unless the simulated disk ends the machine within it.
    """

    def __init__(self, name: str, pace: Pace, chance: random.Random) -> None:
        self.name = name
        self._pace = pace
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_busy = False

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                _set(future, error)
            else:
                if not future.done():
                    future.set_result(result)

        self._waiting.append(run)
        self._start()
        return future

    def close(self) -> None:
        while self._waiting:
            self._waiting.popleft()()

    def _start(self) -> None:
        if not self._is_busy and self._waiting:
            self._is_busy = True
            self._loop.call_later(self._delay(), self._next)

    def _next(self) -> None:
        self._is_busy = False
        if self._waiting:
            self._waiting.popleft()()
        self._start()

    def _delay(self) -> float:
        pace, chance = self._pace, self._chance
        mean = pace.slow if chance.random() < pace.slow_share else pace.usual
        return chance.expovariate(1 / mean) if mean else 0.0


def _set(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
