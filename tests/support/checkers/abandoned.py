"""Messages that were handed out to somebody who went away without waiting for the answer.

They are given back at once, and that delivery does not count: for a while they are in nobody's
hands, as far as any client could know, and then they come before all that wait.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from tests.support.checkers.history import (
    History,
    Lease,
    Publish,
    Seen,
    Turn,
)

_NEVER = 1 << 62


class Unheard:
    """Lease calls whose answers nobody heard."""

    def __init__(self, history: History) -> None:
        self._heard: dict[int, list[Lease]] = defaultdict(list)
        self._spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Shard → from when on, and until when at the latest, such a call held something."""
        commits = _Commits(history)
        for lease in history.of(Lease):
            if lease.is_ok:
                self._heard[lease.shard].append(lease)
            elif lease.given_up is not None:
                end = commits.first_after(lease.given_up)
                self._spans[lease.shard].append((lease.number, end))

    def may_hold(self, lease: Lease) -> bool:
        """Whether one of them may have held something while `lease` was decided."""
        until = _NEVER if lease.ended is None else lease.ended
        return any(begin < until and lease.number < end for begin, end in self._spans[lease.shard])

    def may_have_given_back(self, lease: Lease) -> bool:
        """Whether what one of them gave back may have waited for `lease`, before all others.

        Not if another call came in between that would have taken it.
        """
        until = _NEVER if lease.ended is None else lease.ended
        return any(
            begin < until and not self._is_taken(end, lease)
            for begin, end in self._spans[lease.shard]
        )

    def _is_taken(self, since: int, lease: Lease) -> bool:
        return any(
            since < other.number
            and (other.ended or _NEVER) < lease.number
            and len(other.rows) < other.count
            for other in self._heard[lease.shard]
        )


class _Commits:
    """When something was known to be committed that was asked for after a step."""

    def __init__(self, history: History) -> None:
        calls = [call for call in history.of(Publish) if call.is_ok]
        self._asked = [call.number for call in calls]
        self._ends: list[int] = []
        end = _NEVER
        for call in reversed(calls):
            end = min(end, call.ended or _NEVER)
            self._ends.append(end)
        self._ends.reverse()

    def first_after(self, step: int) -> int:
        """What was decided before `step` is committed by then, and whoever left has been noticed:
        batches are committed in their order."""
        at = bisect_right(self._asked, step)
        return self._ends[at] if at < len(self._ends) else _NEVER


def turn_of(history: History, shard: int, tag: str) -> tuple[int, int]:
    """A message's priority, and its delay in milliseconds."""
    turn = history.turns.get(tag, Turn())
    known = history.shards.get(shard)
    usual = known.delay_ms if known is not None else 0
    return turn.priority, usual if turn.delay_ms is None else turn.delay_ms


def group_of(history: History, row: Seen) -> bytes:
    """The group that a message was published with."""
    named = history.turns.get(row.tag, Turn()).group
    return named if named is not None else row.key or b""
