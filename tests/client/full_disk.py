"""The API on a full disk; run in a process of its own, on a small file system.

`test_opening.py` runs it as `python -m tests.client.full_disk <folder>`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path

import pytest

from millrace import errors
from millrace.client.millrace import Millrace
from millrace.settings import Settings
from tests.client.harness import eventually, opened, run

DISK_BYTES = 160 * 1024 * 1024
SETTINGS = Settings(segment_bytes=1024 * 1024, log_segments_max=64, log_segments_free=1, disk_low=0)


def fill(disk: Path) -> None:
    """Write a file until the disk is full."""
    with (disk / "filler").open("ab", buffering=0) as file:
        size = 0
        while free := (status := os.statvfs(disk)).f_bavail * status.f_frsize:
            # Segments are made beside this.
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), size, free)
                size += free


async def publish_until_full(m: Millrace) -> int:
    queue = await m.queue("orders")
    count = 0
    while True:
        try:
            await queue.publish_many([bytes(1000)] * 100)
        except errors.Full:
            return count
        count += 100


async def is_refused(call: Awaitable[object]) -> None:
    with pytest.raises(errors.Full, match="the disk is full") as caught:
        await call
    assert caught.value.field == "disk"


async def main(disk: Path) -> None:
    folder = disk / "data"
    async with opened(folder, settings=SETTINGS) as m:
        queue = await m.queue("orders")
        cursor = await queue.cursor("report")
        await queue.publish_many([b"%d" % n for n in range(100)])
        fill(disk)
        count = 100 + await publish_until_full(m)
        await is_refused(queue.stage("s", [bytes(1000)] * 100))
        t = m.transaction()
        t.settle(await queue.lease(10))
        t.publish_many(queue, [bytes(1000)] * 100)
        await is_refused(t.__aexit__(None, None, None))

        # What is there can be followed, leased and settled.
        snapshot = await cursor.next()
        assert snapshot is not None
        assert snapshot.arrow().read_all().num_rows == count
        await snapshot.commit()
        assert await queue.settle(await queue.lease(200)) == {}
        async with m.transaction() as t:
            t.settle(await queue.lease(50))
        stats = await queue.stats()
        assert (stats["published"], stats["settled"]) == (count, 250)

    # It can be closed and opened again, and nothing is lost.
    async with opened(folder, settings=SETTINGS) as m:
        queue = await m.find("orders")
        stats = await queue.stats()
        assert (stats["published"], stats["settled"]) == (count, 250)
        assert await queue.stages() == {}
        assert await queue.settle(await queue.lease(10)) == {}

        async def has_room() -> bool:
            try:
                await queue.publish(b"after")
            except errors.Full:
                return False
            return True

        # What is settled makes room, again and again, though nobody gives the disk any.
        for _ in range(3):
            count += await publish_until_full(m)
            while leases := await queue.lease(100):
                assert await queue.settle(leases) == {}
            await eventually(has_room)
            count += 1
        assert (await queue.stats())["published"] == count

        (disk / "filler").unlink()
        await eventually(has_room)
        await queue.purge()
        assert (await queue.stats())["published"] == count + 1


if __name__ == "__main__":
    run(main(Path(sys.argv[1])))
