"""A server that is offered three times what it can do says so, loses nothing, and recovers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.load.overload import run

pytestmark = pytest.mark.process


def test_three_times_overload(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        frontends=2,
        seconds=2.5,
        measure_seconds=1.0,
        clients=1,
        connections=150,
        connections_max=100,
        rows=200,
    )
    assert outcome.faults() == [], outcome.report()
    assert sum(len(told.acknowledged) for told in outcome.told) > 0, outcome.report()
    refused = sum(told.statuses.get(503, 0) + told.lost for told in outcome.told)
    assert refused > 0, outcome.report()
