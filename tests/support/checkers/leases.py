"""The checkers of work: I3 (first deliveries are in order), I4 and I5."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from tests.support.checkers.abandoned import Unheard, group_of, turn_of
from tests.support.checkers.history import (
    Extend,
    History,
    Lease,
    Release,
    Seen,
    Settle,
    Shard,
)

Rank = tuple[int, bytes]
"""Priority and group."""


def check_leases(history: History) -> list[str]:
    """No message has two live leases, and none comes back once it is settled."""
    grants: dict[tuple[int, int], list[tuple[Lease, Seen]]] = defaultdict(list)
    versions: dict[tuple[int, int], Lease] = {}
    changes: dict[tuple[int, int, int], list[Extend | Release]] = defaultdict(list)
    moves: list[Extend | Release] = [*history.of(Extend), *history.of(Release)]
    for call in moves:
        if call.may_be_done:
            changes[call.shard, call.seq, call.version].append(call)
    found: list[str] = []
    for lease in history.of(Lease):
        if not lease.is_ok or not lease.rows:
            continue
        other = versions.setdefault((lease.shard, lease.version), lease)
        if other is not lease:
            found.append(f"I4: two calls were given lease {lease.version} of {lease.shard}")
        for row in lease.rows:
            grants[lease.shard, row.seq].append((lease, row))
    for (shard, seq), given in grants.items():
        given.sort(key=lambda grant: grant[0].version)
        found += _check_overlap(history, changes, shard, seq, given)
    found += _check_final(history, grants)
    found += _check_first_deliveries(history)
    return found


def ready_ms(shard: Shard, call: Release) -> int:
    """When the message may be handed out again at the earliest, by the shard's own clock."""
    pause_ms = shard.retry_min_ms * call.failures if call.failed else 0
    return call.since_ms + max(call.delay_ms, min(pause_ms, shard.retry_max_ms or pause_ms))


def _check_overlap(
    history: History,
    changes: dict[tuple[int, int, int], list[Extend | Release]],
    shard: int,
    seq: int,
    given: list[tuple[Lease, Seen]],
) -> list[str]:
    """I4: a later lease begins when the earlier one is over, by the shard's own clock."""
    found: list[str] = []
    for (before, old), (after, new) in pairwise(given):
        if history.is_rewound(shard, before.number, after.ended):
            continue
        if new.deliveries <= old.deliveries:
            found.append(
                f"I4: {seq} of {shard} was delivery {old.deliveries} under lease "
                f"{before.version} and {new.deliveries} under {after.version}"
            )
        began_ms = after.deadline_ms - after.lease_ms
        until_ms = before.deadline_ms
        for call in changes.get((shard, seq, before.version), ()):
            if not call.is_ok:
                until_ms = 0
                break
            if isinstance(call, Release):
                until_ms = ready_ms(history.shards[shard], call)
                break
            # It was granted, so it came before the later lease: afterwards it would be stale.
            until_ms = call.deadline_ms
        if began_ms < until_ms:
            found.append(
                f"I4: {seq} of {shard} was leased until {until_ms} under {before.version}, and "
                f"handed out again at {began_ms} under {after.version}"
            )
    return found


def _check_final(
    history: History, grants: dict[tuple[int, int], list[tuple[Lease, Seen]]]
) -> list[str]:
    """I5: the lease under which a message was settled is its last.

    A settle for any delivery may name an earlier one: no lease is asked for after it was answered.
    """
    found: list[str] = []
    asked: dict[tuple[int, int, int], int] = {}
    """When a message was first to be settled under a lease: a repeat is answered for it."""
    for call in history.of(Settle):
        since = asked.setdefault((call.shard, call.seq, call.version), call.number)
        if not call.is_ok:
            continue
        given = grants.get((call.shard, call.seq), [])
        later = [
            lease
            for lease, _ in given
            if lease.version > call.version
            and (not call.any_delivery or lease.number > (call.ended or 0))
            and not history.is_rewound(call.shard, since, lease.ended)
        ]
        if later:
            found.append(
                f"I5: {call.seq} of {call.shard} was settled under lease {call.version} (call "
                f"{call.number}) and handed out again under {later[0].version}"
            )
    return found


def _check_first_deliveries(history: History) -> list[str]:
    """I3: what was never handed out before is handed out in the order of seqs.

    So it is among those of each priority that were never delayed; where groups take turns, among
    those of each group.
    """
    found: list[str] = []
    unheard = Unheard(history)
    heard = {(lease.shard, lease.version) for lease in history.of(Lease)}
    firsts: dict[tuple[int, Rank], list[tuple[int, Lease]]] = defaultdict(list)
    """Shard and rank → seq and lease of first deliveries, so far."""
    for lease in sorted(history.of(Lease), key=lambda lease: (lease.shard, lease.version)):
        if history.shards[lease.shard].partitions[1] or history.shards[lease.shard].is_changed:
            # They come in the order of random ids; or some are of the group without a name.
            continue
        given: list[tuple[int, Rank]] = []
        has_groups = history.shards[lease.shard].order in ("group", "fair")
        for row in lease.rows:
            priority, delay_ms = turn_of(history, lease.shard, row.tag)
            if row.deliveries == 1 and not delay_ms:
                group = group_of(history, row) if has_groups else b""
                given.append((row.seq, (priority, group)))
        for seq, rank in sorted(given):
            before = firsts[lease.shard, rank]
            over = [
                at
                for at in before
                if at[0] >= seq and not history.is_rewound(lease.shard, at[1].number, lease.ended)
            ]
            if over and not (
                _may_be_back(heard, lease.shard, seq, before)
                and unheard.may_hold(min(over, key=lambda at: at[1].version)[1])
            ):
                found.append(
                    f"I3: {seq} of {lease.shard} was first delivered under lease "
                    f"{lease.version}, after {max(at[0] for at in over)}"
                )
        for seq, rank in given:
            firsts[lease.shard, rank].append((seq, lease))
    return found


def _may_be_back(
    heard: set[tuple[int, int]], shard: int, seq: int, firsts: list[tuple[int, Lease]]
) -> bool:
    """Whether the message may have been handed out in its turn, to somebody who did not hear of it.

    It was given back then, and that delivery does not count.
    """
    passed = min(lease.version for other, lease in firsts if other >= seq)
    before = max(
        (lease.version for other, lease in firsts if other < seq and lease.version < passed),
        default=0,
    )
    return any((shard, version) not in heard for version in range(before + 1, passed))
