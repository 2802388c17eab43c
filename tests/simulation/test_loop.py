"""The loop on virtual time: order, jumps, ends."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.simulator.clock import BEGIN_MS, SimClock
from tests.support.simulator.event_loop import Halted, SimLoop, Stuck


def test_time_jumps_to_the_next_timer() -> None:
    clock = SimClock()
    loop = SimLoop(clock)

    async def main() -> list[float]:
        times = [loop.time()]
        for seconds in (3600.0, 0.5, 86_400.0):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    assert loop.run(main()) == [0.0, 3600.0, 3600.5, 90_000.5]
    assert clock.now_ms() == BEGIN_MS + 90_000_500
    loop.bury()


def test_timers_run_in_the_order_of_their_times() -> None:
    loop = SimLoop(SimClock())
    seen: list[str] = []

    async def main() -> None:
        loop.call_later(2, seen.append, "second")
        loop.call_later(1, seen.append, "first")
        loop.call_later(1.5, seen.append, "cancelled").cancel()
        loop.call_soon(seen.append, "at once")
        loop.call_soon_threadsafe(seen.append, "then")
        await asyncio.sleep(3)

    loop.run(main())
    assert seen == ["at once", "then", "first", "second"]
    loop.bury()


def test_who_waits_for_nothing_is_stuck() -> None:
    loop = SimLoop(SimClock())

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(Stuck):
        loop.run(main())
    loop.bury()


def test_halting_ends_everything_after_the_present_callback() -> None:
    loop = SimLoop(SimClock())
    seen: list[str] = []

    async def other() -> None:
        await asyncio.sleep(1)
        seen.append("too late")

    async def main() -> None:
        loop.create_task(other())
        loop.call_later(0.5, loop.halt)
        await asyncio.sleep(2)

    with pytest.raises(Halted):
        loop.run(main())
    loop.bury()
    assert seen == []


def test_what_nobody_handles_is_noted() -> None:
    loop = SimLoop(SimClock())

    def fail() -> None:
        raise ValueError("oh")

    async def main() -> None:
        loop.call_soon(fail)
        await asyncio.sleep(1)

    loop.run(main())
    [failure] = loop.failures
    assert "ValueError('oh')" in failure
    loop.bury()


def test_the_wall_clock_may_be_set_and_catches_up() -> None:
    clock = SimClock()
    clock.jump(5_000)
    assert clock.now_ms() == BEGIN_MS + 5_000
    clock.jump(-60_000)
    assert clock.now_ms() == BEGIN_MS - 55_000
    clock.catch_up()
    assert clock.now_ms() == BEGIN_MS + 5_000
    clock.pass_to(-1.0)
    assert clock.seconds == 0.0
