"""The checkers of priorities and delays.

T1: nobody is handed a message before its delay is over.
T2: of those that were ready, and were never handed out, a lease call takes the highest priority
first; of the usual one, those whose delay is over come before the others.
That none is forgotten is seen at the end of a run, when the queues must be empty.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tests.support.checkers.abandoned import Unheard, turn_of
from tests.support.checkers.history import History, Lease, Publish

_USUAL = 4


class _First(NamedTuple):
    """The first delivery of a message."""

    lease: Lease
    seq: int
    rank: tuple[int, bool]
    acked: int | None
    """When its publisher was told that it is there."""
    due_ms: int


def check_turns(history: History) -> list[str]:
    """Nothing comes too early, and none is overtaken by a message of lower priority."""
    found: list[str] = []
    firsts: dict[int, list[_First]] = defaultdict(list)
    acked = _acked(history)
    for lease in sorted(history.of(Lease), key=lambda lease: (lease.shard, lease.version)):
        began_ms = _began_ms(lease)
        for row in lease.rows:
            priority, delay_ms = turn_of(history, lease.shard, row.tag)
            due_ms = row.time_ms + delay_ms
            if delay_ms and began_ms < due_ms:
                found.append(
                    f"T1: {row.seq} of {lease.shard} was handed out at {began_ms} under lease "
                    f"{lease.version}, and not due before {due_ms}"
                )
            if row.deliveries == 1:
                rank = (priority, priority == _USUAL and delay_ms > 0)
                known = acked.get((lease.shard, row.tag))
                firsts[lease.shard].append(_First(lease, row.seq, rank, known, due_ms))
    unheard = Unheard(history)
    for shard, given in firsts.items():
        if history.shards[shard].order in ("group", "fair"):
            continue
        if len({first.rank for first in given}) > 1:
            found += _check_overtaken(unheard, given)
    return found


def _check_overtaken(unheard: Unheard, given: list[_First]) -> list[str]:
    """T2, among the first deliveries of one shard, in the order of their leases."""
    found: list[str] = []
    for at, first in enumerate(given):
        lease = first.lease
        left = [
            later
            for later in given[at + 1 :]
            if later.lease is not lease
            and later.rank > first.rank
            and later.acked is not None
            and later.acked < lease.number
            and later.due_ms <= _began_ms(lease)
        ]
        if left and not (unheard.may_hold(lease) or unheard.may_have_given_back(lease)):
            found.append(
                f"T2: {left[0].seq} of {lease.shard} was ready and of a higher rank than "
                f"{first.seq}, which was handed out before it under lease {lease.version}"
            )
    return found


def _acked(history: History) -> dict[tuple[int, str], int]:
    found: dict[tuple[int, str], int] = {}
    for call in history.of(Publish):
        if call.is_ok and call.ended is not None:
            for row in call.rows:
                at = (call.shard, row.tag)
                found[at] = min(call.ended, found.get(at, call.ended))
    return found


def _began_ms(lease: Lease) -> int:
    """When it was decided, by the shard's own clock."""
    return lease.deadline_ms - lease.lease_ms
