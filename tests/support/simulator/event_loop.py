"""An event loop on virtual time, in one thread: asyncio without a selector.

Rule 1: callbacks run in the order of becoming ready, timers in the order of their times.
Nothing depends on hashes, addresses or real time.
Rule 2: when nothing is ready, time jumps to the next timer. If there is no timer, the
waiting tasks are deadlocked: `run` raises `Stuck`.
Rule 3: `halt` ends everything after the present callback: a machine that lost its power finishes
nothing. The effects of tasks during their teardown must not reach the world: the ports ensure
that.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from tests.support.simulator.clock import SimClock
from tests.support.simulator.disk import Crashed

T = TypeVar("T")

CLOSINGS_MAX = 100
"""How often a coroutine may go on while it is being closed."""

IDLE_EVENTS_MAX = 2_000_000
"""Callbacks within one `run`; more are taken for an endless loop."""


class Stuck(Exception):
    """Deadlock: nothing is ready, no timer is set, but a future is awaited."""


class Halted(Exception):
    """The loop was halted before the awaited coroutine had ended."""


class SimLoop(asyncio.BaseEventLoop):
    """See the module. One loop is one life of a process."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, clock: SimClock) -> None:
        super().__init__()
        self.set_debug(False)
        self.clock = clock
        self.events = 0
        """Callbacks that were run."""
        self.failures: list[str] = []
        """What nobody handled: every line of it is a defect."""
        self._order = 0
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._is_halted = False
        self.set_exception_handler(self._note)
        self.set_task_factory(self._make_task)

    # --- Time ----------------------------------------------------------------------------------

    def time(self) -> float:
        return self.clock.seconds

    # --- Running -------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` has ended; return what it returns.

        Raises:
            Halted: the loop was halted before.
            Stuck: it can never end.
        """
        task = self.create_task(main)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if self._is_halted or not task.done():
            raise Halted
        return task.result()

    def halt(self) -> None:
        """End after the present callback; nothing of this loop runs any more."""
        self._is_halted = True
        self.stop()

    def _run_once(self) -> None:
        self._move_timers()
        if not self._ready:
            if not self._scheduled:
                raise Stuck
            self.clock.pass_to(self._scheduled[0].when())
            self._move_timers()
        for _ in range(len(self._ready)):
            if self._is_halted:
                return
            handle = self._ready.popleft()
            if not handle.cancelled():
                self.events += 1
                handle._run()
        if self.events > IDLE_EVENTS_MAX:
            raise Stuck(f"{self.events} callbacks and no end")

    def _move_timers(self) -> None:
        """Make ready whatever is due, and forget the timers that were cancelled."""
        while self._scheduled:
            timer = self._scheduled[0]
            if not timer.cancelled():
                if timer.when() > self.clock.seconds:
                    return
                self._ready.append(timer)
            heapq.heappop(self._scheduled)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing is counted: cancelled timers go when their time comes."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken: there is one thread."""

    # --- The end -------------------------------------------------------------------------------

    def bury(self) -> None:
        """Tear down the tasks of a halted process, in order, so that a seed replays it."""
        self._is_halted = True
        self._ready.clear()
        self._scheduled.clear()
        for task in self._tasks.values():
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
        self._tasks.clear()
        self.failures.clear()
        self._ready.clear()
        self.close()

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coroutine, loop=loop)
        number = self._order
        self._order += 1
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return task

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._is_halted:
            error = context.get("exception")
            self.failures.append(f"{context.get('message')}: {error!r}")


def _close(coroutine: Any) -> None:
    """End a coroutine whose process is gone, through all that it would still do at its end.

    From the inside out: one that awaits something while it is being closed ends those around it,
    and would be left for the collector to close.
    """
    for _ in range(CLOSINGS_MAX):
        inner = getattr(coroutine, "cr_await", None)
        if inspect.iscoroutine(inner):
            _close(inner)
        try:
            coroutine.close()
        except (RuntimeError, Crashed):
            # It awaited something while it was being closed, or touched a disk that is gone.
            continue
        return
