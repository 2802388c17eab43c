"""Y1: turns are shortened while an engine is open, and for no longer."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from millrace.event_loop import SwitchIntervalLimit

BEFORE = 0.004


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    old = sys.getswitchinterval()
    sys.setswitchinterval(BEFORE)
    yield
    sys.setswitchinterval(old)


def now() -> float:
    return round(sys.getswitchinterval(), 6)


def test_turns_are_shortened_and_restored() -> None:
    turns = SwitchIntervalLimit(0.0005)
    assert now() == 0.0005
    turns.end()
    assert now() == BEFORE
    turns.end()
    assert now() == BEFORE


def test_turns_are_never_made_longer() -> None:
    turns = SwitchIntervalLimit(0.1)
    assert now() == BEFORE
    turns.end()
    assert now() == BEFORE


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_the_shortest_wish_counts_as_long_as_it_stands(*, first_ends_first: bool) -> None:
    long, short = SwitchIntervalLimit(0.002), SwitchIntervalLimit(0.001)
    assert now() == 0.001
    if first_ends_first:
        long.end()
        assert now() == 0.001
        short.end()
    else:
        short.end()
        assert now() == 0.002
        long.end()
    assert now() == BEFORE


def test_what_others_set_meanwhile_stays() -> None:
    turns = SwitchIntervalLimit(0.001)
    sys.setswitchinterval(0.0002)
    turns.end()
    assert now() == 0.0002
