"""Pacing: alternates long work on a thread with the event loop, so that both make progress.

Every call into LMDB releases the GIL for about a microsecond. If another thread always wants the
GIL, each release may cost a switch interval, or the time of the other thread's next task: writing
20,000 cells next to a busy event loop took between 0.15 s and 11 s, depending on the scheduler.

So the loop is stopped for a millisecond at a time. It then waits for a lock instead of the GIL, the
work runs at full speed, and afterwards the loop runs for the same time.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from itertools import islice, repeat
from typing import Protocol, TypeVar

from millrace import limits

T = TypeVar("T")


class Pacer(Protocol):
    """Runs work that yields every few tenths of a millisecond."""

    def __call__(self, work: Generator[None, None, T]) -> T:
        """Run the work to its end and return its result; its exceptions propagate."""
        ...


def run_at_once(work: Generator[None, None, T]) -> T:
    """Run the work without pauses, for callers without an event loop to protect."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class LoopPacer:
    """Paces work next to an event loop; created on the loop's thread, used on others.

    The loop is stopped for little more than `TURN_SECONDS` at a time, and never for longer than
    `TURN_SECONDS_MAX`. Only speed depends on the loop: the work goes on if the loop is closed, busy
    for long, or itself waiting for this thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()

    def __call__(self, work: Generator[None, None, T]) -> T:
        if threading.get_ident() == self._thread:
            return run_at_once(work)
        turns = _Turns(self._loop)
        try:
            self._loop.call_soon_threadsafe(turns.offer)
        except RuntimeError:
            # The loop is closed: there is nothing to protect.
            return run_at_once(work)
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

    The loop offers them by itself, so that the worker never competes with a busy loop for the GIL:
    it sleeps until the loop is stopped already.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offered: queue.SimpleQueue[threading.Lock] = queue.SimpleQueue()
        self._taken: threading.Lock | None = None
        self._is_answered = True
        self._is_over = False

    def offer(self) -> None:
        """Block the loop until the turn is given back; called by the loop repeatedly."""
        if self._is_over:
            return
        turn = threading.Lock()
        turn.acquire()
        self._offered.put(turn)
        # The worker may have ended in between; then this turn will not be taken.
        if not self._is_over:
            turn.acquire(timeout=limits.TURN_SECONDS_MAX)
            self._loop.call_later(limits.TURN_SECONDS, self.offer)

    def take(self) -> None:
        """Wait for a turn with a timeout; do not wait again for a loop that did not respond."""
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
        """Resume the loop."""
        if self._taken is not None:
            self._taken.release()
            self._taken = None

    def end(self) -> None:
        """Decline all further turns."""
        self._is_over = True
        self.give_back()
        while not self._offered.empty():
            self._offered.get().release()


# --- Large work in small steps -------------------------------------------------------------------
#
# LMDB is fastest when keys come in order, and the event loop is served only while no single call
# holds the GIL for long. Sorting 300,000 keys in one call takes 120 ms, freeing them 10 ms; these
# functions split both into steps of half a millisecond, with a pause after each.

Item = TypeVar("Item")

_PART = 2 * limits.CELLS_STEP
"""Target number of keys of a part; up to four times this number is sorted in one call."""

_PARTS_MAX = 256
_SAMPLE_PER_PART = 8
"""Sampled keys per part: enough to make the parts similar in size."""


def steps(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists of `CELLS_STEP`."""
    iterator = iter(items)
    while step := list(islice(iterator, limits.CELLS_STEP)):
        yield step


def sorted_keys(keys: list[bytes]) -> Generator[None, None, list[bytes]]:
    """Sort the distinct keys, emptying the list; pause after each step."""
    if len(keys) <= 4 * _PART:
        in_order = sorted(keys)
        keys.clear()
        return in_order
    count = min(_PARTS_MAX, len(keys) // _PART) * _SAMPLE_PER_PART
    borders = sorted(keys[:: len(keys) // count])[_SAMPLE_PER_PART::_SAMPLE_PER_PART]
    parts: list[list[bytes]] = [[] for _ in range(len(borders) + 1)]
    while keys:
        step = keys[-limits.CELLS_STEP :]
        del keys[-limits.CELLS_STEP :]
        for part, key in zip(map(bisect_right, repeat(borders), step), step, strict=True):
            parts[part].append(key)
        yield
    in_order = []
    # Keys are distinct, and each border is one of them: every part is smaller than the whole.
    for bucket in parts:
        in_order += yield from sorted_keys(bucket)
        yield
    return in_order


def clear_in_steps(items: list[Item]) -> Generator[None, None, None]:
    """Empty the list; pause after each step."""
    while items:
        del items[-limits.CELLS_STEP :]
        yield
