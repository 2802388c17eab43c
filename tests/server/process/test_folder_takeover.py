"""Folders that another process has, for a moment or for long."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import limits
from millrace.errors import InUse
from millrace.server.process.folder_takeover import take_folder
from tests.client.harness import run
from tests.server.rest.harness import SMALL

OWNER = """
import sys
from pathlib import Path
from millrace import Settings, sync

with sync.open(sys.argv[1], settings=Settings(segment_bytes=int(sys.argv[2]))) as m:
    print("taken", flush=True)
    if sys.stdin.readline() == "share\\n":
        with sync.share(m):
            sys.stdin.readline()
"""


class Owner:
    """Another process that has a folder, and is told what to do with it."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(folder), str(SMALL.segment_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "taken\n"

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()


@pytest.fixture
def owner(starts_processes: None, tmp_path: Path) -> Iterator[Owner]:
    found = Owner(tmp_path / "data")
    with found.process:
        yield found


@pytest.mark.parametrize("word", ["share", "close"])
def test_who_took_it_just_now_is_waited_for(tmp_path: Path, owner: Owner, word: str) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        owner.tell(word)

    async def main() -> None:
        m = await take_folder(tmp_path / "data", SMALL, say=say)
        await m.queue("orders")
        await m.close()

    run(main())
    [text] = said
    assert f"in use by process {owner.process.pid}; waiting" in text
    owner.process.communicate("end\n")


@pytest.mark.parametrize(("age", "patience"), [(limits.FOLDER_TAKEN_SECONDS + 1, None), (0, 0.0)])
def test_who_has_had_it_for_long_keeps_it(
    tmp_path: Path, owner: Owner, age: float, patience: float | None
) -> None:
    taken = time.time() - age
    os.utime(tmp_path / "data" / "lock", (taken, taken))
    said: list[str] = []

    async def main() -> None:
        async with asyncio.timeout(limits.FOLDER_TAKEN_SECONDS):
            with pytest.raises(InUse):
                await take_folder(tmp_path / "data", SMALL, patience=patience, say=said.append)

    run(main())
    assert not said
    owner.tell("end")


def test_whoever_is_patient_waits_also_for_those(tmp_path: Path, owner: Owner) -> None:
    os.utime(tmp_path / "data" / "lock", (0, 0))

    async def main() -> None:
        path = tmp_path / "data"
        m = await take_folder(path, SMALL, patience=60, say=lambda _: owner.tell("end"))
        await m.close()

    run(main())


def test_nobody_waits_for_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        m = await take_folder(tmp_path / "data", SMALL)
        async with asyncio.timeout(limits.FOLDER_TAKEN_SECONDS):
            with pytest.raises(InUse):
                await take_folder(tmp_path / "data", SMALL, patience=600)
        await m.close()

    run(main())
