"""The pace of long work beside an event loop.

Every call into LMDB lets go of the GIL for about a microsecond. Where another thread always wants
it, each of these moments may cost a switch interval, or the time of the other thread's next task:
to write 20,000 cells beside a busy event loop took 0.15 s or 11 s, as the scheduler pleased.

So the loop stands still for a millisecond at a time. It then waits for a lock and not for the GIL,
the work runs at full speed meanwhile, and afterwards the loop goes on for as long again.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Generator
from typing import Protocol, TypeVar

from millrace import limits

T = TypeVar("T")


class Pace(Protocol):
    """Runs work that pauses by `yield` every few tenths of a millisecond."""

    def __call__(self, work: Generator[None, None, T]) -> T:
        """Run the work to its end and return its result; what it raises comes out unchanged."""
        ...


def at_once(work: Generator[None, None, T]) -> T:
    """The pace where no event loop has to be spared."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class LoopPace:
    """The pace beside an event loop; made on the loop's thread, used on others.

    The loop stands still for little more than `TURN_SECONDS` at a time, and never for longer than
    `TURN_SECONDS_MAX`. Only speed depends on that: the work goes on without a loop that has ended,
    that is busy for long, or that is itself waiting for this thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()

    def __call__(self, work: Generator[None, None, T]) -> T:
        if threading.get_ident() == self._thread:
            return at_once(work)
        turns = _Turns(self._loop)
        try:
            self._loop.call_soon_threadsafe(turns.offer)
        except RuntimeError:
            # The loop is closed, so that nothing is there to be spared.
            return at_once(work)
        try:
            while True:
                turns.take()
                end = time.perf_counter() + limits.TURN_SECONDS
                while time.perf_counter() < end:
                    try:
                        next(work)
                    except StopIteration as stop:
                        result: T = stop.value
                        return result
                turns.give_back()
        finally:
            turns.end()


class _Turns:
    """Turns that an event loop offers to one worker.

    The loop offers them by itself, so that the worker never has to win the GIL from a busy loop: it
    sleeps until the loop already stands still.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offered: queue.SimpleQueue[threading.Lock] = queue.SimpleQueue()
        self._taken: threading.Lock | None = None
        self._is_answered = True
        self._is_over = False

    def offer(self) -> None:
        """Stand still until the turn is given back; called by the loop, again and again."""
        if self._is_over:
            return
        turn = threading.Lock()
        turn.acquire()
        self._offered.put(turn)
        # The worker may have ended since; then nobody looks for this turn any more.
        if not self._is_over:
            turn.acquire(timeout=limits.TURN_SECONDS_MAX)
            self._loop.call_later(limits.TURN_SECONDS, self.offer)

    def take(self) -> None:
        """Wait for a turn, but not for long, and no second time for a loop that did not answer."""
        try:
            if self._is_answered:
                self._taken = self._offered.get(timeout=limits.TURN_SECONDS_MAX)
            else:
                self._taken = self._offered.get_nowait()
        except queue.Empty:
            self._is_answered = False
        else:
            self._is_answered = True

    def give_back(self) -> None:
        """Let the loop go on."""
        if self._taken is not None:
            self._taken.release()
            self._taken = None

    def end(self) -> None:
        """Want no more turns."""
        self._is_over = True
        self.give_back()
        while not self._offered.empty():
            self._offered.get().release()
