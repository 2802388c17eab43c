"""The stall monitor sees a long step, whatever else happens, and memory that is given back."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from tests.support.stall import StallMonitor


def _burn(cpu_seconds: float) -> None:
    end = time.thread_time() + cpu_seconds
    while time.thread_time() < end:
        pass


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None
    return asyncio.Runner(loop_factory=factory)


def test_a_long_step_is_measured_in_cpu_time(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with StallMonitor() as monitor:
            await asyncio.sleep(0)
            _burn(0.15)
        assert monitor.longest_cpu_seconds >= 0.15
        with pytest.raises(AssertionError, match="in one step"):
            monitor.assert_responsive()

    with runner:
        runner.run(main())


def test_many_short_steps_are_no_long_one(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with StallMonitor() as monitor:
            for _ in range(50):
                _burn(0.01)
                await asyncio.sleep(0)
        monitor.assert_responsive()

    with runner:
        runner.run(main())


def test_time_that_the_thread_sleeps_does_not_count(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with StallMonitor() as monitor:
            time.sleep(0.15)  # noqa: ASYNC251 the loop is blocked without CPU time on purpose
        monitor.assert_responsive()

    with runner:
        runner.run(main())


def test_memory_that_was_freed_meanwhile_counts() -> None:
    async def main() -> None:
        async with StallMonitor() as monitor:
            block = bytearray(b"x" * (64 << 20))
            del block
        assert monitor.rss_growth_bytes >= 60 << 20

    asyncio.run(main())
