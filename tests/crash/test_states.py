"""Every state that a loss of power may leave is opened, with all that was acknowledged by then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.loop import ROOT
from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

MEMORY = Path("/dev/shm")
"""The model decides what is lost, not the disk: a folder in memory does as well, and faster."""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_states_that_a_loss_of_power_may_leave(tmp_path: Path) -> None:
    folder = MEMORY if MEMORY.is_dir() else tmp_path
    command = [sys.executable, "-m", "tests.crash.states", "--states", "24"]
    done = subprocess.run(
        [*command, "--folder", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(280),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "skipped:" in done.stdout:
        pytest.skip(done.stdout)
    assert "24 states from" in done.stdout
