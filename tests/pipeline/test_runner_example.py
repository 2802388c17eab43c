"""The example runs, and says what it is there to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
def test_a_queue_becomes_a_lake(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "pipeline" / "run.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(280),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the lake has [{'id': '2', 'customer': 'bob', 'amount': 15.0}]",
        "lake is right by rows",
        "history is right by count",
    ]
