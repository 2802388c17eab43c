"""The short form of `make crash-pipeline`."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.crash.loop import Scene


def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    Scene(tmp_path, 6, spark=False).run(6)
