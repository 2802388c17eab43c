"""An open folder for tests of pipelines, and Spark for those that have steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import Settings, sync
from tests.spark.conftest import server, spark

__all__ = ["server", "spark"]


@pytest.fixture
def m(tmp_path: Path) -> Iterator[sync.Millrace]:
    with sync.open(tmp_path / "data", settings=Settings(segment_bytes=4 * 1024 * 1024)) as opened:
        yield opened
