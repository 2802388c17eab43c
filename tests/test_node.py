"""A node from its opening to its end: what it changes, what it refuses, what it lets go."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, Ports, real_ports
from millrace.settings import Settings
from millrace.store.cells import Cells, Writes
from tests.client.harness import SMALL, opened, run

OWN = {"lock", "index/lock.mdb", "index/ballast"}
"""What an open may change in a folder that it refuses: it says nothing of queues."""


def contents(folder: Path) -> dict[str, bytes]:
    return {
        name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (name := path.relative_to(folder).as_posix()) not in OWN
    }


def torn(folder: Path) -> None:
    """What a killed process leaves: a segment and a sealed file that were being made."""
    (folder / "log" / "00000099.new").write_bytes(bytes(4096))
    (folder / "sealed" / "000000000099.arrow").write_bytes(b"unfinished")


async def fill(folder: Path) -> None:
    async with opened(folder) as m:
        await (await m.queue("orders")).publish_many([b"one", b"two"])


@pytest.mark.parametrize("damage", [torn, lambda folder: (folder / "identity").unlink()])
def test_a_copy_is_refused_before_it_is_changed(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    async def main() -> None:
        original, copy = tmp_path / "original", tmp_path / "copy"
        await fill(original)
        shutil.copytree(original, copy)
        damage(copy)
        before = contents(copy)
        with pytest.raises(errors.Copied):
            await Node.open(real_ports(copy), SMALL)
        assert contents(copy) == before
        async with opened(copy, settings=replace(SMALL, fork=True)) as m:
            queue = await m.queue("orders")
            assert [lease.body for lease in await queue.lease(2)] == [b"one", b"two"]

    run(main())


def test_a_log_that_does_not_decode_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    """Its checksums are right: it was written by something else, and goes on to be its own."""

    async def main() -> None:
        await fill(tmp_path)
        node = await Node.open(real_ports(tmp_path), SMALL)
        node.log.append([b"no entry"])
        # As if the process had been killed: no checkpoint.
        node._checkpointer._writer._error = errors.DiskFailed("ended by the test")
        await node.close()
        torn(tmp_path)
        before = contents(tmp_path)
        with pytest.raises(errors.Corrupt, match="does not decode"):
            await Node.open(real_ports(tmp_path), SMALL)
        assert contents(tmp_path) == before

    run(main())


class FailingCells:
    """Cells whose commits fail from some moment on; everything else is that of the real ones."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.is_failing = False

    def commit(self, writes: Writes) -> None:
        if self.is_failing:
            raise errors.DiskFailed("the test ends the disk")
        self._cells.commit(writes)

    @property
    def short_of_space(self) -> bool:
        return self._cells.short_of_space

    def get(self, table: object, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._cells.get(table, keys)  # type: ignore[arg-type]

    def range(self, *args: object, **kwargs: object) -> list[tuple[bytes, bytes]]:
        return self._cells.range(*args, **kwargs)  # type: ignore[arg-type]

    def maintain(self) -> None:
        self._cells.maintain()

    def check(self) -> list[str]:
        return self._cells.check()

    def close(self) -> None:
        self._cells.close()


def descriptors(folder: Path) -> list[str]:
    """The files of the folder that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(f"{folder}/"):
            found.append(target)
    return found


def failing_ports(folder: Path, made: list[FailingCells]) -> Ports:
    ports = real_ports(folder)

    def cells() -> Cells:
        made.append(FailingCells(ports.cells()))
        return made[-1]

    return replace(ports, cells=cells)


def test_a_failed_last_checkpoint_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        made: list[FailingCells] = []
        node = await Node.open(failing_ports(tmp_path, made), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue = await m.queue("orders")
            # The next one is due in a while, so that the last one is the one that fails.
            await node.checkpointer.checkpoint()
            await queue.publish(b"kept")
            made[0].is_failing = True
            with pytest.raises(errors.DiskFailed, match="the test ends the disk"):
                await node.close()
        assert descriptors(tmp_path) == []
        with pytest.raises(errors.Closed):
            node.log.append([b"late"])
        async with opened(tmp_path) as m:
            [lease] = await (await m.queue("orders")).lease(1)
            assert lease.body == b"kept"

    run(main())


# --- Y1: the switch interval ---------------------------------------------------------------------


def test_the_switch_interval_is_short_while_any_engine_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        before = sys.getswitchinterval()
        wanted = SMALL.switch_interval_seconds
        assert wanted is not None
        assert wanted < before
        first = await Node.open(real_ports(tmp_path / "first"), SMALL)
        second = await Node.open(real_ports(tmp_path / "second"), SMALL)
        assert sys.getswitchinterval() == pytest.approx(wanted)
        await first.close()
        assert sys.getswitchinterval() == pytest.approx(wanted)
        await second.close()
        assert sys.getswitchinterval() == before

    run(main())


def test_the_switch_interval_can_be_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        before = sys.getswitchinterval()
        settings = Settings(segment_bytes=SMALL.segment_bytes, switch_interval_seconds=None)
        node = await Node.open(real_ports(tmp_path), settings)
        assert sys.getswitchinterval() == before
        await node.close()
        assert sys.getswitchinterval() == before

    run(main())


def open_to_others(folder: Path) -> list[str]:
    """What others could read below a folder, and the folder itself."""
    return [
        str(path.relative_to(folder))
        for path in (folder, *folder.rglob("*"))
        if path.stat().st_mode & 0o077
    ]


def test_sec_16_a_folder_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    async def main() -> None:
        data, vault, again = tmp_path / "data", tmp_path / "vault", tmp_path / "again"
        async with opened(data) as m:
            queue = await m.queue("orders")
            await queue.publish_many([bytes(1000)] * 500)
            await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
            await m.backup(vault, follow=True)
            await queue.publish(b"x")
            assert open_to_others(data) == []
        assert open_to_others(vault) == []
        await millrace.restore(vault, again)
        assert open_to_others(again) == []
        # As earlier versions have left them.
        for path in (data, *data.rglob("*"), vault, *vault.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        async with opened(data) as m:
            assert open_to_others(data) == []
            await m.backup(vault)
        assert open_to_others(vault) == []

    before = os.umask(0)
    try:
        run(main())
    finally:
        os.umask(before)
