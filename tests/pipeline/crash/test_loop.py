"""The short form of `make crash-pipeline`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.crash.loop import Scene
from tests.pipeline.crash.victim import Folder

pytestmark = pytest.mark.process


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Folder]:
    found = Folder(tmp_path / "data")
    yield found
    found.close()


def test_killed_drivers_lose_and_double_nothing(tmp_path: Path, home: Folder) -> None:
    kills = ["driver", "driver", "zombie", "driver", "driver"]
    Scene(tmp_path, 6, home, kills=kills).run(5)
