"""Measure the longest step of an event loop, and the memory that a test takes.

The step is measured in CPU time of the loop's thread, not in wall time, so that other processes on
the machine do not count. Memory is the process's peak resident set while the monitor is active.
"""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from millrace.event_loop import rest_collector

TICK_SECONDS = 0.002
"""Steps are measured to within this much CPU time."""

STEP_CPU_SECONDS_MAX = 0.1
"""No request, however hostile, may occupy the loop for longer at a stretch."""

ATTEMPTS = 8
"""A virtual machine counts time that it was not given as CPU time of the thread that waited for it:
the least of several measurements is the step's own."""


class StallMonitor:
    """Measures the loop that enters it, until it is left.

    A timer records the CPU time of the loop's thread at each tick. Between two ticks the loop runs
    at most one turn that began before the timer was due, so a step of N seconds shows up as a
    difference of at least N seconds.
    """

    def __init__(self) -> None:
        self.longest_cpu_seconds = 0.0
        self.rss_growth_bytes = 0
        self._rss_before = 0
        self._last = 0.0
        self._thresholds = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        # The garbage collector runs as in a server: seldom, and not over what was there before.
        self._thresholds = gc.get_threshold()
        rest_collector()
        reset_peak_rss()
        self._rss_before = peak_rss_bytes()
        self._last = time.thread_time()
        self._schedule()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # One more turn, so that a step that is still running is counted.
        await asyncio.sleep(TICK_SECONDS)
        self._record()
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()
        self.rss_growth_bytes = max(peak_rss_bytes() - self._rss_before, 0)

    @property
    def is_responsive(self) -> bool:
        """True if no step took more CPU time than a request may."""
        return self.longest_cpu_seconds < STEP_CPU_SECONDS_MAX

    def assert_responsive(self, cpu_seconds: float = STEP_CPU_SECONDS_MAX) -> None:
        """Fail if a step took more CPU time than `cpu_seconds`."""
        longest = self.longest_cpu_seconds
        assert longest < cpu_seconds, f"the loop ran for {longest:.3f} s of CPU time in one step"

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._record()
        self._schedule()

    def _record(self) -> None:
        now = time.thread_time()
        self.longest_cpu_seconds = max(self.longest_cpu_seconds, now - self._last)
        self._last = now


def peak_rss_bytes(pid: int | None = None) -> int:
    """Return the peak resident set of a process since its peak was last reset."""
    status = Path(f"/proc/{'self' if pid is None else pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def reset_peak_rss(pid: int | None = None) -> None:
    """Make the peak of a process its present resident set."""
    # 5 is the kernel's number for "reset the peak" (proc(5), clear_refs).
    Path(f"/proc/{'self' if pid is None else pid}/clear_refs").write_text("5")
