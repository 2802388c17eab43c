"""The time of birth of a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.wal.disk import birth_ns


def test_birth_stays_when_a_file_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    born = birth_ns(path)
    path.write_bytes(b"2")
    path.chmod(0o640)
    os.link(path, tmp_path / "other")
    assert birth_ns(path) == birth_ns(tmp_path / "other") == born


def test_a_missing_file_has_no_birth(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        birth_ns(tmp_path / "missing")
