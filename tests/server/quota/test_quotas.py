"""What each principal may have."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.errors import Exhausted
from millrace.server.auth.access import Principal, Quota
from millrace.server.quota.quotas import Kind, Quotas, Reservation

KINDS: tuple[Kind, ...] = ("in_flight", "pins")


def ada(**quota: float) -> Principal:
    return Principal("ada", (), quota=Quota(**quota))  # type: ignore[arg-type]


def test_without_a_bound_nothing_is_counted() -> None:
    quotas = Quotas()
    for _ in range(1000):
        quotas.take(ada(), 0, size=10**9)
    quotas.owe(ada(), 0, 10**9)
    reservation = quotas.reserve(ada(), "in_flight", 10**6, 0)
    assert reservation.count == 10**6
    reservation.keep("lease", 10**6, 5)
    reservation.cancel()
    assert not quotas._rates
    assert not quotas._held


def test_requests_beyond_the_rate_are_told_when_to_come_again() -> None:
    quotas = Quotas()
    for _ in range(20):
        quotas.take(ada(requests=10), 0)
    with pytest.raises(Exhausted) as caught:
        quotas.take(ada(requests=10), 0)
    error = caught.value
    assert (error.field, error.limit, error.after_ms) == ("requests", 10, 100)
    quotas.take(Principal("bob", (), quota=Quota(requests=10)), 0)
    with pytest.raises(Exhausted):
        quotas.take(ada(requests=10), 99)
    quotas.take(ada(requests=10), 100)


def test_calls_of_one_request_count_one_by_one() -> None:
    quotas, who = Quotas(), ada(requests=2)
    quotas.take(who, 0)
    quotas.owe_requests(who, 0, 9)
    with pytest.raises(Exhausted) as caught:
        quotas.take(who, 0)
    assert caught.value.field == "requests"
    assert caught.value.after_ms == 3500, "ten of them, four at once and two a second"
    quotas.take(who, 3500)
    quotas.owe_requests(ada(), 0, 9)
    quotas.take(ada(), 0)


def test_bytes_are_counted_before_and_after() -> None:
    quotas = Quotas()
    quotas.take(ada(bytes=1000), 0, size=2000)
    with pytest.raises(Exhausted) as caught:
        quotas.take(ada(bytes=1000), 0, size=500)
    assert (caught.value.field, caught.value.after_ms) == ("bytes", 500)
    quotas.owe(ada(bytes=1000), 0, 3000)
    with pytest.raises(Exhausted) as caught:
        quotas.take(ada(bytes=1000), 0, size=1)
    assert caught.value.after_ms == 3001


def test_a_request_whose_bytes_are_refused_is_not_counted() -> None:
    quotas = Quotas()
    principal = ada(requests=1, bytes=10)
    quotas.take(principal, 0, size=20)
    for _ in range(5):
        with pytest.raises(Exhausted) as caught:
            quotas.take(principal, 0, size=20)
        assert caught.value.field == "bytes"
    quotas.take(principal, 2000, size=20)


def test_a_slow_rate_lets_the_first_one_through() -> None:
    quotas = Quotas()
    quotas.take(ada(requests=0.1), 0)
    with pytest.raises(Exhausted) as caught:
        quotas.take(ada(requests=0.1), 0)
    assert caught.value.after_ms == 10_000


def test_the_default_is_for_what_is_not_said() -> None:
    quotas = Quotas(Quota(requests=5, pins=2))
    assert quotas.of(ada()) == Quota(requests=5, pins=2)
    assert quotas.of(ada(pins=7)) == Quota(requests=5, pins=7)
    quotas.configure(Quota())
    assert quotas.of(ada(pins=7)) == Quota(pins=7)
    assert quotas.of(ada()) == Quota()


def test_another_quota_is_in_force_at_once() -> None:
    quotas = Quotas()
    quotas.take(ada(requests=1), 0)
    quotas.take(ada(requests=1), 0)
    with pytest.raises(Exhausted):
        quotas.take(ada(requests=1), 0)
    quotas.take(ada(requests=100), 0)


def test_the_table_of_principals_is_bounded_and_forgets_the_quietest() -> None:
    quotas = Quotas(Quota(requests=1), principals_max=2)
    names = [Principal(name, ()) for name in "abc"]
    for _ in range(2):
        quotas.take(names[0], 0)
    quotas.take(names[1], 0)
    with pytest.raises(Exhausted):
        quotas.take(names[0], 0)
    quotas.take(names[2], 0)
    assert len(quotas._rates) == 2
    with pytest.raises(Exhausted):
        quotas.take(names[0], 0)


def test_what_is_in_flight_ends_when_it_is_settled_or_its_time_is_over() -> None:
    quotas = Quotas()
    principal = ada(in_flight=10)
    first = quotas.reserve(principal, "in_flight", 7, 0)
    second = quotas.reserve(principal, "in_flight", 7, 0)
    assert (first.count, second.count) == (7, 3)
    with pytest.raises(Exhausted) as caught:
        quotas.reserve(principal, "in_flight", 1, 0)
    assert (caught.value.field, caught.value.limit) == ("in_flight", 10)
    assert quotas.reserve(principal, "pins", 1, 0).count == 1
    first.keep("lease", 5, 1000)
    second.cancel()
    assert quotas.held("ada", "in_flight", 0) == 5
    quotas.let_go("lease", 2)
    assert quotas.held("ada", "in_flight", 0) == 3
    quotas.extend("lease", 2000)
    assert quotas.held("ada", "in_flight", 1999) == 3
    assert quotas.held("ada", "in_flight", 2000) == 0
    quotas.let_go("lease")
    quotas.extend("lease", 5)


def test_messages_end_one_by_one_and_have_successors() -> None:
    quotas = Quotas()
    principal = ada(in_flight=5)
    quotas.reserve(principal, "in_flight", 5, 0).keep_each(["a", "b", "c"], 1000)
    assert quotas.held("ada", "in_flight", 0) == 3
    quotas.reserve(principal, "in_flight", 2, 0).keep_each(["b"], 2000)
    assert quotas.held("ada", "in_flight", 0) == 3, "the same call again"
    quotas.let_go("a")
    quotas.replace("b", "d", 3000)
    quotas.replace("unknown", "e", 3000)
    quotas.let_go("b")
    assert quotas.held("ada", "in_flight", 999) == 2
    assert quotas.held("ada", "in_flight", 1000) == 1
    assert quotas.held("ada", "in_flight", 3000) == 0


def test_a_call_that_came_to_nothing_holds_nothing() -> None:
    quotas = Quotas()
    reservation = quotas.reserve(ada(in_flight=5), "in_flight", 5, 0)
    reservation.keep("lease", 0, 1000)
    assert quotas.held("ada", "in_flight", 0) == 0
    reservation.cancel()


@dataclass(slots=True)
class Kept:
    name: str
    kind: str
    count: int
    until: int


class Holding(RuleBasedStateMachine):
    """Reserving, keeping, extending and letting go, against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas = Quotas(Quota(in_flight=6, pins=2))
        self.now = 0
        self.open: list[tuple[Principal, Kind, Reservation]] = []
        self.kept: dict[str, Kept] = {}
        self.number = 0

    def total(self, name: str, kind: Kind) -> int:
        reserved = sum(
            one.count for who, what, one in self.open if (who.name, what) == (name, kind)
        )
        kept = sum(
            one.count
            for one in self.kept.values()
            if (one.name, one.kind) == (name, kind) and one.until > self.now
        )
        return reserved + kept

    @rule(
        name=st.sampled_from("ab"),
        kind=st.sampled_from(KINDS),
        count=st.integers(1, 5),
    )
    def reserve(self, name: str, kind: Kind, count: int) -> None:
        most = 6 if kind == "in_flight" else 2
        room = most - self.total(name, kind)
        principal = Principal(name, ())
        if room <= 0:
            with pytest.raises(Exhausted):
                self.quotas.reserve(principal, kind, count, self.now)
        else:
            reservation = self.quotas.reserve(principal, kind, count, self.now)
            assert reservation.count == min(count, room)
            self.open.append((principal, kind, reservation))

    @precondition(lambda self: bool(self.open))
    @rule(count=st.integers(0, 5), seconds=st.integers(1, 9))
    def keep(self, count: int, seconds: int) -> None:
        principal, kind, reservation = self.open.pop()
        self.number += 1
        count = min(count, reservation.count)
        reservation.keep(f"id-{self.number}", count, self.now + seconds)
        if count:
            self.kept[f"id-{self.number}"] = Kept(principal.name, kind, count, self.now + seconds)

    @precondition(lambda self: bool(self.open))
    @rule()
    def cancel(self) -> None:
        self.open.pop()[2].cancel()

    @precondition(lambda self: bool(self.kept))
    @rule(at=st.integers(0, 99), count=st.one_of(st.none(), st.integers(1, 5)))
    def let_go(self, at: int, count: int | None) -> None:
        id = list(self.kept)[at % len(self.kept)]
        self.quotas.let_go(id, count)
        left = self.kept[id].count - (count or 99)
        if left > 0:
            self.kept[id].count = left
        else:
            del self.kept[id]

    @precondition(lambda self: bool(self.kept))
    @rule(at=st.integers(0, 99), seconds=st.integers(1, 9))
    def extend(self, at: int, seconds: int) -> None:
        id = list(self.kept)[at % len(self.kept)]
        self.quotas.extend(id, self.now + seconds)
        self.kept[id].until = self.now + seconds

    @rule(seconds=st.integers(1, 9))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        for name in "ab":
            for kind in KINDS:
                self.quotas.held(name, kind, self.now)
        self.kept = {id: one for id, one in self.kept.items() if one.until > self.now}

    @invariant()
    def counts_as_the_list_does(self) -> None:
        for name in "ab":
            for kind in KINDS:
                assert self.quotas.held(name, kind, self.now) == self.total(name, kind)
        assert len(self.quotas._ends) <= 2 * len(self.quotas._held) + 64


TestHolding = Holding.TestCase


@given(st.integers(1, 50))
def test_what_is_held_is_bounded(most: int) -> None:
    quotas = Quotas(Quota(in_flight=10**6), held_max=most)
    for number in range(3 * most):
        quotas.reserve(ada(), "in_flight", 1, 0).keep(number, 1, 10)
        quotas.extend(number, 20)
    assert quotas.held("ada", "in_flight", 0) == most
    assert len(quotas._ends) <= 2 * most + 64
