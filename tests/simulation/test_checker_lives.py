"""Messages that go by themselves: what is found, and what excused."""

from __future__ import annotations

import pytest

from tests.support.checkers.all import check
from tests.support.checkers.expiry import AGE_SLACK_MS, BYTES_SLACK, ROW_BYTES
from tests.support.checkers.history import (
    Call,
    History,
    Lease,
    Publish,
    Seen,
    Sent,
    Shard,
)

SHARD, DEAD = 1, 2
DAY_MS = 24 * 3600 * 1000


class Told(History):
    """A history of one queue, told call by call; what it has published is gone in the end."""

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self.shards[SHARD] = shard
        self.shards[DEAD] = Shard(live={})

    def ok(self, call: Call) -> None:
        self.done(self.begin(call))

    def publish(self, seq: int, ttl_ms: int = 0) -> Seen:
        tag = f"m{seq}"
        if ttl_ms:
            self.lives[tag] = ttl_ms
        self.ok(Publish(shard=SHARD, rows=(Sent(tag, None, b""),), first=seq, actor="p"))
        return Seen(seq, tag, None, b"", 1000, 1)

    def lease(self, now: int, *rows: Seen) -> None:
        deadline_ms = now + 100
        self.ok(Lease(shard=SHARD, lease_ms=100, version=1, deadline_ms=deadline_ms, rows=rows))

    def left(self, *rows: Seen, **counts: int) -> list[str]:
        """What is wrong if these are there in the end."""
        shard = self.shards[SHARD]
        shard.live = {row.seq: row for row in rows}
        shard.counts = {"live": len(rows), **counts}
        return check(self)


@pytest.mark.parametrize(("now", "is_over"), [(1499, False), (1500, True)])
@pytest.mark.parametrize(("own", "usual"), [(500, 0), (0, 500), (500, 900), (900, 500)])
def test_nobody_gets_what_is_over(now: int, own: int, usual: int, *, is_over: bool) -> None:
    history = Told(Shard(ttl_ms=usual))
    history.lease(now, history.publish(1, own))
    found = history.left(published=1, expired=1)
    assert [text.partition(":")[0] for text in found] == ["E1"] * is_over


def test_what_has_not_said_so_is_not_excused() -> None:
    history = Told(Shard())
    history.publish(1, 500)
    history.publish(2, 2 * DAY_MS)
    history.publish(3)
    found = history.left(published=3, expired=3)
    assert [text.partition(":")[0] for text in found] == ["E2", "I1", "I1"]
    assert "m2" in found[1]
    assert "m3" in found[2]


def test_what_expired_is_among_the_dead_letters_where_it_goes_there() -> None:
    history = Told(Shard(ttl_ms=500, dead_letter=DEAD, expired_are_letters=True))
    first, _ = history.publish(1), history.publish(2)
    history.shards[DEAD].live = {7: first._replace(seq=7)}
    found = history.left(published=2, dead_lettered=1, expired=1)
    assert len(found) == 1
    assert found[0].startswith("I1: m2")


def test_a_log_has_its_newest_messages_and_no_others() -> None:
    def told() -> tuple[Told, list[Seen]]:
        history = Told(Shard(retention="log", keep_messages=2))
        return history, [history.publish(seq) for seq in range(1, 5)]

    history, rows = told()
    assert history.left(*rows[2:], published=4, expired=2) == []
    history, rows = told()
    assert history.left(*rows[3:], published=4, expired=3)[0].startswith("I1: m3")
    history, rows = told()
    assert history.left(*rows[1:], published=4, expired=1)[0].startswith("E3: [2]")


@pytest.mark.parametrize(("seen_ms", "is_over"), [(1499, False), (1500, True)])
def test_a_log_ends_what_is_too_old_and_nothing_else(seen_ms: int, *, is_over: bool) -> None:
    history = Told(Shard(retention="log", keep_ms=500, seen_ms=seen_ms))
    row = history.publish(1)
    history.lease(1100, row)
    found = history.left(published=1, expired=1)
    assert [text.partition(":")[0] for text in found] == ["I1"] * (not is_over)
    assert history.left(row, published=1) == []
    history.shards[SHARD].seen_ms = 1501 + AGE_SLACK_MS
    assert [text.partition(":")[0] for text in history.left(row, published=1)] == ["E3"]


@pytest.mark.parametrize(("keep_bytes", "is_over"), [(2 * ROW_BYTES, True), (1000, False)])
def test_a_log_ends_what_is_too_many_bytes(keep_bytes: int, *, is_over: bool) -> None:
    history = Told(Shard(retention="log", keep_bytes=keep_bytes))
    rows = [history.publish(seq) for seq in range(1, 4)]
    found = history.left(*rows[1:], published=3, expired=1)
    assert [text.partition(":")[0] for text in found] == ["I1"] * (not is_over)
    large = rows[2]._replace(body=bytes(BYTES_SLACK + 2000))
    found = history.left(*rows[:2], large, published=3)
    assert any(text.startswith("E3") for text in found)
