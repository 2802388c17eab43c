"""Rates that are kept on average."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.auth.token_bucket import TokenBucket

ASKS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 30)), max_size=40)


@given(st.floats(0.1, 100), st.integers(1, 50), ASKS)
def test_never_more_than_the_rate_allows(
    rate: float, burst: int, asks: list[tuple[int, int]]
) -> None:
    """Of any stretch: no more than the burst, what the rate gives, and the largest ask."""
    bucket = TokenBucket(rate, burst, 0)
    now, taken = 0, 0
    for pause, count in asks:
        now += pause
        if bucket.take(count, now) == 0:
            taken += count
            assert taken <= burst + rate * now / 1000 + max(count - burst, 0) + 1e-6


@given(st.floats(0.1, 100), st.integers(1, 50), ASKS)
def test_whoever_waits_as_told_is_served(
    rate: float, burst: int, asks: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(rate, burst, 0)
    now = 0
    for pause, count in asks:
        now += pause
        after = bucket.take(count, now)
        if after:
            now += after
            assert bucket.take(count, now) == 0


def test_what_is_larger_than_the_bucket_is_paid_for_afterwards() -> None:
    bucket = TokenBucket(10, 10, 0)
    assert bucket.take(100, 0) == 0
    assert bucket.take(1, 0) == pytest.approx(9_100, abs=1)
    assert not bucket.is_full(9_999)
    assert bucket.is_full(10_000)


def test_what_is_known_afterwards_is_owed() -> None:
    bucket = TokenBucket(10, 10, 0)
    bucket.owe(15)
    assert bucket.take(1, 0) == 600


def test_a_clock_that_is_set_back_stops_nobody() -> None:
    bucket = TokenBucket(1, 1, 1_000_000)
    assert bucket.take(1, 1_000_000) == 0
    assert bucket.take(1, 0) == 1_000
    assert bucket.take(1, 1_000) == 0
