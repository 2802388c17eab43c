"""Partitions: what is found, and what excused."""

from __future__ import annotations

from tests.support.checkers.all import check
from tests.support.checkers.history import (
    Call,
    Delete,
    Extend,
    History,
    Lease,
    Publish,
    Release,
    Seen,
    Sent,
    Settle,
    Shard,
)

SHARD = 1
LOW, MIDDLE, HIGH = 2**61, 2**62, 2**63 - 1
"""Ids of the first, the second and the last of three slices."""


class Told(History):
    """A history of one queue with partitions, told call by call."""

    def __init__(self, least: int = 3, most: int = 3) -> None:
        super().__init__()
        self.shards[SHARD] = Shard(partitions=(least, most), live={})
        self.versions = 0

    def ok(self, call: Call) -> None:
        self.done(self.begin(call))

    def publish(self, seq: int, id_: int) -> Seen:
        row = Sent(f"m{seq}", None, b"")
        self.ok(Publish(shard=SHARD, rows=(row,), ids=(id_,), actor="p"))
        return Seen(seq, row.tag, None, b"", 1000, 1, id=id_)

    def lease(self, now: int, *rows: Seen) -> int:
        self.versions += 1
        deadline_ms, version = now + 100, self.versions
        self.ok(
            Lease(shard=SHARD, lease_ms=100, version=version, deadline_ms=deadline_ms, rows=rows)
        )
        return version

    def settle(self, version: int, *rows: Seen) -> None:
        for row in rows:
            self.ok(Settle(shard=SHARD, seq=row.seq, version=version))

    def found(self) -> list[str]:
        shard = self.shards[SHARD]
        return [
            text.partition(":")[0]
            for text in check(self)
            if text.startswith("P") and shard.live is not None
        ]


def again(row: Seen) -> Seen:
    return row._replace(deliveries=row.deliveries + 1)


def test_d3_a_locked_partition_is_not_served() -> None:
    history = Told()
    one, two, other = (history.publish(*at) for at in ((1, LOW), (2, LOW + 7), (3, MIDDLE)))
    first = history.lease(0, one)
    second = history.lease(10, other)
    third = history.lease(20, two)
    for version, row in ((first, one), (second, other), (third, two)):
        history.settle(version, row)
    assert history.found() == ["P2"]


def test_d3_a_lock_is_over_when_all_has_ended_or_time_is_over() -> None:
    history = Told()
    rows = [history.publish(at, LOW + at) for at in range(1, 5)]
    history.settle(history.lease(0, rows[0]), rows[0])
    second = history.lease(10, rows[1])
    history.ok(Release(shard=SHARD, seq=2, version=second))
    third = history.lease(20, rows[2])
    fourth = history.lease(120, rows[3], again(rows[1]))
    history.settle(fourth, rows[3], rows[1])
    history.settle(third, rows[2])
    assert history.found() == []


def test_d3_an_extension_prolongs_a_lock() -> None:
    history = Told()
    one, two = history.publish(1, LOW), history.publish(2, LOW + 1)
    first = history.lease(0, one)
    history.ok(Extend(shard=SHARD, seq=1, version=first, deadline_ms=500))
    second = history.lease(300, two)
    history.settle(first, one)
    history.settle(second, two)
    assert history.found() == ["P2"]


def test_d3_where_slices_are_split_half_of_one_may_be_free() -> None:
    history = Told(1, 4)
    low, high = history.publish(1, LOW), history.publish(2, LOW + 100)
    within, beyond = history.publish(3, LOW + 50), history.publish(4, LOW + 101)
    first = history.lease(0, low, high)
    history.settle(history.lease(10, beyond), beyond)
    assert history.found() == ["P5", "P5", "P5"], "the others are not there"
    second = history.lease(20, within)
    history.settle(first, low, high)
    history.settle(second, within)
    assert history.found() == []


def test_d2_a_call_is_given_messages_of_one_partition() -> None:
    history = Told()
    low, high = history.publish(1, LOW), history.publish(2, HIGH)
    history.settle(history.lease(0, low, high), low, high)
    assert history.found() == ["P1"]
    history = Told(1, 3)
    low, high = history.publish(1, LOW), history.publish(2, HIGH)
    history.settle(history.lease(0, low, high), low, high)
    assert history.found() == [], "there may be one partition"


def test_d2_the_partition_that_was_served_longest_ago_comes_first() -> None:
    history = Told()
    rows = [history.publish(1, LOW), history.publish(2, LOW + 1), history.publish(3, MIDDLE)]
    for row in rows:
        history.settle(history.lease(0, row), row)
    assert history.found() == ["P3"]
    history = Told()
    rows = [history.publish(1, LOW), history.publish(2, LOW + 1)]
    for row in rows:
        history.settle(history.lease(0, row), row)
    late = history.publish(3, MIDDLE)
    history.settle(history.lease(0, late), late)
    assert history.found() == [], "it came later"


def test_the_oldest_message_of_a_partition_comes_first() -> None:
    history = Told()
    rows = [history.publish(1, LOW + 2), history.publish(2, LOW), history.publish(3, LOW + 1)]
    history.settle(history.lease(0, rows[0], rows[2]), rows[0], rows[2])
    history.settle(history.lease(0, rows[1]), rows[1])
    assert history.found() == ["P6"]
    history = Told()
    rows = [history.publish(1, LOW + 2), history.publish(2, LOW)]
    history.settle(history.lease(0, *rows), *rows)
    # One that was lent before, and one that came later.
    late = history.publish(3, LOW)
    history.settle(history.lease(0, again(late)), late)
    assert "P6" not in history.found()


def test_d2_a_message_has_one_id() -> None:
    history = Told()
    row = history.publish(1, LOW)
    history.settle(history.lease(0, row._replace(id=LOW + 1)), row)
    assert history.found() == ["P4"]
    history = Told()
    one, two = history.publish(1, LOW), history.publish(2, LOW)
    history.settle(history.lease(0, one, two), one, two)
    assert "P4" in history.found()


def test_d4_what_was_deleted_is_not_lost() -> None:
    history = Told()
    history.publish(1, LOW)
    history.publish(2, HIGH)
    history.ok(Delete(shard=SHARD, tag="m2"))
    assert history.found() == ["P5"]
