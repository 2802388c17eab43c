"""Every lake through `check_sink`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.testing.check_sink import CHECKS, Rig
from tests.sinks.lakes.rig import LAKES, NAMES, LakeRig, make_lake


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
@pytest.mark.parametrize(("kind", "mode"), LAKES, ids=NAMES)
def test_lake(check: Callable[[Rig], None], kind: str, mode: str, tmp_path: Path) -> None:
    rig = LakeRig(make_lake(kind, mode, tmp_path / "table"))
    check(rig)
    rig.close()
