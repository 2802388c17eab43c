"""Files that hold a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millrace import limits
from millrace.errors import Invalid
from millrace.server.auth.secret_file import (
    key_secret,
    new_key_id,
    read_secret,
    secret_of,
    write_secret,
)


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "access.key"
    before = os.umask(0)
    try:
        made = key_secret(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(made) == 32
    assert key_secret(path) == made
    assert key_secret(tmp_path / "other.key") != made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["access.key", "other.key"]


def test_what_a_crash_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "x.new").write_text("half")
    write_secret(tmp_path / "x", "whole")
    assert read_secret(tmp_path / "x", "file") == "whole"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "access.key"
    write_secret(path, "aa" * 32)
    path.chmod(mode)
    with pytest.raises(Invalid, match="chmod 600"):
        read_secret(path, "key_file")


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"zz", b"aa" * 31, b"\xff" * 64, b"a" * (limits.SECRET_FILE_BYTES_MAX + 1)]
)
def test_what_is_no_secret_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "access.key"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(Invalid) as caught:
        key_secret(path)
    assert caught.value.field == "key_file"
    assert path.read_bytes() == data


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        key_secret(tmp_path)


def test_secrets_of_keys_have_nothing_in_common() -> None:
    one, other = new_key_id(bytes(10)), new_key_id(b"\1" * 10)
    assert len(one) == len(other) == 20
    assert one.isalnum()
    assert secret_of(one, bytes(32)) == secret_of(one, bytes(32))
    made = {secret_of(key, secret) for key in (one, other, "\udc80") for secret in (b"a", b"b")}
    assert len(made) == 6
    assert {len(secret) for secret in made} == {40}
