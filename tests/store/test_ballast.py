"""The ballast is there, goes, and comes back. On a full disk: `full_disk.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.store.lmdb_cells import NAME, Ballast

MEBIBYTE = 1024 * 1024


def make(folder: Path, *, spare_bytes: int = 0) -> Ballast:
    return Ballast(folder, size_bytes=MEBIBYTE, spare_bytes=spare_bytes)


def test_it_takes_real_space(tmp_path: Path) -> None:
    ballast = make(tmp_path)
    status = (tmp_path / NAME).stat()
    assert status.st_size == MEBIBYTE
    assert status.st_blocks * 512 >= MEBIBYTE
    assert not ballast.is_short


def test_it_goes_and_comes_back(tmp_path: Path) -> None:
    ballast = make(tmp_path)
    ballast.release()
    assert not (tmp_path / NAME).exists()
    assert ballast.is_short
    ballast.release()
    ballast.maintain()
    assert (tmp_path / NAME).stat().st_size == MEBIBYTE
    assert not is_short(ballast)


@pytest.mark.parametrize("size", [0, 1000, 2 * MEBIBYTE])
def test_one_of_another_size_is_made_anew(tmp_path: Path, size: int) -> None:
    (tmp_path / NAME).write_bytes(bytes(size))
    make(tmp_path)
    assert (tmp_path / NAME).stat().st_size == MEBIBYTE


def test_it_is_kept_by_the_next_one(tmp_path: Path) -> None:
    make(tmp_path)
    number = (tmp_path / NAME).stat().st_ino
    make(tmp_path)
    assert (tmp_path / NAME).stat().st_ino == number


def test_little_space_is_told_before_it_is_gone(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    disk_bytes = status.f_blocks * status.f_frsize
    assert make(tmp_path, spare_bytes=disk_bytes).is_short
    assert not (tmp_path / NAME).exists(), "there is no room for it beside what must stay free"
    make(tmp_path)
    ballast = make(tmp_path, spare_bytes=disk_bytes)
    assert ballast.is_short
    assert (tmp_path / NAME).exists()


def is_short(ballast: Ballast) -> bool:
    return ballast.is_short
