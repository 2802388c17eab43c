"""A server is killed while clients in other processes go on; nothing is lost, nothing doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.served.loop import Kills, run

pytestmark = pytest.mark.process

WORK_SECONDS = 1.0
"""Shorter than in the long form."""


@pytest.mark.parametrize(
    ("frontends", "kills"),
    [(0, Kills(engine=3)), (2, Kills(engine=1, frontend=2))],
    ids=["engine", "front ends"],
)
def test_nothing_acknowledged_is_lost_or_doubled_when_a_server_is_killed(
    tmp_path: Path, frontends: int, kills: Kills
) -> None:
    hearing = run(kills, 3, tmp_path, frontends=frontends, work_seconds=WORK_SECONDS)
    counts = hearing.counts
    assert not hearing.findings, "\n".join([hearing.summary(), *hearing.findings.told])
    assert counts["engines killed"] >= kills.engine
    assert counts["front ends killed"] == kills.frontend
    # How much is done depends on the machine; that it was done does not.
    for what in ("acknowledged", "settled", "shown", "settled after a kill"):
        assert counts[what] > 0, what
