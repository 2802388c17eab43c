"""Paced work alternates with the event loop, and never waits for an unresponsive one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextvars import Context
from typing import TypeVarTuple, Unpack

import pytest

from millrace import limits
from millrace.store.pacing import LoopPacer, run_at_once

Ts = TypeVarTuple("Ts")


def count_to(number: int) -> Generator[None, None, int]:
    for _ in range(number):
        yield
    return number


def work_for(seconds: float) -> Generator[None, None, None]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield


def break_off() -> Generator[None, None, None]:
    yield
    raise LookupError("as it was")


def test_at_once() -> None:
    assert run_at_once(count_to(1_000)) == 1_000
    with pytest.raises(LookupError, match="as it was"):
        run_at_once(break_off())


def test_work_and_loop_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    # However busy the machine is, each waits for the other.
    monkeypatch.setattr(limits, "TURN_SECONDS_MAX", 60.0)

    async def main() -> tuple[int, int, int]:
        pace = LoopPacer(asyncio.get_running_loop())
        ticks = 0
        steps = disturbed = 0

        def work() -> Generator[None, None, int]:
            nonlocal steps, disturbed
            for _ in range(200):
                before = ticks
                end = time.perf_counter() + limits.TURN_SECONDS / 4
                while time.perf_counter() < end:
                    # Like LMDB: release the GIL, and take it again.
                    time.sleep(0)
                steps += 1
                disturbed += ticks != before
                yield
            return ticks

        running = asyncio.create_task(asyncio.to_thread(pace, work()))
        while not running.done():
            ticks += 1
            await asyncio.sleep(0)
        return steps, disturbed, await running

    steps, disturbed, ticks = asyncio.run(main())
    assert steps == 200
    assert ticks >= 20, "the loop goes on between the turns"
    assert disturbed < steps / 2, "and stands still during them"


def test_results_and_errors_come_through() -> None:
    async def main() -> None:
        pace = LoopPacer(asyncio.get_running_loop())
        assert await asyncio.to_thread(pace, count_to(10_000)) == 10_000
        assert await asyncio.to_thread(pace, count_to(0)) == 0
        with pytest.raises(LookupError, match="as it was"):
            await asyncio.to_thread(pace, break_off())
        assert pace(count_to(10)) == 10, "on the loop's own thread too"

    asyncio.run(main())


def test_two_workers_at_a_time() -> None:
    async def main() -> None:
        pace = LoopPacer(asyncio.get_running_loop())
        work = [asyncio.to_thread(pace, work_for(0.02)) for _ in range(2)]
        await asyncio.gather(*work)

    asyncio.run(main())


def test_a_loop_that_waits_for_the_worker() -> None:
    async def main() -> None:
        pace = LoopPacer(asyncio.get_running_loop())
        worker = threading.Thread(target=pace, args=(count_to(100_000),))
        worker.start()
        # The loop is blocked, as when an I/O thread is closed.
        worker.join()

    asyncio.run(main())


def test_a_loop_that_does_not_answer_is_waited_for_once() -> None:
    worked = 0.0

    def work() -> Generator[None, None, None]:
        nonlocal worked
        for _ in range(100):
            begin = time.perf_counter()
            run_at_once(work_for(limits.TURN_SECONDS))
            worked += time.perf_counter() - begin
            # Count the time that the work waits for the loop.
            yield

    async def main() -> float:
        worker = threading.Thread(target=LoopPacer(asyncio.get_running_loop()), args=(work(),))
        begin = time.perf_counter()
        worker.start()
        worker.join()
        return time.perf_counter() - begin

    # Waiting before each of the hundred turns would take a second.
    assert asyncio.run(main()) - worked < 50 * limits.TURN_SECONDS_MAX


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the calls that are put off."""

    put_off = 0

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.put_off += 1
        return super().call_later(delay, callback, *args, context=context)


def test_a_loop_is_left_alone_when_the_work_is_done() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)

        def until_put_off(count: int) -> Generator[None, None, None]:
            while loop.put_off < count:
                yield

        await asyncio.to_thread(LoopPacer(loop), until_put_off(3))
        before = loop.put_off
        for _ in range(5):
            await asyncio.sleep(2 * limits.TURN_SECONDS)
        # Five are this test's own, and one turn may have been offered before the end was seen.
        assert loop.put_off - before <= 6

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


def test_a_loop_that_has_ended() -> None:
    async def main() -> LoopPacer:
        return LoopPacer(asyncio.get_running_loop())

    pace = asyncio.run(main())
    results: list[int] = []
    worker = threading.Thread(target=lambda: results.append(pace(count_to(1_000))))
    worker.start()
    worker.join()
    assert results == [1_000]


def test_a_loop_that_ends_meanwhile() -> None:
    has_begun = threading.Event()
    is_ended = threading.Event()

    def work() -> Generator[None, None, None]:
        has_begun.set()
        while not is_ended.is_set():
            yield
        yield from count_to(1_000)

    async def main() -> threading.Thread:
        worker = threading.Thread(target=LoopPacer(asyncio.get_running_loop()), args=(work(),))
        worker.start()
        await asyncio.to_thread(has_begun.wait)
        return worker

    worker = asyncio.run(main())
    is_ended.set()
    worker.join()
