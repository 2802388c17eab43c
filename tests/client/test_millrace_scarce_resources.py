"""Resources that the system takes away: open files, and the folder itself."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace import errors
from millrace.client.queue import Queue
from tests.client.harness import SMALL, opened, run


@contextmanager
def free_files(count: int) -> Iterator[None]:
    """Limit the number of files that may still be opened."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = (number for number in range(old[0]) if number not in used)
    limit = next(number for at, number in enumerate(free) if at == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


async def publish_for_ever(queue: Queue) -> None:
    while True:
        await queue.publish_many([bytes(1000)] * 100)


@pytest.mark.parametrize("is_new", [True, False])
def test_too_many_open_files_are_named_as_the_reason(tmp_path: Path, *, is_new: bool) -> None:
    async def use(path: Path) -> None:
        async with opened(path) as m:
            await (await m.queue("orders")).publish(b"x")

    async def main() -> None:
        refused: list[errors.Full] = []
        while True:
            path = tmp_path / str(len(refused))
            if not is_new:
                await use(path)
            try:
                with free_files(len(refused)):
                    await use(path)
                break
            except errors.Full as error:
                refused.append(error)
            # Nothing was damaged, nothing is locked.
            await use(path)
        assert 3 < len(refused) < 40
        for each in refused:
            assert each.field == "files"
            assert "Too many open files" in str(each)

    run(main())


def test_a_folder_that_is_removed_is_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        noise: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: noise.append(context))
        async with opened(tmp_path / "data", settings=SMALL) as m:
            queue = await m.queue("orders")
            shutil.rmtree(tmp_path / "data")
            with pytest.raises(errors.DiskFailed, match="folder removed"):
                await publish_for_ever(queue)
        assert noise == []

    run(main())
