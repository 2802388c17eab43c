"""Modes of files and folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.errors import Exists
from millrace.wal.disk import RealDisk, make_private


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_sec_16_what_a_disk_makes_is_its_owners_alone(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.make_folder("a/b/c")
    disk.make_folder("a/b/c")
    disk.create("a/b/c/d").close()
    disk.open("a/b/e", create_bytes=10).close()
    assert [mode_of(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert [mode_of(tmp_path / name) for name in ("a/b/c/d", "a/b/e")] == [0o600] * 2
    with pytest.raises(Exists):
        disk.make_folder("a/b/e")


def test_sec_16_what_is_there_is_closed_and_nothing_else_is_touched(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for name in ("log/1.seg", "sealed/deep/2", "index/data.mdb", "other/3"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
        file.chmod(0o644)
    outside.write_bytes(b"x")
    outside.chmod(0o644)
    (folder / "log" / "link").symlink_to(outside)
    (folder / "index" / "ours").write_bytes(b"x")
    (folder / "index" / "ours").chmod(0o400)
    names = {"log", "sealed", "index", "missing"}
    # The folder, three in it and one below, and three files.
    assert make_private(folder, names) == 8
    assert make_private(folder, names) == 0
    for name in ("", "log", "sealed", "sealed/deep", "index"):
        assert mode_of(folder / name) == 0o700
    for name in ("log/1.seg", "sealed/deep/2", "index/data.mdb"):
        assert mode_of(folder / name) == 0o600
    assert mode_of(folder / "index" / "ours") == 0o400
    assert (mode_of(folder / "other"), mode_of(folder / "other" / "3")) == (0o755, 0o644)
    assert mode_of(outside) == 0o644
    assert make_private(tmp_path / "nothing", names) == 0
