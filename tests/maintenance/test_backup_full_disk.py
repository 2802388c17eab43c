"""No space for a backup or a restore: nothing incomplete looks complete, and the engine goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.maintenance import full_disk
from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


def test_no_room_for_a_backup_and_for_a_restore(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = f'mount -t tmpfs -o size={full_disk.DISK_BYTES} none "$0" && exec "$@"'
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(small)]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("this system lets nobody mount a small file system")
    program = [
        sys.executable,
        "-m",
        "tests.maintenance.full_disk",
        str(tmp_path / "data"),
        str(small),
    ]
    done = subprocess.run(
        [*apart, *program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(120),
    )
    assert done.returncode == 0, done.stderr
