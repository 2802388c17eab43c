"""Random lives of a log: replay gives all acknowledged records, and nothing else but the one in
flight."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wal.harness import VERBS, Life

SEEDS = 600


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(sorted(set(VERBS))), min_size=15, max_size=60),
)
def test_replay_gives_exactly_what_was_acknowledged(seed: int, verbs: list[str]) -> None:
    life = Life(seed)
    for verb in verbs:
        life.step(verb)
    life.step("crash")


def test_long_lives() -> None:
    """As above, with the steps that a busy log takes most; a failing seed replays alone."""
    acknowledged = 0
    for seed in range(SEEDS):
        life, chance = Life(seed), random.Random(seed)
        for _ in range(60):
            life.step(chance.choice(VERBS))
        acknowledged += len(life.known)
    assert acknowledged > 10 * SEEDS, "the log was hardly ever full"
