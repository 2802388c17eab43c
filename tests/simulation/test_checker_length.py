"""Maxima: what is found, and what excused."""

from __future__ import annotations

import pytest

from millrace.errors import Full
from tests.support.checkers.all import check
from tests.support.checkers.history import (
    Call,
    Discard,
    History,
    Lease,
    Publish,
    Seen,
    Sent,
    Settle,
    Shard,
)

SHARD, DEAD = 1, 2


class Told(History):
    """A history of one queue that holds two messages, told call by call."""

    def __init__(self, shard: Shard | None = None) -> None:
        super().__init__()
        self.shards[SHARD] = shard or Shard(max_messages=2, live={})
        self.shards[DEAD] = Shard(live={})

    def ok(self, call: Call) -> None:
        self.done(self.begin(call))

    def publish(self, seq: int) -> Seen:
        row = Sent(f"m{seq}", None, b"")
        self.ok(Publish(shard=SHARD, rows=(row,), first=seq, actor="p"))
        return Seen(seq, row.tag, None, b"", 1000, 1)

    def refuse(self, seq: int) -> None:
        call = self.begin(Publish(shard=SHARD, rows=(Sent(f"m{seq}", None, b""),), actor="p"))
        self.refused(call, Full("the queue holds its 2 messages"))

    def lease(self, *rows: Seen) -> None:
        self.ok(Lease(shard=SHARD, lease_ms=100, version=1, deadline_ms=100, rows=rows))

    def settle(self, *rows: Seen) -> None:
        for row in rows:
            self.ok(Settle(shard=SHARD, seq=row.seq, version=1))

    def found(self) -> list[str]:
        return [text.partition(":")[0] for text in check(self)]


def test_no_more_are_there_than_may_be() -> None:
    history = Told()
    rows = [history.publish(1), history.publish(2)]
    history.lease(*rows)
    history.settle(rows[0])
    rows.append(history.publish(3))
    history.shards[SHARD].live = {row.seq: row for row in rows[1:]}
    assert history.found() == []
    rows.append(history.publish(4))
    history.shards[SHARD].live = {row.seq: row for row in rows[1:]}
    assert history.found() == ["M1"]


@pytest.mark.parametrize("settled", [0, 1])
def test_what_would_have_fitted_is_not_refused(settled: int) -> None:
    history = Told()
    rows = [history.publish(1), history.publish(2)]
    history.lease(*rows)
    history.settle(*rows[:settled])
    history.refuse(3)
    history.settle(*rows[settled:])
    assert history.found() == ["M2"] * settled


def test_an_empty_queue_takes_something() -> None:
    history = Told(Shard(max_bytes=100, live={}))
    row = history.publish(1)
    history.refuse(2)
    history.lease(row)
    history.settle(row)
    assert history.found() == []
    history.refuse(3)
    assert history.found() == ["M2"]


def test_who_was_handed_out_is_not_dropped() -> None:
    history = Told(Shard(max_messages=2, is_dropping=True, dead_letter=DEAD, live={}))
    one, two, three = (history.publish(seq) for seq in (1, 2, 3))
    history.lease(two)
    letters = {1: one._replace(seq=1), 2: three._replace(seq=2)}
    history.shards[DEAD].live = letters
    assert history.found() == ["I1"], "one is nowhere"
    history.shards[DEAD].live = letters | {3: two._replace(seq=3)}
    assert history.found() == ["M3"]
    history.ok(Discard(shard=SHARD, seq=2, version=1))
    assert history.found() == []


def test_what_is_dropped_into_nothing_was_never_handed_out() -> None:
    history = Told(Shard(max_messages=2, is_dropping=True, live={}))
    history.publish(1)
    history.lease(history.publish(2))
    assert history.found() == ["I1"]
