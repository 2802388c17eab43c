"""The checkers of partitions: slices of the ids, each locked by whoever has a batch of it.

P1: a lease call is given messages of one slice.
P2: where the number of slices is fixed, until its deadline, and while it holds any of them, no
other call is given messages of that slice. Where it is not, half of a slice may become free.
P3: where the number of slices is fixed, the one that was served longest ago comes first.
P6: and nobody waits in the slice that is served behind a message that was published later.
P4: a message has one id, whoever is told of it, and no other message has it.
P5: what was acknowledged is there, or somebody has ended it.
That none is forgotten is seen at the end of a run, when the queues must be empty.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tests.support.checkers.failures import letters_of
from tests.support.checkers.history import (
    Delete,
    Discard,
    Extend,
    History,
    Lease,
    Outcome,
    Publish,
    Release,
    Seen,
    Settle,
)

IDS = 2**63
"""Ids are below this."""


def check_partitions(history: History) -> list[str]:
    """Partitions are served, and locked, as they should."""
    found: list[str] = []
    for number, shard in history.shards.items():
        if shard.partitions[1]:
            found += _Sliced(history, number).check()
    return found


def slice_at(id_: int, count: int) -> int:
    """Which of so many equal slices an id is in."""
    return next(at for at in range(count) if id_ < (at + 1) * IDS // count)


class _Served(NamedTuple):
    """A lease call that was given something."""

    lease: Lease
    low: int
    high: int
    """Its lowest and its highest id."""


class _Sliced:
    """What became of the messages of one shard."""

    def __init__(self, history: History, number: int) -> None:
        self._history = history
        self._number = number
        self._shard = history.shards[number]
        least, most = self._shard.partitions
        self._counts = range(least, most + 1)
        self._fixed = most if least == most else 0
        leases = [call for call in history.of(Lease) if call.shard == number]
        self._served = [
            _Served(lease, min(ids), max(ids))
            for lease in sorted(leases, key=lambda lease: lease.version)
            if lease.is_ok and (ids := [row.id or 0 for row in lease.rows])
        ]
        self._unheard = [lease.number for lease in leases if lease.outcome is Outcome.OPEN]
        self._ends: dict[tuple[int, int], list[Settle | Release | Discard]] = defaultdict(list)
        self._extended: dict[tuple[int, int], list[Extend]] = defaultdict(list)
        ends: list[Settle | Release | Discard] = [
            *history.of(Settle),
            *history.of(Release),
            *history.of(Discard),
        ]
        for end in ends:
            if end.shard == number and end.may_be_done:
                self._ends[end.seq, end.version].append(end)
        for call in history.of(Extend):
            if call.shard == number and call.may_be_done:
                self._extended[call.seq, call.version].append(call)
        self._deleted: dict[str, int] = {}
        """Tag → when it may have been deleted at the earliest."""
        for delete in history.of(Delete):
            if delete.shard == number and delete.may_be_done:
                self._deleted.setdefault(delete.tag, delete.number)

    def check(self) -> list[str]:
        found = [*self._check_ids(), *self._check_loss()]
        for at, served in enumerate(self._served):
            lease = served.lease
            if not any(
                slice_at(served.low, count) == slice_at(served.high, count)
                for count in self._counts
            ):
                found.append(
                    f"P1: lease {lease.version} of {self._number} has ids from {served.low} to "
                    f"{served.high}, which are of several partitions"
                )
            if self._fixed:
                found += self._check_locks(self._served[:at], lease)
        return found + (self._check_turns() if self._fixed else [])

    # --- P2 ------------------------------------------------------------------------------------

    def _check_locks(self, before: list[_Served], lease: Lease) -> list[str]:
        return [
            f"P2: lease {served.lease.version} of {self._number} held messages of a partition when "
            f"lease {lease.version} was given {row.seq} of it"
            for served in before
            for row in lease.rows
            if self._is_within(row.id or 0, served)
            and any(self._is_held(one, served.lease, lease) for one in served.lease.rows)
        ]

    def _is_within(self, id_: int, served: _Served) -> bool:
        return slice_at(id_, self._fixed) == slice_at(served.low, self._fixed)

    def _is_held(self, row: Seen, lease: Lease, later: Lease) -> bool:
        """Whether its worker had the message when `later` was decided, for sure."""
        until, at = later.ended or 0, (row.seq, lease.version)
        if any(end.number < until for end in self._ends[at]):
            return False
        if self._deleted.get(row.tag, until) < until:
            return False
        deadline_ms = lease.deadline_ms
        for call in self._extended[at]:
            if call.number < until:
                if not call.is_ok or (call.ended or 0) > later.number:
                    return False
                deadline_ms = call.deadline_ms
                if later.version > lease.version + 1:
                    # Who extends late still has the message, but the lock may be another's by now.
                    deadline_ms = min(deadline_ms, lease.deadline_ms)
        return later.deadline_ms - later.lease_ms < deadline_ms

    # --- P3 and P6 --------------------------------------------------------------------------------

    def _check_turns(self) -> list[str]:
        """Nobody waits in a slice that is free and was served before the one that is served, nor in
        that one behind a younger message."""
        found: list[str] = []
        acked = {
            row.tag: call.ended or 0
            for call in self._history.of(Publish)
            if call.shard == self._number and call.is_ok
            for row in call.rows
        }
        turns = [0] * self._fixed
        for at, served in enumerate(self._served):
            lease = served.lease
            mine = slice_at(served.low, self._fixed)
            if any(number < (lease.ended or 0) for number in self._unheard):
                # Somebody may hold what nobody knows of.
                break
            youngest = max(row.seq for row in lease.rows)
            for later in self._served[at + 1 :]:
                found += [
                    f"P6: {row.seq} of {self._number} waited, and lease {lease.version} was given "
                    f"{youngest}, which came later"
                    for row in later.lease.rows
                    if row.deliveries == 1
                    and row.seq < youngest
                    and slice_at(row.id or 0, self._fixed) == mine
                    and acked.get(row.tag, lease.number) < lease.number
                ]
                other = slice_at(later.low, self._fixed)
                if turns[other] < turns[mine] and self._is_free(self._served[:at], other, lease):
                    found += [
                        f"P3: {row.seq} of {self._number} waited in partition {other}, and lease "
                        f"{lease.version} was given messages of {mine}, which was served later"
                        for row in later.lease.rows
                        if row.deliveries == 1 and acked.get(row.tag, lease.number) < lease.number
                    ]
            turns[mine] = lease.version
        return found

    def _is_free(self, before: list[_Served], part: int, lease: Lease) -> bool:
        """Whether all that anybody had of a slice was over, for sure, before `lease` was asked."""
        return all(
            any(
                end.is_ok and (end.ended or 0) < lease.number
                for end in self._ends[row.seq, served.lease.version]
            )
            for served in before
            if slice_at(served.low, self._fixed) == part
            for row in served.lease.rows
        )

    # --- P4 and P5 -----------------------------------------------------------------------------

    def _check_ids(self) -> list[str]:
        found: list[str] = []
        ids: dict[str, int] = {}
        tags: dict[int, str] = {}
        told = [(row.tag, row.id) for served in self._served for row in served.lease.rows]
        for call in self._history.of(Publish):
            if call.shard == self._number and call.is_ok and call.ids:
                told += [(row.tag, id_) for row, id_ in zip(call.rows, call.ids, strict=True)]
        for tag, id_ in told:
            if id_ is None or not 0 <= id_ < IDS:
                found.append(f"P4: {tag} of {self._number} has the id {id_}")
            elif ids.setdefault(tag, id_) != id_ or tags.setdefault(id_, tag) != tag:
                found.append(f"P4: {tag} of {self._number} is both {ids[tag]} and {id_}")
        return found

    def _check_loss(self) -> list[str]:
        history, shard = self._history, self._shard
        seqs = {row.tag: row.seq for served in self._served for row in served.lease.rows}
        settled = {
            call.seq
            for call in history.of(Settle)
            if call.shard == self._number and call.may_be_done
        }
        left = {row.tag for row in (shard.live or {}).values()} | self._deleted.keys()
        letters = letters_of(history)
        return [
            f"P5: {row.tag} of {self._number} was acknowledged and is lost"
            for call in history.of(Publish)
            if call.shard == self._number and call.is_ok
            for row in call.rows
            if row.tag not in left
            and seqs.get(row.tag) not in settled
            and (shard.dead_letter, row.tag) not in letters
        ]
