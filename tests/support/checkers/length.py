"""The checkers of maxima.

M1: a queue that refuses never has more messages than it may, as far as publishers and workers know.
M2: what was refused would not have fitted.
M3: what was dropped was never handed out.
Whoever asks a queue how many it has (`live`) is told no more than the maximum.
"""

from __future__ import annotations

from tests.support.checkers.failures import letters_of
from tests.support.checkers.history import (
    Discard,
    History,
    Lease,
    Outcome,
    Publish,
    Settle,
)

_NEVER = 1 << 62

HOLDS = "Full: the queue holds its"
"""How a refusal begins that a maximum gives: a full disk says something else."""


def check_length(history: History) -> list[str]:
    """Queues hold what they may, and refuse and drop nothing else."""
    found: list[str] = []
    for number, shard in history.shards.items():
        if not (shard.max_messages or shard.max_bytes):
            continue
        if shard.is_dropping:
            found += _check_dropped(history, number)
        else:
            found += _Held(history, number).check()
    return found


def handed_out(history: History, shard: int) -> set[str]:
    """The messages that somebody was given there, and knows of it."""
    return {
        row.tag
        for lease in history.of(Lease)
        if lease.shard == shard and lease.is_ok
        for row in lease.rows
    }


def _check_dropped(history: History, number: int) -> list[str]:
    """M3; that what was handed out is not lost otherwise is I1."""
    shard = history.shards[number]
    discarded = {
        call.seq for call in history.of(Discard) if call.shard == number and call.may_be_done
    }
    seqs = {
        row.tag: row.seq
        for lease in history.of(Lease)
        if lease.shard == number
        for row in lease.rows
    }
    given, letters = handed_out(history, number), letters_of(history)
    return [
        f"M3: {tag} of {number} was handed out, and dropped"
        for tag in sorted(given)
        if (shard.dead_letter, tag) in letters and seqs[tag] not in discarded
    ]


class _Held:
    """When a message was there at least and at most, in steps of the history."""

    def __init__(self, history: History, number: int) -> None:
        self._number = number
        self._shard = history.shards[number]
        self._calls = [call for call in history.of(Publish) if call.shard == number]
        seqs = {
            row.tag: row.seq
            for lease in history.of(Lease)
            if lease.shard == number
            for row in lease.rows
        }
        settles: dict[int, list[Settle]] = {}
        for call in history.of(Settle):
            if call.shard == number and call.may_be_done:
                settles.setdefault(call.seq, []).append(call)
        sure: dict[str, tuple[int, int]] = {}
        maybe: dict[str, tuple[int, int]] = {}
        for publish in self._calls:
            if not publish.may_be_done:
                continue
            for row in publish.rows:
                ends = settles.get(seqs.get(row.tag, 0), [])
                begin = maybe.get(row.tag, (publish.number, 0))[0]
                over = min((call.ended or _NEVER for call in ends if call.is_ok), default=_NEVER)
                maybe[row.tag] = (begin, over)
                if publish.is_ok and row.tag not in sure:
                    first = min((call.number for call in ends), default=_NEVER)
                    sure[row.tag] = (publish.ended or 0, first)
        self._sure, self._maybe = sorted(sure.values()), sorted(maybe.values())

    def check(self) -> list[str]:
        most = self._shard.max_messages
        found: list[str] = []
        for begin, _ in self._sure if most else ():
            count = sum(low <= begin < high for low, high in self._sure)
            if count > most:
                found.append(f"M1: {self._number} has {count} messages at {begin}, of {most}")
        for call in self._calls:
            if call.outcome is Outcome.REFUSED and call.error.startswith(HOLDS):
                found += self._check_refused(call, most)
        return found

    def _check_refused(self, call: Publish, most: int) -> list[str]:
        """M2. Of bytes no more is promised than that an empty queue takes something."""
        until = call.ended or _NEVER
        count = sum(low < until and high > call.number for low, high in self._maybe)
        # What a transaction settles makes room for what it publishes: such calls need less.
        if count == 0 or (most and count + len(call.rows) <= most):
            return [
                f"M2: call {call.number} was refused {len(call.rows)} messages on {self._number}, "
                f"which had {count} at most"
            ]
        return []
