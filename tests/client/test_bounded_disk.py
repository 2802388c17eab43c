"""The disk follows the messages that are wanted, however often something happens to them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

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


def used(folder: Path) -> int:
    """Bytes of the log and of sealed files."""
    size = 0
    for name in (*folder.rglob("*.seg"), *folder.rglob("*.arrow"), *folder.rglob("*.new")):
        # One that is being made may have got its own name meanwhile.
        with suppress(FileNotFoundError):
            size += os.stat(name).st_size
    return size


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


@pytest.mark.parametrize("act", [release, extend, run_out])
def test_the_same_messages_again_and_again(tmp_path: Path, act: Act) -> None:
    """What a log of leases alone would fill ten times over; the messages stay, as they were."""

    async def main() -> None:
        clock = Clock()
        async with opened(tmp_path / "data", settings=SETTINGS, clock=clock) as m:
            queue = await m.queue("work")
            await queue.publish_many([b"%03d" % at * 300 for at in range(100)])
            most = written = 0
            for _ in range(250):
                await act(queue, clock)
                # Bulk of another queue, that the log turns over.
                await _pass(await m.queue("other"))
                written += 20 * 2_000
                most = max(most, used(tmp_path / "data"))
            assert written > 30 * SEGMENT
            assert most <= 8 * SEGMENT + 2 * 100 * 1_000
            assert [row.body for row in await queue.peek(100)] == [
                b"%03d" % at * 300 for at in range(100)
            ]

    run(main())


async def _pass(queue: Queue) -> None:
    await queue.publish_many([bytes(2_000)] * 20)
    await queue.settle(await queue.lease(20))


def test_r8_one_stuck_message_while_many_pass(tmp_path: Path) -> None:
    """It pins one sealed row, never a log."""

    async def main() -> None:
        most = 0
        async with opened(tmp_path / "data", settings=SETTINGS) as m:
            queue = await m.queue("work")
            await queue.publish(b"stuck")
            [stuck] = await queue.lease(1, seconds=3600)
            for _ in range(400):
                await _pass(queue)
                most = max(most, used(tmp_path / "data"))
            assert 50 * SEGMENT < 400 * 20 * 2_000
            assert most <= 8 * SEGMENT
            await stuck.settle()
            assert (await queue.stats())["settled"] == 400 * 20 + 1

    run(main())
