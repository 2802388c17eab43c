"""The checkers find what is wrong with histories made by hand, and nothing in good ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.checkers.all import check
from tests.support.checkers.history import (
    Call,
    Commit,
    Drop,
    Extend,
    History,
    Lease,
    Publish,
    Purge,
    Read,
    Release,
    Seen,
    Sent,
    Settle,
    Shard,
)

SHARD = 1


class Told(History):
    """A history that is told call by call; each is answered at once unless it is left open."""

    def __init__(self, *, keyed: bool = False, retention: str = "work") -> None:
        super().__init__()
        self.shards[SHARD] = Shard(keyed, retention, live={})
        self.shards[2] = Shard(live={})
        self._tags = 0

    def ok(self, call: Call) -> Call:
        self.done(self.begin(call))
        return call

    def open(self, call: Call) -> Call:
        return self.begin(call)

    def no(self, call: Call) -> Call:
        self.refused(self.begin(call), ValueError("no"))
        return call

    def publish(self, first: int, *keys: bytes | None, actor: str = "p") -> tuple[Seen, ...]:
        """Rows that were acknowledged, and are there at the end."""
        rows = tuple(self.row(key) for key in keys or (None,))
        self.ok(Publish(shard=SHARD, rows=rows, first=first, actor=actor))
        seen = tuple(Seen(seq, *row) for seq, row in enumerate(rows, first))
        self.put(*seen)
        return seen

    def row(self, key: bytes | None = None, *, is_delete: bool = False) -> Sent:
        self._tags += 1
        return Sent(f"m{self._tags}", key, None if is_delete else b"body")

    def put(self, *rows: Seen) -> None:
        live = self.shards[SHARD].live
        assert live is not None
        live.update((row.seq, row) for row in rows)

    def end(self, *seqs: int) -> None:
        live = self.shards[SHARD].live
        assert live is not None
        for seq in seqs:
            del live[seq]

    def lease(self, version: int, now: int, lease_ms: int, *rows: tuple[Seen, int]) -> None:
        given = tuple(row._replace(deliveries=count) for row, count in rows)
        self.ok(
            Lease(
                shard=SHARD,
                lease_ms=lease_ms,
                version=version,
                deadline_ms=now + lease_ms,
                rows=given,
            )
        )


def settle(seq: int, version: int) -> Settle:
    return Settle(shard=SHARD, seq=seq, version=version)


def read(index: int, after: int, boundary: int, *rows: Seen, retain: bool = False) -> Read:
    return Read(
        shard=SHARD,
        cursor="f#1",
        index=index,
        after=after,
        boundary=boundary,
        rows=rows,
        retain=retain,
    )


# --- Bad histories, each with the beginning of what must be said ----------------------------------


def lost() -> tuple[str, Told]:
    told = Told()
    told.publish(1)
    told.end(1)
    return "I1: m1", told


def lost_although_only_a_refused_settle_named_it() -> tuple[str, Told]:
    told = Told()
    told.publish(1)
    told.no(settle(1, 1))
    told.end(1)
    return "I1: m1", told


def lost_from_a_log_that_settling_must_not_empty() -> tuple[str, Told]:
    told = Told(retention="log")
    [row] = told.publish(1)
    told.lease(1, 0, 10, (row, 1))
    told.ok(settle(1, 1))
    told.end(1)
    return "I1: m1", told


def lost_below_a_purge_that_did_not_reach_it() -> tuple[str, Told]:
    told = Told()
    told.publish(1)
    told.publish(2)
    told.ok(Purge(shard=SHARD, upto=1))
    told.end(1, 2)
    return "I1: m2", told


def lost_with_its_queue() -> tuple[str, Told]:
    told = Told()
    told.publish(1)
    told.shards[SHARD].live = None
    return "I1: queue 1 is gone", told


def phantom_that_was_never_sent() -> tuple[str, Told]:
    told = Told()
    told.lease(1, 0, 10, (Seen(1, "ghost", None, b"boo"), 1))
    return "I2: ghost", told


def phantom_that_was_refused() -> tuple[str, Told]:
    told = Told()
    row = told.row()
    told.no(Publish(shard=SHARD, rows=(row,)))
    told.put(Seen(1, *row))
    return "I2: m1 was seen as 1 of 1, but was refused", told


def phantom_of_another_queue() -> tuple[str, Told]:
    told = Told()
    row = told.row()
    told.ok(Publish(shard=2, rows=(row,), first=None))
    told.put(Seen(1, *row))
    return "I2: m1 was seen as 1 of 1, but was never sent there", told


def another_body() -> tuple[str, Told]:
    told = Told()
    [row] = told.publish(1)
    told.put(row._replace(body=b"other"))
    return "I2: m1 (1 of 1) has another key or body", told


def two_messages_with_one_seq() -> tuple[str, Told]:
    told = Told()
    told.publish(1)
    told.ok(Publish(shard=SHARD, rows=(told.row(),), first=1, actor="other"))
    return "I2: seq 1 of 1 is both", told


def one_message_with_two_seqs() -> tuple[str, Told]:
    told = Told()
    [row] = told.publish(1)
    told.put(row._replace(seq=2))
    return "I6: m1 of 1 is both", told


def repeat_with_another_answer() -> tuple[str, Told]:
    told = Told()
    row = told.row()
    for first in (1, 2):
        told.ok(
            Publish(
                shard=SHARD, rows=(row,), producer="p", sequence=1, first=first, is_late=first > 1
            )
        )
    told.put(Seen(1, *row))
    return "I6: p/1 on 1 was answered 1 and then 2", told


def publisher_out_of_order() -> tuple[str, Told]:
    told = Told()
    told.publish(2)
    told.publish(1)
    return "I3: p was given 1 on 1 after 2", told


def first_deliveries_out_of_order() -> tuple[str, Told]:
    told = Told()
    [one] = told.publish(1)
    [two] = told.publish(2)
    told.lease(1, 0, 10, (two, 1))
    told.lease(2, 0, 10, (one, 1))
    return "I3: 1 of 1 was first delivered under lease 2, after 2", told


def falling_time() -> tuple[str, Told]:
    told = Told()
    told.put(*(row._replace(time_ms=9) for row in told.publish(1)))
    told.put(*(row._replace(time_ms=8) for row in told.publish(2)))
    return "I9: time falls at seq 2", told


def two_live_leases() -> tuple[str, Told]:
    told = Told()
    [row] = told.publish(1)
    told.lease(1, 0, 1000, (row, 1))
    told.lease(2, 999, 1000, (row, 2))
    return "I4: 1 of 1 was leased until 1000 under 1, and handed out again at 999", told


def two_live_leases_after_an_extension() -> tuple[str, Told]:
    told = Told()
    [row] = told.publish(1)
    told.lease(1, 0, 1000, (row, 1))
    told.ok(Extend(shard=SHARD, seq=1, version=1, deadline_ms=5000))
    told.lease(2, 2000, 1000, (row, 2))
    return "I4: 1 of 1 was leased until 5000", told


def one_version_for_two_calls() -> tuple[str, Told]:
    told = Told()
    [one] = told.publish(1)
    [two] = told.publish(2)
    told.lease(1, 0, 1000, (one, 1))
    told.lease(1, 0, 1000, (two, 1))
    return "I4: two calls were given lease 1", told


def deliveries_that_do_not_count() -> tuple[str, Told]:
    told = Told()
    [row] = told.publish(1)
    told.lease(1, 0, 10, (row, 2))
    told.lease(2, 10, 10, (row, 2))
    return "I4: 1 of 1 was delivery 2", told


def settled_and_back() -> tuple[str, Told]:
    told = Told()
    [row] = told.publish(1)
    told.lease(1, 0, 10, (row, 1))
    told.ok(settle(1, 1))
    told.lease(2, 20, 10, (row, 2))
    return "I5: 1 of 1 was settled under lease 1", told


def old_revision_left() -> tuple[str, Told]:
    told = Told(keyed=True)
    told.publish(1, b"k")
    told.publish(2, b"k")
    told.end(2)
    return "I6: 1 is left of key b'k'", told


def old_revision_in_a_snapshot() -> tuple[str, Told]:
    told = Told(keyed=True)
    [one] = told.publish(1, b"k")
    [two] = told.publish(2, b"k")
    told.end(1)
    told.ok(read(5, 0, 2, one, two))
    return "I6: call 5 shows 1 of 1 for key b'k'", told


def snapshot_with_other_rows_later() -> tuple[str, Told]:
    told = Told()
    [one, two] = told.publish(1, None, None)
    told.ok(read(5, 0, 2, one, two))
    told.ok(settle(2, 1))
    told.ok(read(5, 0, 2, one))
    return "I7: snapshot 5 of 1 was read in call 3 and again in 7", told


def snapshot_with_another_boundary_later() -> tuple[str, Told]:
    told = Told()
    [one] = told.publish(1)
    told.ok(read(5, 0, 1, one))
    told.ok(read(5, 0, 2, one))
    return "I7: snapshot 5 of 1 ended at 1 and then at 2", told


def snapshot_within_a_batch() -> tuple[str, Told]:
    told = Told()
    rows = told.publish(1, None, None, None)
    told.ok(read(5, 0, 2, *rows[:2]))
    return "I7: the snapshot of call 3 ends at 2, within the rows 1–3", told


def snapshot_that_lacks_a_row() -> tuple[str, Told]:
    told = Told()
    [_, two] = told.publish(1, None, None)
    told.ok(read(5, 0, 2, two))
    return "I7: m1, 1 of 1, is missing in the snapshot", told


def retaining_snapshot_that_lacks_a_settled_row() -> tuple[str, Told]:
    told = Told()
    [one, two] = told.publish(1, None, None)
    told.lease(1, 0, 10, (one, 1))
    told.ok(settle(1, 1))
    told.end(1)
    told.ok(read(5, 0, 2, two, retain=True))
    return "I7: m1, 1 of 1, is missing in the snapshot", told


def snapshot_out_of_order() -> tuple[str, Told]:
    told = Told()
    [one, two] = told.publish(1, None, None)
    told.ok(read(5, 0, 2, two, one))
    return "I7: call 3 gave rows out of order", told


def snapshot_beyond_its_boundary() -> tuple[str, Told]:
    told = Told()
    [one] = told.publish(1)
    [two] = told.publish(2)
    told.ok(read(5, 0, 1, one, two))
    return "I7: call 5 gave rows outside (0, 1]", told


def cursor_that_falls_back() -> tuple[str, Told]:
    told = Told()
    [one, two] = told.publish(1, None, None)
    told.ok(read(5, 0, 2, one, two))
    told.ok(Commit(shard=SHARD, cursor="f#1", seq=2))
    told.ok(read(6, 1, 2, two))
    return "I9: cursor f#1 of 1 was committed at 2 and then read from 1", told


def torn_batch() -> tuple[str, Told]:
    told = Told()
    rows = (told.row(), told.row())
    told.open(Publish(shard=SHARD, rows=rows))
    told.put(Seen(1, *rows[0]), Seen(5, *rows[1]))
    return "I7: the rows of call 1 on 1 do not follow each other", told


def half_a_transaction() -> tuple[str, Told]:
    told = Told()
    [row] = told.publish(1)
    told.lease(1, 0, 10, (row, 1))
    output = told.row()
    told.open(Settle(shard=SHARD, seq=1, version=1, transaction=7))
    told.open(Publish(shard=2, rows=(output,), transaction=7))
    other = told.shards[2].live
    assert other is not None
    other[1] = Seen(1, *output)
    told.lease(2, 50, 10, (row, 2))
    return "I7: transaction 7 published, but 1 of 1", told


def half_a_transaction_of_a_follower() -> tuple[str, Told]:
    told = Told()
    [one, two] = told.publish(1, None, None)
    told.ok(read(5, 0, 2, one, two))
    output = told.row()
    told.open(Commit(shard=SHARD, cursor="f#1", seq=2, transaction=7))
    told.open(Publish(shard=2, rows=(output,), transaction=7))
    told.engine_ended()
    other = told.shards[2].live
    assert other is not None
    other[1] = Seen(1, *output)
    told.ok(read(6, 0, 2, one, two))
    return "I9: cursor f#1 of 1 was committed at 2 and then read from 0", told


def counters_that_do_not_add_up() -> tuple[str, Told]:
    told = Told()
    told.publish(1)
    told.shards[SHARD].counts = {"published": 1, "live": 1, "settled": 1}
    return "I12: the counters of 1 do not add up", told


def counter_below_zero() -> tuple[str, Told]:
    told = Told()
    told.publish(1)
    told.shards[SHARD].counts = {"published": 1, "live": -1, "settled": 2}
    return "I12: a counter of 1 is below zero", told


def published_twice() -> tuple[str, Told]:
    told = Told()
    told.publish(1)
    told.shards[SHARD].counts = {"published": 2, "live": 2, "settled": 0}
    return "I12: 1 counts 2 as published, but it was between 1 and 1", told


BAD: list[Callable[[], tuple[str, Told]]] = [
    lost,
    lost_although_only_a_refused_settle_named_it,
    lost_from_a_log_that_settling_must_not_empty,
    lost_below_a_purge_that_did_not_reach_it,
    lost_with_its_queue,
    phantom_that_was_never_sent,
    phantom_that_was_refused,
    phantom_of_another_queue,
    another_body,
    two_messages_with_one_seq,
    one_message_with_two_seqs,
    repeat_with_another_answer,
    publisher_out_of_order,
    first_deliveries_out_of_order,
    falling_time,
    two_live_leases,
    two_live_leases_after_an_extension,
    one_version_for_two_calls,
    deliveries_that_do_not_count,
    settled_and_back,
    old_revision_left,
    old_revision_in_a_snapshot,
    snapshot_with_other_rows_later,
    snapshot_with_another_boundary_later,
    snapshot_within_a_batch,
    snapshot_that_lacks_a_row,
    retaining_snapshot_that_lacks_a_settled_row,
    snapshot_out_of_order,
    snapshot_beyond_its_boundary,
    cursor_that_falls_back,
    torn_batch,
    half_a_transaction,
    half_a_transaction_of_a_follower,
    counters_that_do_not_add_up,
    counter_below_zero,
    published_twice,
]


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_a_bad_history_is_found(make: Callable[[], tuple[str, Told]]) -> None:
    expected, told = make()
    found = check(told)
    assert any(violation.startswith(expected) for violation in found), found


# --- Good histories -------------------------------------------------------------------------------


def test_what_ended_for_a_reason_is_not_lost() -> None:
    told = Told(keyed=True)
    [one] = told.publish(1)
    told.publish(2, b"k")
    told.publish(3, b"k")
    told.publish(4)
    told.publish(5)
    told.lease(1, 0, 10, (one, 1))
    told.ok(settle(1, 1))
    told.ok(Purge(shard=SHARD, upto=4))
    told.end(1, 2, 3, 4)
    told.shards[SHARD].counts = {"published": 5, "live": 1, "settled": 4}
    assert check(told) == []


def test_what_is_open_may_be_done_or_not() -> None:
    told = Told()
    row = told.row()
    told.open(Publish(shard=SHARD, rows=(row,)))
    told.open(Publish(shard=SHARD, rows=(told.row(),)))
    told.put(Seen(1, *row))
    told.publish(2)
    told.open(settle(2, 1))
    told.end(2)
    told.shards[SHARD].counts = {"published": 2, "live": 1, "settled": 1}
    assert check(told) == []


def test_an_open_purge_ends_nothing_that_was_published_after_its_engine_had_ended() -> None:
    told = Told()
    told.publish(1)
    told.open(Purge(shard=SHARD))
    told.engine_ended()
    told.publish(2)
    told.end(1, 2)
    assert [violation for violation in check(told) if "I1" in violation] == [
        "I1: m2, 2 of 1, was acknowledged and is lost"
    ]


def test_an_open_purge_may_have_ended_what_only_a_later_repeat_was_answered_for() -> None:
    told = Told()
    row = told.row()
    told.open(Publish(shard=SHARD, rows=(row,), producer="p", sequence=1))
    told.open(Purge(shard=SHARD))
    told.engine_ended()
    told.ok(Publish(shard=SHARD, rows=(row,), producer="p", sequence=1, first=1))
    told.ok(read(5, 0, 1))
    assert check(told) == []


def test_a_lease_ends_at_its_deadline_or_when_it_is_given_back() -> None:
    told = Told()
    [row] = told.publish(1)
    told.lease(1, 0, 1000, (row, 1))
    told.lease(2, 1000, 1000, (row, 2))
    told.ok(Release(shard=SHARD, seq=1, version=2))
    told.lease(3, 1001, 1000, (row, 3))
    told.ok(Extend(shard=SHARD, seq=1, version=3, deadline_ms=1500))
    told.lease(4, 1500, 1000, (row, 4))
    told.ok(settle(1, 4))
    told.end(1)
    assert check(told) == []


def test_a_retried_publish_is_one_message() -> None:
    told = Told()
    row = told.row()
    told.open(Publish(shard=SHARD, rows=(row,), producer="p", sequence=1))
    for first in (1, None):
        told.ok(
            Publish(
                shard=SHARD, rows=(row,), producer="p", sequence=1, first=first, is_late=not first
            )
        )
    told.put(Seen(1, *row))
    told.shards[SHARD].counts = {"published": 1, "live": 1, "settled": 0}
    assert check(told) == []


def test_a_snapshot_shows_the_queue_as_it_was() -> None:
    told = Told(keyed=True)
    [one] = told.publish(1, b"a")
    told.publish(2, b"b")
    [three] = told.publish(3, b"b")
    told.ok(read(5, 0, 3, one, three))
    told.publish(4, b"a")
    told.ok(read(5, 1, 3, three))
    told.end(1, 2)
    assert check(told) == []


def test_a_deleted_queue_takes_everything_with_it() -> None:
    told = Told()
    told.publish(1)
    told.ok(Drop(shard=SHARD))
    told.shards[SHARD].live = None
    assert check(told) == []


def test_the_digest_tells_histories_apart() -> None:
    digests = {make()[1].digest() for make in BAD}
    assert len(digests) == len({tuple(make()[1].lines) for make in BAD})
    assert lost()[1].digest() == lost()[1].digest()
