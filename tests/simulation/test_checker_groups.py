"""Orders: what the checkers find, and what they excuse."""

from __future__ import annotations

from tests.support.checkers.groups import check_groups
from tests.support.checkers.history import (
    Call,
    Extend,
    History,
    Lease,
    Publish,
    Purge,
    Release,
    Seen,
    Sent,
    Settle,
    Shard,
    Turn,
)
from tests.support.checkers.leases import check_leases

SHARD = 1


class Told(History):
    """A history of one queue, told call by call; every lease lasts 100 ms."""

    def __init__(
        self,
        order: str,
        *,
        group_in_flight: int = 0,
        max_failures: int = 0,
        max_in_flight: int = 0,
    ) -> None:
        super().__init__()
        self.shards[SHARD] = Shard(
            order=order,
            group_in_flight=group_in_flight,
            max_failures=max_failures,
            max_in_flight=max_in_flight,
        )

    def ok(self, call: Call) -> None:
        self.done(self.begin(call))

    def publish(self, seq: int, key: bytes | None = b"a", group: bytes | None = None) -> Seen:
        tag = f"m{seq}"
        if group is not None:
            self.turns[tag] = Turn(group=group)
        self.ok(Publish(shard=SHARD, rows=(Sent(tag, key, b""),), first=seq, actor="p"))
        return Seen(seq, tag, key, b"", 0, 1)

    def lease(self, version: int, now: int, *rows: Seen) -> None:
        self.ok(Lease(shard=SHARD, lease_ms=100, version=version, deadline_ms=now + 100, rows=rows))

    def settle(self, version: int, seq: int) -> None:
        self.ok(Settle(shard=SHARD, seq=seq, version=version))

    def release(
        self, version: int, seq: int, now: int, delay_ms: int = 0, failures: int = 0
    ) -> None:
        self.ok(
            Release(
                shard=SHARD,
                seq=seq,
                version=version,
                delay_ms=delay_ms,
                since_ms=now,
                failed=failures > 0,
                failures=failures,
            )
        )

    def found(self) -> list[str]:
        return [violation[:2] for violation in check_groups(self) + check_leases(self)]


def again(row: Seen, deliveries: int = 2) -> Seen:
    return row._replace(deliveries=deliveries)


def test_a_group_that_is_held_is_given_to_nobody_else() -> None:
    told = Told("group")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one)
    told.lease(2, 99, two)
    assert told.found() == ["G1"]
    told = Told("group")
    one, other = told.publish(1), told.publish(2, b"b")
    told.lease(1, 0, one)
    told.lease(2, 0, other)
    assert told.found() == []


def test_the_group_that_is_named_counts() -> None:
    told = Told("group")
    one, two, other = told.publish(1), told.publish(2, b"b", b"a"), told.publish(3, b"a", b"c")
    told.lease(1, 0, one, other)
    told.lease(2, 0, two)
    assert told.found() == ["G1"]


def test_a_strict_queue_is_one_group() -> None:
    told = Told("strict")
    one, two, other = told.publish(1), told.publish(2), told.publish(3, b"b")
    told.lease(1, 0, one, two)
    told.settle(1, 1)
    told.lease(2, 0, other)
    assert told.found() == ["G1"]
    told = Told("strict")
    one, two, other = told.publish(1), told.publish(2), told.publish(3, b"b")
    told.lease(1, 0, one, two)
    told.settle(1, 1)
    told.settle(1, 2)
    told.lease(2, 0, other)
    assert told.found() == []


def test_a_group_is_free_when_its_lease_has_run_out() -> None:
    told = Told("group")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one)
    told.lease(2, 100, again(one), two)
    assert told.found() == []


def test_an_extended_lease_holds_its_group() -> None:
    told = Told("group")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one)
    told.ok(Extend(shard=SHARD, seq=1, version=1, deadline_ms=300))
    told.lease(2, 200, two)
    assert told.found() == ["G1"]


