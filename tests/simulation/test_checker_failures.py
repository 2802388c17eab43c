"""The checkers of failures find what is wrong with histories made by hand, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.checkers.all import check
from tests.support.checkers.history import (
    Discard,
    History,
    Lease,
    Publish,
    Release,
    Rewind,
    Seen,
    Sent,
    Settle,
    Shard,
)

SOURCE, DEAD, LOG = 1, 2, 3


class Told(History):
    """Two messages in a queue with limits, as they are published and leased."""

    def __init__(self) -> None:
        super().__init__()
        self.shards[SOURCE] = Shard(
            live={},
            dead_letter=DEAD,
            max_failures=2,
            max_deliveries=3,
            retry_min_ms=10,
            retry_max_ms=15,
        )
        self.shards[DEAD] = Shard(live={})
        self.shards[LOG] = Shard(retention="log", live={})
        self._version = 0

    def ok(self, call: Publish | Lease | Release | Discard | Settle | Rewind) -> None:
        self.done(self.begin(call))

    def publish(self, shard: int = SOURCE) -> None:
        self.ok(Publish(shard=shard, rows=(Sent("a", None, b"a"), Sent("b", None, b"b")), first=1))
        self.put(shard, 1, "a")
        self.put(shard, 2, "b")

    def put(self, shard: int, seq: int, tag: str) -> None:
        live = self.shards[shard].live
        assert live is not None
        live[seq] = Seen(seq, tag, None, tag.encode())

    def end(self, seq: int, shard: int = SOURCE) -> None:
        live = self.shards[shard].live
        assert live is not None
        del live[seq]

    def bury(self) -> None:
        """The first message is where it should be."""
        self.end(1)
        self.put(DEAD, 1, "a")
        self.shards[SOURCE].counts = count(published=2, live=1, dead_lettered=1)
        self.shards[DEAD].counts = count(published=1, live=1, dead_lettered=0)

    def lease(self, now: int, *, deliveries: int, failures: int = 0, shard: int = SOURCE) -> int:
        self._version += 1
        row = Seen(1, "a", None, b"a", 0, deliveries, failures)
        self.ok(
            Lease(
                shard=shard,
                lease_ms=100,
                version=self._version,
                deadline_ms=now + 100,
                rows=(row,),
            )
        )
        return self._version


def count(**counts: int) -> dict[str, int]:
    return counts


def discard(version: int) -> Discard:
    return Discard(shard=SOURCE, seq=1, version=version)


def release(version: int, *, failures: int = 0, delay_ms: int = 0, since_ms: int = 0) -> Release:
    return Release(
        shard=SOURCE,
        seq=1,
        version=version,
        failed=failures > 0,
        failures=failures,
        delay_ms=delay_ms,
        since_ms=since_ms,
    )


# --- Bad histories, each with the beginning of what must be said ----------------------------------


def lost_on_its_way() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.ok(discard(told.lease(0, deliveries=1)))
    told.bury()
    told.end(1, DEAD)
    return "I1: a, 1 of 1", told


def still_there_although_it_was_discarded() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.ok(discard(told.lease(0, deliveries=1)))
    return "D1: 1 of 1", told


def in_both_queues() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.lease(0, deliveries=1)
    told.bury()
    told.put(SOURCE, 1, "a")
    return "D2: a is in 1 and", told


def moved_twice() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.ok(discard(told.lease(0, deliveries=1)))
    told.bury()
    told.put(DEAD, 2, "a")
    return "D2: a dead letter is in 2 twice", told


def counted_and_not_arrived() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.ok(discard(told.lease(0, deliveries=1)))
    told.bury()
    told.shards[SOURCE].counts["dead_lettered"] = 2
    return "D2: 1 has moved 2", told


def settled_and_dead() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.ok(Settle(shard=SOURCE, seq=1, version=told.lease(0, deliveries=1)))
    told.bury()
    return "D2: a of 1 was settled", told


def never_sent_there() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.put(DEAD, 1, "x")
    return "I2: x", told


def handed_out_after_its_last_failure() -> tuple[str, Told]:
    told = Told()
    told.publish()
    for failures in (1, 2):
        told.ok(release(told.lease(failures * 1000, deliveries=failures), failures=failures))
    told.lease(9000, deliveries=3, failures=2)
    return "D3: 1 of 1 was handed out after 2", told


def handed_out_too_often() -> tuple[str, Told]:
    told = Told()
    told.publish()
    for deliveries in range(1, 5):
        told.ok(release(told.lease(deliveries * 1000, deliveries=deliveries)))
    return "D3: 1 of 1 was handed out 4 times", told


def handed_out_although_discarded() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.ok(discard(told.lease(0, deliveries=1)))
    told.lease(500, deliveries=2)
    told.bury()
    return "D3: 1 of 1 was discarded", told


def handed_out_within_its_delay() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.ok(release(told.lease(0, deliveries=1), delay_ms=50, since_ms=20))
    told.lease(69, deliveries=2)
    return "I4: 1 of 1 was leased until 70", told


def handed_out_too_soon_after_a_failure() -> tuple[str, Told]:
    told = Told()
    told.publish()
    told.ok(release(told.lease(0, deliveries=1), failures=1, since_ms=20))
    told.lease(29, deliveries=2, failures=1)
    return "I4: 1 of 1 was leased until 30", told


def handed_out_again_before_the_log_was_rewound() -> tuple[str, Told]:
    told = Told()
    told.publish(LOG)
    told.ok(Rewind(shard=LOG, first=1))
    version = told.lease(0, deliveries=1, shard=LOG)
    told.ok(Settle(shard=LOG, seq=1, version=version))
    told.lease(500, deliveries=2, shard=LOG)
    return "I5: 1 of 3", told


# --- Good histories -------------------------------------------------------------------------------


def buried() -> Told:
    told = Told()
    told.publish()
    told.ok(release(told.lease(0, deliveries=1), delay_ms=50, since_ms=20))
    told.ok(release(told.lease(70, deliveries=2), failures=1, since_ms=80))
    told.ok(discard(told.lease(90, deliveries=3, failures=1)))
    told.bury()
    return told


def rewound() -> Told:
    told = Told()
    told.publish(LOG)
    version = told.lease(0, deliveries=1, shard=LOG)
    told.ok(Settle(shard=LOG, seq=1, version=version))
    told.ok(Rewind(shard=LOG, first=1))
    told.lease(10, deliveries=1, shard=LOG)
    return told


@pytest.mark.parametrize(
    "make",
    [
        lost_on_its_way,
        still_there_although_it_was_discarded,
        in_both_queues,
        moved_twice,
        counted_and_not_arrived,
        settled_and_dead,
        never_sent_there,
        handed_out_after_its_last_failure,
        handed_out_too_often,
        handed_out_although_discarded,
        handed_out_within_its_delay,
        handed_out_too_soon_after_a_failure,
        handed_out_again_before_the_log_was_rewound,
    ],
)
def test_a_bad_history_is_found(make: Callable[[], tuple[str, Told]]) -> None:
    beginning, told = make()
    found = check(told)
    assert any(violation.startswith(beginning) for violation in found), found


def handed_out_first_to_somebody_who_left() -> Told:
    """Nobody heard of lease 1: it was given back, and its delivery does not count."""
    told = Told()
    told.publish(LOG)
    told.unknown(told.begin(Lease(shard=LOG, lease_ms=9)), TimeoutError())
    row = Seen(2, "b", None, b"b", 0, 1)
    told.ok(Lease(shard=LOG, lease_ms=9, version=2, deadline_ms=9, rows=(row,)))
    row = Seen(1, "a", None, b"a", 0, 1)
    told.ok(Lease(shard=LOG, lease_ms=9, version=3, deadline_ms=9, rows=(row,)))
    return told


@pytest.mark.parametrize("make", [buried, rewound, handed_out_first_to_somebody_who_left])
def test_a_good_history_passes(make: Callable[[], Told]) -> None:
    assert check(make()) == []
