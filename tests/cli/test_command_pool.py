"""What `millrace work` does while the engine is shared: within this process, on a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import millrace
from millrace.cli import command_pool
from millrace.cli.command_pool import CommandPool, CommandResult
from millrace.cli.exit_errors import ExitError
from millrace.cli.shutdown import ShutdownSignal

pytestmark = pytest.mark.process

SETTINGS = millrace.Settings(segment_bytes=1 << 20)


class Scene:
    """A keyed queue, a crew that works on it, and what it told."""

    def __init__(self, queue: millrace.Queue, folder: Path) -> None:
        self.queue = queue
        self.folder = folder
        self.stop = ShutdownSignal()
        self.results: list[CommandResult] = []

    def crew(self, script: str) -> CommandPool:
        command = ["sh", "-c", f"cd {self.folder}; {script}"]
        return CommandPool(
            self.queue, command, self.stop, self.results.append, pause=0, is_json=False
        )

    async def appears(self, name: str) -> None:
        # Another process makes it.
        while not (self.folder / name).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    async with millrace.open(folder / "data", settings=SETTINGS) as m:
        yield Scene(await m.queue("prices", keyed=True), folder)


def test_a_command_whose_message_was_replaced_is_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as here:
            await here.queue.publish(b"old", key="k")
            script = 'test "$(cat)" = new || { touch begun; sleep 600; }'
            working = asyncio.create_task(
                here.crew(script).run(concurrency=1, seconds=1, once=True)
            )
            await here.appears("begun")
            await here.queue.publish(b"new", key="k")
            await working
            assert [(result.seq, result.how) for result in here.results] == [
                (1, "lost"),
                (2, "settled"),
            ]

    asyncio.run(run())


def test_too_many_failures_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_pool, "FAILED_MAX", 2)

    async def run() -> None:
        async with scene(tmp_path) as here:
            await here.queue.publish_many([b"a", b"b", b"c", b"d"])
            with pytest.raises(ExitError, match="2 messages have failed"):
                await here.crew("false").run(concurrency=1, seconds=30, once=True)
            assert [result.how for result in here.results] == ["failed", "failed"]
            assert [lease.failures for lease in await here.queue.lease(4)] == [1, 1, 0, 0]

    asyncio.run(run())


def test_an_engine_that_ends_leaves_no_command_behind(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as here:
            await here.queue.publish(b"a")
            crew = here.crew("trap 'touch ended; exit 1' TERM; touch begun; sleep 600 & wait")
            working = asyncio.create_task(crew.run(concurrency=1, seconds=30, once=True))
            await here.appears("begun")
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert (tmp_path / "ended").exists()

    asyncio.run(run())