def test_what_waits_for_its_next_attempt_holds_its_group() -> None:
    told = Told("group")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one)
    told.release(1, 1, 10, delay_ms=50)
    told.lease(2, 59, two)
    assert told.found() == ["G1"]
    told = Told("group", max_failures=1)
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one)
    # That was once too often: it is a dead letter.
    told.release(1, 1, 10, delay_ms=50, failures=1)
    told.lease(2, 59, two)
    assert told.found() == []


def test_a_late_release_of_a_dead_letter_holds_no_group() -> None:
    """A lease that runs out is a failure: the last one makes a dead letter, and a release of it is
    answered as if it had been in time."""
    for max_failures, is_blamed in ((1, False), (2, True)):
        told = Told("group", max_failures=max_failures)
        first, second = told.publish(1), told.publish(2)
        told.lease(1, 1_000, first)
        told.release(1, 1, 1_200, delay_ms=1_000)
        told.lease(2, 1_300, second)
        found = [line for line in check_groups(told) if line.startswith("G1")]
        assert bool(found) == is_blamed, found


def test_nobody_is_blamed_for_what_may_have_happened() -> None:
    told = Told("group")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one)
    told.unknown(told.begin(Settle(shard=SHARD, seq=1, version=1)), TimeoutError())
    told.lease(2, 0, two)
    assert told.found() == []
    told = Told("group")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one)
    told.ok(Purge(shard=SHARD, upto=1))
    told.lease(2, 0, two)
    assert told.found() == []


def test_what_was_given_back_comes_before_the_younger() -> None:
    told = Told("group")
    one, two = told.publish(1), told.publish(2)
    told.lease(1, 0, one)
    told.release(1, 1, 0)
    told.lease(2, 0, two)
    told.settle(2, 2)
    told.lease(3, 0, again(one))
    assert told.found() == ["G2"]


def test_first_deliveries_of_a_group_are_in_order() -> None:
    for order in ("group", "fair"):
        told = Told(order)
        one, two, other = told.publish(1), told.publish(2), told.publish(3, b"b")
        told.lease(1, 0, other, two)
        told.settle(1, 2)
        told.lease(2, 0, one)
        assert told.found() == ["I3"]


def test_a_fair_queue_gives_no_more_of_a_group_than_it_may() -> None:
    told = Told("fair", group_in_flight=2)
    rows = [told.publish(seq) for seq in (1, 2, 3)]
    told.lease(1, 0, rows[0])
    told.lease(2, 0, rows[1])
    told.settle(1, 1)
    told.lease(3, 0, rows[2])
    assert told.found() == []
    told = Told("fair", group_in_flight=2)
    rows = [told.publish(seq) for seq in (1, 2, 3)]
    told.lease(1, 0, rows[0])
    told.lease(2, 0, rows[1])
    told.lease(3, 0, rows[2])
    told.settle(1, 1)
    told.release(2, 2, 0)
    told.lease(4, 200, again(rows[1]))
    assert told.found() == ["G3"]


def test_a_call_gets_no_more_of_a_group_than_it_may() -> None:
    told = Told("group", group_in_flight=2)
    rows = [told.publish(seq) for seq in (1, 2, 3)]
    told.lease(1, 0, *rows)
    assert told.found() == ["G3"]


def test_workers_have_no_more_than_the_queue_allows() -> None:
    history = Told("none", max_in_flight=2)
    one, two, three = (history.publish(seq) for seq in (1, 2, 3))
    history.lease(1, 0, one, two)
    history.settle(1, 1)
    history.lease(2, 10, three)
    assert check_groups(history) == []
    history.lease(3, 20, history.publish(4))
    assert check_groups(history) == [
        "G4: [2, 3, 4] of 1 were with workers when lease 3 was given",
    ]


def test_what_is_ready_again_is_with_no_worker() -> None:
    history = Told("none", max_in_flight=1)
    one, two = (history.publish(seq) for seq in (1, 2))
    history.lease(1, 0, one)
    history.lease(2, 100, two)
    history.release(2, 2, 110)
    history.lease(3, 120, history.publish(3))
    assert check_groups(history) == []
