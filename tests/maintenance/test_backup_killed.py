"""A kill before every disk operation leaves a complete backup, or one marked as unfinished."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.timeouts import scaled

pytestmark = pytest.mark.process


@pytest.mark.parametrize("what", ["backup", "follow", "end", "index", "time"])
def test_killed_before_every_step(tmp_path: Path, what: str) -> None:
    command = [sys.executable, "-m", "tests.maintenance.killed", what, str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=scaled(280), check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
