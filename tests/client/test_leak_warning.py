"""Engines that were not closed: a warning is issued, and the folder can be opened again."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millrace
from millrace import Millrace, errors
from millrace.client.opening import end_dead
from tests.client.harness import SMALL, run

SECONDS_MAX = 30


@contextmanager
def told(folder: Path, what: str) -> Iterator[None]:
    """Check that the body causes one warning, which names the folder."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
        gc.collect()
    ours = [str(each.message) for each in found if each.category is ResourceWarning]
    assert len(ours) == 1, ours
    assert str(folder) in ours[0]
    assert what in ours[0]


async def left_open(folder: Path, body: bytes) -> Millrace:
    m = await millrace.open(folder, settings=SMALL)
    await (await m.queue("orders")).publish(body)
    return m


async def rows(folder: Path) -> list[bytes | None]:
    async with millrace.open(folder, settings=SMALL) as m:
        return [row.body for row in await (await m.queue("orders")).peek()]


def wait_until_free(folder: Path) -> list[bytes | None]:
    until = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return run(rows(folder))
        except errors.InUse:
            assert time.monotonic() < until


def test_a_loop_that_ended_first_keeps_no_folder(tmp_path: Path) -> None:
    before = threading.active_count()
    kept = asyncio.run(left_open(tmp_path, b"x"))
    with told(tmp_path, "event loop that has ended"):
        assert run(rows(tmp_path)) == [b"x"]
    assert threading.active_count() == before
    with told(tmp_path, "event loop that has ended"):
        other = asyncio.run(left_open(tmp_path, b"y"))
        assert run(rows(tmp_path)) == [b"x", b"y"]
    del kept, other


def test_an_engine_that_was_dropped_after_its_loop_keeps_no_folder(tmp_path: Path) -> None:
    kept = asyncio.run(left_open(tmp_path, b"x"))
    with told(tmp_path, "was dropped"):
        del kept
        gc.collect()
        assert wait_until_free(tmp_path) == [b"x"]


def test_an_engine_that_was_dropped_on_its_loop_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        await left_open(tmp_path, b"x")
        gc.collect()
        while True:
            try:
                assert await rows(tmp_path) == [b"x"]
                return
            except errors.InUse:
                await asyncio.sleep(0)

    with told(tmp_path, "was dropped"):
        run(main())


def test_an_engine_that_its_last_function_forgot_is_ended(tmp_path: Path) -> None:
    """It is collected together with its loop, in either order."""

    async def main() -> None:
        await left_open(tmp_path, b"x")

    with told(tmp_path, "never closed"):
        asyncio.run(main())
        gc.collect()
        assert wait_until_free(tmp_path) == [b"x"]


def test_who_closes_is_told_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(rows(tmp_path))
        gc.collect()
    assert not end_dead(tmp_path)


def test_an_engine_whose_loop_lives_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            with pytest.raises(errors.InUse, match="already open in this process"):
                await millrace.open(tmp_path, settings=SMALL)
            await (await m.queue("orders")).publish(b"x")

    run(main())


@pytest.mark.process
def test_lanes_of_a_loop_that_has_ended_say_nothing(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, millrace\n"
        "async def main():\n"
        "    m = await millrace.open(sys.argv[1])\n"
        "    queue = await m.queue('orders')\n"
        "    asyncio.ensure_future(queue.publish_many([bytes(1000)] * 10_000))\n"
        "    await asyncio.sleep(0)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_MAX,
    )
    assert done.stderr == ""
