"""Every store through `check_store`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.store.lmdb_cells import LmdbCells
from millrace.wal.disk import RealDisk
from millrace.wal.segment import LogShape
from tests.support.contracts.check_store import CHECKS
from tests.support.contracts.store_subject import (
    DiskSubject,
    MemorySubject,
    Subject,
    simulated,
)
from tests.support.contracts.story import Make

Check = Callable[[Make], None]


@pytest.fixture(params=CHECKS, ids=[check.__name__ for check in CHECKS])
def check(request: pytest.FixtureRequest) -> Check:
    found: Check = request.param
    return found


def test_memory(check: Check) -> None:
    check(MemorySubject)


@pytest.mark.slow
def test_d7_disk_simulated(check: Check) -> None:
    check(simulated)


@pytest.mark.slow
def test_disk(check: Check, tmp_path: Path) -> None:
    shape = LogShape(segment_bytes=512 * 1024, segments_max=64, segments_free=1, segments_reserve=0)

    def make() -> Subject:
        return DiskSubject(
            RealDisk(tmp_path),
            lambda: LmdbCells(tmp_path / "index", map_bytes=1 << 30, ballast_bytes=4096),
            shape=shape,
        )

    check(make)
