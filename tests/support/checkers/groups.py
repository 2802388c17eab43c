"""The checkers of orders. A queue of order `strict` is one group.

G1: while a lease call holds messages of a group, no other call gets any of it; nor while one that
failed or was released waits for its next attempt. Where messages block their group one by one
(`group_blocking`), no other call gets any that comes after a message that is held so.
G2: what was given back of a group comes before all that is younger.
G3: no more messages of a group are in flight than `group_in_flight` says.
G4: no more messages of a queue are with workers than `max_in_flight` says.
That none is forgotten is seen at the end of a run, when the queues must be empty.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from typing import NamedTuple

from tests.support.checkers.abandoned import group_of
from tests.support.checkers.history import (
    Discard,
    Extend,
    History,
    Lease,
    Purge,
    Release,
    Seen,
    Settle,
)
from tests.support.checkers.leases import ready_ms

NEVER_SEQ = 1 << 63
"""No message has this number or a higher one."""

Move = Settle | Release | Discard | Extend
"""What a worker does with a message it has."""


class _Given(NamedTuple):
    """A message that was handed out."""

    lease: Lease
    row: Seen


def check_groups(history: History) -> list[str]:
    """Whoever is to wait for others has waited."""
    found: list[str] = []
    given: dict[int, list[Lease]] = defaultdict(list)
    for lease in history.of(Lease):
        shard = history.shards[lease.shard]
        if lease.is_ok and lease.rows and (shard.order != "none" or shard.max_in_flight):
            given[lease.shard].append(lease)
    for number, leases in given.items():
        groups = _Groups(history, number, leases)
        found += groups.check_maximum()
        if history.shards[number].order != "none":
            found += groups.check()
    return found


class _Groups:
    """What became of the groups of one shard."""

    def __init__(self, history: History, shard: int, leases: list[Lease]) -> None:
        self._history = history
        self._number = shard
        self._shard = history.shards[shard]
        self._leases = sorted(leases, key=lambda lease: lease.version)
        self._moves: dict[tuple[int, int], list[Move]] = defaultdict(list)
        """Seq and lease → what its worker may have done, in order."""
        moves: list[Move] = [
            *history.of(Settle),
            *history.of(Release),
            *history.of(Discard),
            *history.of(Extend),
        ]
        for call in sorted(moves, key=lambda call: call.number):
            if call.shard == shard and call.may_be_done:
                self._moves[call.seq, call.version].append(call)
        self._purges = [call for call in history.of(Purge) if call.shard == shard]
        self._versions: dict[int, list[int]] = defaultdict(list)
        """Seq → the leases that had it."""
        for lease in self._leases:
            for row in lease.rows:
                self._versions[row.seq].append(lease.version)

    def check(self) -> list[str]:
        found: list[str] = []
        before: dict[bytes, dict[int, _Given]] = defaultdict(dict)
        """Group → its messages that were handed out so far, and to whom last."""
        is_ordered = self._shard.order != "fair"
        for lease in self._leases:
            groups: dict[bytes, list[Seen]] = defaultdict(list)
            for row in lease.rows:
                groups[self._group(row)].append(row)
            for group, rows in groups.items():
                known = before[group]
                if is_ordered:
                    found += self._check_held(lease, group, rows, known)
                    found += self._check_passed(lease, group, rows, known)
                found += self._check_in_flight(lease, group, rows, known)
                known |= {row.seq: _Given(lease, row) for row in rows}
        return found

    def check_maximum(self) -> list[str]:
        """G4, whenever something was handed out."""
        found: list[str] = []
        most = self._shard.max_in_flight
        known: dict[int, _Given] = {}
        for lease in self._leases if most else ():
            known |= {row.seq: _Given(lease, row) for row in lease.rows}
            held = [seq for seq, given in known.items() if self._has(given, lease)]
            if len(held) > most:
                found.append(
                    f"G4: {held} of {self._number} were with workers when lease {lease.version} "
                    "was given"
                )
        return found

    def _has(self, given: _Given, lease: Lease) -> bool:
        """Whether a worker had the message when `lease` was given, for sure."""
        return given.lease is lease or self._is_held(given, lease)

    def _group(self, row: Seen) -> bytes:
        return b"" if self._shard.order == "strict" else group_of(self._history, row)

    def _check_held(
        self, lease: Lease, group: bytes, rows: list[Seen], known: dict[int, _Given]
    ) -> list[str]:
        """G1, when `lease` got messages of the group."""
        by_message = self._shard.group_blocking == "message"
        upto = max(row.seq for row in rows) if by_message else NEVER_SEQ
        return [
            f"G1: {seq} of {self._number} was held under lease {given.lease.version} when lease "
            f"{lease.version} got others of group {group!r}"
            for seq, given in known.items()
            if seq < upto and self._is_held(given, lease)
        ]

    def _is_held(self, given: _Given, later: Lease) -> bool:
        """Whether the message was neither over nor ready when `later` was decided, for sure."""
        shard = self._shard
        until_ms = given.lease.deadline_ms
        for call in self._moves[given.row.seq, given.lease.version]:
            if call.number > (later.ended or 0):
                break
            if not call.is_ok or (call.ended or 0) > later.number:
                return False
            if isinstance(call, Settle | Discard):
                return False
            if isinstance(call, Extend):
                until_ms = call.deadline_ms
                continue
            if call.failed and 0 < shard.max_failures <= call.failures:
                return False
            if not call.failed and 0 < shard.max_failures <= call.failures + 1:
                # If the lease had run out, that was its last failure: a release of a dead letter
                # is answered as if it had been in time.
                return False
            if 0 < shard.max_deliveries <= given.row.deliveries:
                return False
            until_ms = ready_ms(shard, call)
            break
        return later.deadline_ms - later.lease_ms < until_ms and not self._is_purged(given, later)

    def _is_purged(self, given: _Given, later: Lease) -> bool:
        return any(
            call.may_be_done
            and call.number < (later.ended or 0)
            and (call.latest is None or call.latest > given.lease.number)
            for call in self._purges
        )

    def _check_passed(
        self, lease: Lease, group: bytes, rows: list[Seen], known: dict[int, _Given]
    ) -> list[str]:
        """G2: whoever was handed out before, and again after `lease`, is in `lease`, too."""
        fresh = [row.seq for row in rows if row.deliveries == 1 and row.seq not in known]
        if self._shard.group_blocking == "message":
            # A message that was given back passes no older one, either.
            fresh = [row.seq for row in rows]
        if not fresh:
            return []
        taken = {row.seq for row in rows}
        return [
            f"G2: {max(fresh)} of {self._number} was handed out under lease {lease.version} "
            f"before {seq} of group {group!r}, which had been given back"
            for seq in known
            if seq < max(fresh) and seq not in taken and self._comes_after(seq, lease)
        ]

    def _check_in_flight(
        self, lease: Lease, group: bytes, rows: list[Seen], known: dict[int, _Given]
    ) -> list[str]:
        """G3: of a group in `group` within a call, else of all that never ended before `lease`."""
        most = self._shard.group_in_flight
        if not most:
            return []
        seqs = Counter(row.seq for row in rows)
        if self._shard.order == "fair":
            seqs.update(
                seq
                for seq, given in known.items()
                if self._comes_after(seq, lease) or self._is_settled_after(given, lease)
            )
        if len(seqs) <= most:
            return []
        return [
            f"G3: {sorted(seqs)} of {self._number}, group {group!r}, were in flight when lease "
            f"{lease.version} was given"
        ]

    def _comes_after(self, seq: int, lease: Lease) -> bool:
        """Whether somebody got the message after `lease`."""
        versions = self._versions[seq]
        return bisect_right(versions, lease.version) < len(versions)

    def _is_settled_after(self, given: _Given, lease: Lease) -> bool:
        """Whether its worker settled it after `lease`, and not before."""
        calls = [
            call
            for call in self._moves[given.row.seq, given.lease.version]
            if isinstance(call, Settle | Discard)
        ]
        return bool(calls) and calls[0].is_ok and calls[0].number > (lease.ended or 0)
