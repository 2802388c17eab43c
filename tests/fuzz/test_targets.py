"""Every fuzz target for a few seconds, and the runner on targets that fail."""

from __future__ import annotations

import pytest

from tests.fuzz.broken import LATE
from tests.fuzz.mutate import SEED
from tests.fuzz.run import find_targets, run_target

pytestmark = pytest.mark.process

SECONDS = 2.0


@pytest.mark.parametrize("name", sorted(find_targets()))
def test_a_target_finds_nothing(name: str) -> None:
    outcome = run_target(name, SEED, SECONDS)
    assert not outcome.failure, f"{outcome.failure}\nagain: {outcome.repeat}"
    assert outcome.cases > 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "AssertionError"),
        ("crashes", "SIGSEGV"),
        ("bursts", "MiB"),
        ("leaks", "memory grew"),
    ],
)
def test_a_failure_is_reported_with_its_case(name: str, reason: str) -> None:
    outcome = run_target(name, "same", SECONDS, "tests.fuzz.broken")
    assert reason in outcome.failure
    if name in ("raises", "crashes"):
        assert outcome.cases == LATE


def test_a_target_that_is_right_is_not_reported() -> None:
    outcome = run_target("good", "same", 0.2, "tests.fuzz.broken")
    assert not outcome.failure
    assert outcome.cases > 0
