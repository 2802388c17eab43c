"""The checker of topics finds what is wrong with histories made by hand, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.checkers.history import (
    Call,
    History,
    TopicPublish,
    TopicRead,
)
from tests.support.checkers.topics import (
    EVERYTHING,
    FILTERED,
    PASSING,
    WANTED,
    check_topics,
)


class Told(History):
    """Three messages, two of which pass the filter, and a queue that came after the first."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = [self.publish(at, tag, kind) for at, tag, kind in ROWS[:1]]
        self.since = self.step
        self.sent += [self.publish(at, tag, kind) for at, tag, kind in ROWS[1:]]
        self.left = self.read(EVERYTHING, (1, "a"), (2, "b"), (3, "c"))
        self.right = self.read(FILTERED, (1, "a"), (2, "c"))
        self.passing = self.read(PASSING, (1, "b"), (2, "c"), since=self.since)

    def ok(self, call: Call) -> None:
        self.done(self.begin(call))

    def publish(self, first: int, tag: str, kind: bytes) -> TopicPublish:
        call = TopicPublish(shard=0, rows=((tag, kind),), first=first)
        self.ok(call)
        return call

    def read(self, queue: str, *rows: tuple[int, str], since: int = 0) -> TopicRead:
        call = TopicRead(shard=0, queue=queue, rows=rows, since=since)
        self.ok(call)
        return call


ROWS = [(1, "a", WANTED), (2, "b", b"odd"), (3, "c", WANTED)]


def set_rows(read: str, *rows: tuple[int, str]) -> Callable[[Told], None]:
    def change(told: Told) -> None:
        getattr(told, read).rows = rows

    return change


def tell(at: int, queue: str, fate: int | str) -> Callable[[Told], None]:
    def change(told: Told) -> None:
        told.sent[at].queues = {queue: [fate]}

    return change


GOOD: list[Callable[[Told], None]] = [
    lambda told: None,
    set_rows("passing"),
    set_rows("passing", (1, "b")),
    set_rows("passing", (1, "a"), (2, "b")),
    tell(0, EVERYTHING, 1),
    tell(0, EVERYTHING, "forwarded"),
    tell(0, EVERYTHING, "later"),
    tell(1, FILTERED, "filtered"),
    tell(2, FILTERED, 2),
    tell(2, PASSING, "gone"),
]

BAD: list[tuple[str, Callable[[Told], None]]] = [
    ("doubled", set_rows("left", (1, "a"), (2, "b"), (3, "c"), (4, "a"))),
    ("is not in left", set_rows("left", (1, "a"), (2, "b"))),
    ("not in the order", set_rows("left", (1, "b"), (2, "a"), (3, "c"))),
    ("was refused", set_rows("left", (1, "a"), (2, "b"), (3, "c"), (4, "d"))),
    ("right has", set_rows("right", (1, "a"))),
    ("right has", set_rows("right", (1, "a"), (2, "b"), (3, "c"))),
    ("right has", set_rows("right", (1, "c"), (2, "a"))),
    ("misses", set_rows("passing", (1, "c"))),
    ("no run", set_rows("passing", (1, "a"), (2, "c"))),
    ("no run", set_rows("passing", (1, "b"), (2, "b"))),
    ("not published", set_rows("passing", (1, "d"))),
    ("said to be 2", tell(0, EVERYTHING, 2)),
    ("filtered by left", tell(1, EVERYTHING, "filtered")),
    ("filtered by right", tell(0, FILTERED, "filtered")),
    ("no subscription", tell(0, EVERYTHING, "gone")),
]


@pytest.mark.parametrize("change", GOOD)
def test_nothing_is_found_where_all_is_well(change: Callable[[Told], None]) -> None:
    told = Told()
    change(told)
    assert check_topics(told) == []


@pytest.mark.parametrize(("word", "change"), BAD)
def test_what_is_wrong_is_found(word: str, change: Callable[[Told], None]) -> None:
    told = Told()
    change(told)
    assert any(word in violation for violation in check_topics(told)), check_topics(told)
