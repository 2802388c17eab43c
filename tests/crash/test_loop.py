"""The engine is killed thirty times; nothing is lost, nothing doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.loop import run, summary
from tests.crash.scene import POOLS

pytestmark = pytest.mark.process

CYCLES = 30

WORK_SECONDS = 0.4
"""Shorter than in the long form, so that all of it takes about a minute."""


def test_q1_nothing_is_lost_and_nothing_doubled(tmp_path: Path) -> None:
    ledger = run(CYCLES, 3, tmp_path, work_seconds=WORK_SECONDS)
    assert not ledger.findings, "\n".join([summary(ledger), *ledger.findings.told])
    assert ledger.counts["killed"] >= CYCLES * 2 // 3, "some may close before they are killed"
    assert ledger.counts["acknowledged"] > 1_000
    assert ledger.counts["settled"] > 100
    assert ledger.counts["transactions"] > 10
    # How much else is done depends on the machine; that it was done does not.
    for what in ("dead letters", "rewound", "expired"):
        assert ledger.counts[what] > 0, what
    for pool in POOLS:
        assert ledger.counts[f"drawn from {pool}"] > 0, pool
    assert ledger.counts["unknown"] > 10, "the kills came too late to matter"
