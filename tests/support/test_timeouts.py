"""One factor scales the timeouts of pytest and of the waits within tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.timeouts import TIMEOUT_SCALE, scaled


def _timeout_of(request: pytest.FixtureRequest) -> float:
    marker = request.node.get_closest_marker("timeout")
    usual = request.config.getoption("timeout") or request.config.getini("timeout")
    return float(usual if marker is None else marker.args[0])


def test_the_usual_timeout(request: pytest.FixtureRequest) -> None:
    usual = float(request.config.getoption("timeout") or request.config.getini("timeout"))
    assert usual > 0
    assert _timeout_of(request) == scaled(usual)


@pytest.mark.timeout(50)
def test_the_timeout_of_a_marker(request: pytest.FixtureRequest) -> None:
    assert _timeout_of(request) == scaled(50)
    assert scaled(10) == 10 * TIMEOUT_SCALE


@pytest.mark.process
def test_a_scale_multiplies_every_timeout() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", __file__, "-k", "timeout and not every"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "TIMEOUT_SCALE": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
