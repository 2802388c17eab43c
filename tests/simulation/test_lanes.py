"""Lanes on virtual time: in order, one at a time, whole or in steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.support.simulator.clock import SimClock
from tests.support.simulator.event_loop import SimLoop
from tests.support.simulator.io_threads import IoDelay, SimIoThread, SteppedThreads

WHOLE = IoDelay(usual=0.1, slow=1.0, slow_share=0.1)
STEPPED = WHOLE._replace(is_stepped=True)


def play(pace: IoDelay, seed: int = 1) -> list[str]:
    """Two lanes and the loop, each of which says what it does."""
    loop = SimLoop(SimClock())
    steps = SteppedThreads()
    chance = random.Random(seed)
    said: list[str] = []

    def work(name: str) -> Callable[[], str]:
        def run() -> str:
            for effect in range(3):
                steps.pause()
                said.append(f"{name}{effect}")
            return name

        return run

    async def main() -> None:
        lanes = [SimIoThread(name, pace, chance, steps) for name in "ab"]
        done = [lane.submit(work(f"{lane.name}{at}")) for at in range(3) for lane in lanes]
        assert await asyncio.gather(*done) == ["a0", "b0", "a1", "b1", "a2", "b2"]
        for lane in lanes:
            lane.close()

    loop.run(main())
    loop.bury()
    steps.end()
    return said


@pytest.mark.parametrize("pace", [WHOLE, STEPPED])
def test_work_of_a_lane_is_done_in_order(pace: IoDelay) -> None:
    for lane in "ab":
        said = [word for word in play(pace) if word.startswith(lane)]
        assert said == [f"{lane}{at}{effect}" for at in range(3) for effect in range(3)]


def test_whole_work_is_not_interrupted() -> None:
    said = play(WHOLE)
    pieces = [said[at : at + 3] for at in range(0, len(said), 3)]
    assert all(len({word[:2] for word in piece}) == 1 for piece in pieces)


def test_others_come_in_between_two_effects_of_stepped_work() -> None:
    said = play(STEPPED)
    pieces = [said[at : at + 3] for at in range(0, len(said), 3)]
    assert any(len({word[:2] for word in piece}) > 1 for piece in pieces)


@pytest.mark.parametrize("pace", [WHOLE, STEPPED])
def test_the_same_seed_gives_the_same_order(pace: IoDelay) -> None:
    assert play(pace, 7) == play(pace, 7)
    assert any(play(STEPPED, 7) != play(STEPPED, seed) for seed in range(8, 12))


def test_a_failure_is_handed_on() -> None:
    loop = SimLoop(SimClock())

    def fail() -> None:
        raise ValueError("oh")

    async def main() -> None:
        lane = SimIoThread("a", WHOLE, random.Random(1), SteppedThreads())
        with pytest.raises(ValueError, match="oh"):
            await lane.submit(fail)

    loop.run(main())
    loop.bury()


def test_closing_does_what_was_submitted() -> None:
    loop = SimLoop(SimClock())
    steps = SteppedThreads()
    said: list[int] = []

    async def main() -> None:
        lane = SimIoThread("a", STEPPED, random.Random(1), steps)
        for number in range(3):
            lane.submit(lambda number=number: said.append(number))  # type: ignore[misc]
        lane.close()

    loop.run(main())
    loop.bury()
    steps.end()
    assert said == [0, 1, 2]


def test_closing_after_the_end_of_the_process_does_nothing_more() -> None:
    """Whoever is taken apart closes its lanes, and would wait for ever for what is not done."""
    loop = SimLoop(SimClock())
    steps = SteppedThreads()
    done: list[int] = []

    async def main() -> None:
        lane = SimIoThread("a", STEPPED, random.Random(1), steps)
        for number in range(3):
            lane.submit(lambda number=number: done.append(number))  # type: ignore[misc]
        steps.end()
        lane.close()

    loop.run(main())
    loop.bury()
    assert done == []
