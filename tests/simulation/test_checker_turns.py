"""Priorities, delays, rewinds, and calls that nobody heard of: what is found, and what excused."""

from __future__ import annotations

import pytest

from tests.support.checkers.all import check
from tests.support.checkers.history import (
    Call,
    History,
    Lease,
    Publish,
    Rewind,
    Seen,
    Sent,
    Settle,
    Shard,
    Turn,
)

SHARD = 1


class Told(History):
    """A history of one queue, told call by call."""

    def __init__(self, *, retention: str = "work", delay_ms: int = 0) -> None:
        super().__init__()
        self.shards[SHARD] = Shard(retention=retention, delay_ms=delay_ms, live={})

    def ok(self, call: Call) -> None:
        self.done(self.begin(call))

    def publish(self, seq: int, turn: Turn | None = None, time_ms: int = 0) -> Seen:
        tag = f"m{seq}"
        if turn is not None:
            self.turns[tag] = turn
        self.ok(Publish(shard=SHARD, rows=(Sent(tag, None, b""),), first=seq, actor="p"))
        row = Seen(seq, tag, None, b"", time_ms, 1)
        live = self.shards[SHARD].live
        assert live is not None
        live[seq] = row
        return row

    def lease(self, version: int, now: int, *rows: Seen, count: int = 9) -> None:
        self.ok(
            Lease(
                shard=SHARD,
                lease_ms=100,
                count=count,
                version=version,
                deadline_ms=now + 100,
                rows=rows,
            )
        )

    def lease_unheard(self) -> None:
        self.unknown(self.begin(Lease(shard=SHARD, lease_ms=100)), TimeoutError())

    def found(self) -> list[str]:
        return [violation[:2] for violation in check(self)]


def test_nothing_comes_before_its_delay_is_over() -> None:
    told = Told()
    row = told.publish(1, Turn(delay_ms=50), time_ms=10)
    told.lease(1, 59, row)
    assert told.found() == ["T1"]
    told = Told()
    row = told.publish(1, Turn(delay_ms=50), time_ms=10)
    told.lease(1, 60, row)
    assert told.found() == []


def test_a_queue_delays_what_names_no_delay() -> None:
    told = Told(delay_ms=50)
    told.lease(1, 49, told.publish(1))
    assert told.found() == ["T1"]
    told = Told(delay_ms=50)
    told.lease(1, 0, told.publish(1, Turn(delay_ms=0)))
    assert told.found() == []


def test_a_second_delivery_is_not_early_either() -> None:
    told = Told()
    row = told.publish(1, Turn(delay_ms=50))
    told.lease(1, 10, row._replace(deliveries=2))
    assert told.found() == ["T1"]


def test_a_higher_priority_is_not_left_behind() -> None:
    told = Told()
    low, high = told.publish(1), told.publish(2, Turn(9))
    told.lease(1, 0, low)
    told.lease(2, 0, high)
    assert told.found() == ["T2"]
    told = Told()
    low, high = told.publish(1), told.publish(2, Turn(9))
    told.lease(1, 0, high)
    told.lease(2, 0, low)
    assert told.found() == []


def test_whoever_waited_for_its_time_comes_first() -> None:
    told = Told()
    late, usual = told.publish(1, Turn(delay_ms=50)), told.publish(2)
    told.lease(1, 50, usual)
    told.lease(2, 60, late)
    assert told.found() == ["T2"]
    told = Told()
    late, usual = told.publish(1, Turn(delay_ms=50)), told.publish(2)
    told.lease(1, 49, usual)
    told.lease(2, 60, late)
    assert told.found() == []


def test_a_call_may_not_know_what_was_published_meanwhile() -> None:
    told = Told()
    low = told.publish(1)
    lease = Lease(shard=SHARD, lease_ms=100, version=1, deadline_ms=100, rows=(low,))
    told.begin(lease)
    high = told.publish(2, Turn(9))
    told.done(lease)
    told.lease(2, 0, high)
    assert told.found() == []


def test_what_nobody_heard_of_may_be_away_for_a_while() -> None:
    told = Told()
    low, high = told.publish(1), told.publish(2, Turn(9))
    told.lease_unheard()
    told.lease(2, 0, low)
    told.lease(3, 0, high)
    assert told.found() == []


def test_what_nobody_heard_of_is_back_before_later_commits() -> None:
    told = Told()
    low, high = told.publish(1), told.publish(2, Turn(9))
    told.lease_unheard()
    told.publish(3)
    # Whatever was given back would have been in this one.
    told.lease(2, 0)
    told.lease(3, 0, low)
    told.lease(4, 0, high)
    assert told.found() == ["T2"]


def test_first_deliveries_of_one_priority_are_in_order() -> None:
    told = Told()
    one, two = told.publish(1, Turn(9)), told.publish(2, Turn(9))
    told.lease(1, 0, two)
    told.lease(2, 0, one)
    assert told.found() == ["I3"]
    told = Told()
    one, two = told.publish(1, Turn(9, 10)), told.publish(2, Turn(9))
    told.lease(1, 0, two)
    told.lease(2, 10, one)
    assert told.found() == []


def test_order_is_excused_only_while_someone_unheard_may_hold_it() -> None:
    told = Told()
    one, two = told.publish(1), told.publish(2)
    told.lease_unheard()
    told.lease(2, 0, two)
    told.lease(3, 0, one)
    assert told.found() == []
    told = Told()
    one, two = told.publish(1), told.publish(2)
    told.lease_unheard()
    told.publish(3)
    told.lease(2, 0, two)
    told.lease(3, 0, one)
    assert told.found() == ["I3"]


@pytest.mark.parametrize(("at", "expected"), [(0, {"I3", "I4", "I5"}), (1, {"I5"}), (2, set())])
def test_a_rewind_excuses_only_what_it_comes_between(at: int, expected: set[str]) -> None:
    told = Told(retention="log")
    row = told.publish(1)
    given = [
        Lease(shard=SHARD, lease_ms=100, version=version, deadline_ms=1000 * version, rows=(row,))
        for version in (1, 2)
    ]
    calls: list[Call] = [given[0], Settle(shard=SHARD, seq=1, version=1), given[1]]
    calls.insert(at, Rewind(shard=SHARD, first=1))
    for call in calls:
        told.ok(call)
    assert set(told.found()) == expected


def test_a_log_is_handed_out_in_order_again_after_a_rewind() -> None:
    told = Told(retention="log")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one, two)
    told.ok(Rewind(shard=SHARD, first=1))
    told.lease(2, 0, one)
    told.lease(3, 0, two)
    assert told.found() == []
    told = Told(retention="log")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one, two)
    told.ok(Rewind(shard=SHARD, first=1))
    told.lease(2, 0, two)
    told.lease(3, 0, one)
    assert told.found() == ["I3"]
