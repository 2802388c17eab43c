"""Disk usage is proportional to the live messages, however many operations there were."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from millrace import limits
from millrace.client.queue import Queue
from millrace.settings import Settings
from tests.client.harness import Clock, opened, run

SEGMENT = 256 * 1024
SETTINGS = Settings(
    segment_bytes=SEGMENT,
    log_segments_free=1,
    log_segments_unsealed=1,
    log_segments_max=8,
    checkpoint_seconds=0,
    checkpoint_log_bytes=SEGMENT // 2,
)

ROUNDS = 400
"""Each writes 40 KB of bulk: some sixty segments in all."""

INDEX = 256 * 1024
"""The most that the index may take: it holds some hundred rows and leases, and what the commits
before wrote over."""


def used(folder: Path) -> int:
    """Return the bytes of the log, of sealed files and of the index, which has the leases."""
    size = 0
    for kind in ("seg", "arrow", "new", "mdb"):
        for name in folder.rglob(f"*.{kind}"):
            # One that is being made may have got its own name meanwhile.
            with suppress(FileNotFoundError):
                size += os.stat(name).st_size
    return size


def index(folder: Path) -> int:
    """Return the bytes of the index, which never shrinks."""
    return os.stat(folder / "index" / "data.mdb").st_size


@pytest.fixture(autouse=True)
def few_ended_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of remembered ended leases, so that it is reached at once."""
    monkeypatch.setattr(limits, "LEASES_REMEMBERED_MAX", 40)


Act = Callable[[Queue, Clock], Awaitable[None]]


async def release(queue: Queue, clock: Clock) -> None:
    await queue.release(await queue.lease(100))


async def extend(queue: Queue, clock: Clock) -> None:
    leases = await queue.lease(100, seconds=60)
    await queue.extend(leases, 120)
    await queue.release(leases, failed=True)


async def run_out(queue: Queue, clock: Clock) -> None:
    assert len(await queue.lease(100, seconds=1)) == 100
    clock.forward(seconds=2)


@pytest.mark.slow
@pytest.mark.parametrize("act", [release, extend, run_out])
def test_the_same_messages_again_and_again(tmp_path: Path, act: Act) -> None:
    """The leases alone would fill the log ten times over; the messages stay unchanged."""

    async def main() -> None:
        clock = Clock()
        async with opened(tmp_path / "data", settings=SETTINGS, clock=clock) as m:
            queue = await m.queue("work")
            await queue.publish_many([b"%03d" % at * 300 for at in range(100)])
            most = 0
            for _ in range(ROUNDS):
                await act(queue, clock)
                # Bulk of another queue, that the log turns over.
                await _pass(await m.queue("other"))
                most = max(most, used(tmp_path / "data"))
            assert most <= 8 * SEGMENT + 2 * 100 * 1_000 + INDEX
            assert index(tmp_path / "data") <= INDEX
            assert (await (await m.queue("other")).stats())["settled"] == ROUNDS * 20
            assert [row.body for row in await queue.peek(100)] == [
                b"%03d" % at * 300 for at in range(100)
            ]

    run(main())


async def _pass(queue: Queue) -> None:
    await queue.publish_many([bytes(2_000)] * 20)
    await queue.settle(await queue.lease(20))


@pytest.mark.slow
def test_r8_one_stuck_message_while_many_pass(tmp_path: Path) -> None:
    """It keeps one sealed row, not the log."""

    async def main() -> None:
        most = 0
        async with opened(tmp_path / "data", settings=SETTINGS) as m:
            queue = await m.queue("work")
            await queue.publish(b"stuck")
            [stuck] = await queue.lease(1, seconds=3600)
            for _ in range(ROUNDS):
                await _pass(queue)
                most = max(most, used(tmp_path / "data"))
            assert most <= 8 * SEGMENT + INDEX
            assert index(tmp_path / "data") <= INDEX
            await stuck.settle()
            assert (await queue.stats())["settled"] == ROUNDS * 20 + 1

    run(main())
