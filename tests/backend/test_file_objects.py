"""An object store in a folder, with processes that are killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.backend.file_objects import FileObjects
from millrace.backend.objects import BackendUnavailable
from tests.support.timeouts import scaled

WRITER = """
import asyncio, sys
from pathlib import Path
from millrace.backend.file_objects import FileObjects

async def main():
    objects, number = FileObjects(Path(sys.argv[1])), 0
    version = await objects.create("k", b"0") or (await objects.read("k"))[1]
    while True:
        number += 1
        await objects.create(f"n/{number}", b"x" * 5000)
        version = await objects.replace("k", b"%d" % number * 1000, version)
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.process
def test_a_killed_writer_leaves_whole_objects_and_no_lock(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    try:
        told = [writer.stdout.readline() for _ in range(20)]
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait(scaled(30))
        writer.stdout.close()
    done = int(told[-1])

    async def main() -> None:
        objects = FileObjects(tmp_path)
        names = [entry.name for entry in await objects.entries("n/")]
        assert {f"n/{number}" for number in range(1, done + 1)} <= {*names}
        for name in names:
            found = await objects.read(name)
            assert found is not None
            assert found[0] == b"x" * 5000
        value = await objects.read("k")
        assert value is not None
        assert len(value[0]) % 1000 == 0
        # The lock of the killed process is free.
        assert await asyncio.wait_for(objects.replace("k", b"mine", value[1]), scaled(10))

    asyncio.run(main())


def test_a_folder_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")

    async def main() -> None:
        objects = FileObjects(file)
        with pytest.raises(BackendUnavailable, match="file"):
            await objects.create("a", b"x")

    asyncio.run(main())
