"""Who is silent, and who only could not be heard."""

from __future__ import annotations

import asyncio
import time

import pytest

from millrace import limits
from millrace.rpc.session_liveness import SilenceTimer
from tests.client.harness import run


def stall(seconds: float) -> None:
    """Keep the event loop from everything else."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_r7_who_says_nothing_is_missed_once() -> None:
    async def main() -> None:
        missed = asyncio.Event()
        began = time.monotonic()
        SilenceTimer(0.1, missed.set)
        await missed.wait()
        assert time.monotonic() - began >= 0.09

    run(main())


def test_r7_who_is_heard_is_not_missed() -> None:
    async def main() -> None:
        missed: list[str] = []
        first = SilenceTimer(0.05, lambda: missed.append("first"))
        first.stop()
        over = asyncio.Event()
        SilenceTimer(0.1, over.set)
        await over.wait()
        assert missed == []

    run(main())


def test_r7_a_stall_of_this_process_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_STALL_SECONDS", 0.05)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        missed = asyncio.Event()
        silence = SilenceTimer(0.5, missed.set)
        stall(1)
        heard = asyncio.Event()

        def hear() -> None:
            silence.stop()
            heard.set()

        # What was said meanwhile is read after the timers that are due, some turns later.
        for turns in range(5):
            assert not missed.is_set(), f"it was missed after {turns} turns"
            await asyncio.sleep(0)
        # The next word comes when it would have come without a stall, after the last look.
        loop.call_later(0.25, hear)
        await heard.wait()
        over = asyncio.Event()
        SilenceTimer(1, over.set)
        await over.wait()
        assert not missed.is_set()

    run(main())


def test_r7_what_was_said_in_a_short_stall_is_read_first() -> None:
    async def main() -> None:
        missed = asyncio.Event()
        silence = SilenceTimer(0.4, missed.set)
        # Shorter than what is taken for a stall, and beyond the first look.
        stall(0.39)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not missed.is_set()
        silence.stop()

    run(main())


def test_r7_stalls_in_a_row_are_forgiven_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_STALL_SECONDS", 0.01)
    monkeypatch.setattr(limits, "HTTP_FORGIVEN_SECONDS_MAX", 0.1)

    async def main() -> None:
        missed = asyncio.Event()
        SilenceTimer(0.02, missed.set)
        stalls = 0
        while not missed.is_set():
            stall(0.05)
            stalls += 1
            await asyncio.sleep(0)
            assert stalls < 100
        assert stalls > 2

    run(main())
